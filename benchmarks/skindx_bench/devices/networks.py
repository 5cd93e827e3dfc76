"""Whole networks, inference and one step of training (forward, backward, SGD)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from skindx_bench.devices.operators import BACKWARD
from skindx_bench.devices.recurrent import (
    DeepSpeech2,
    TwoLayerLstm,
    ctc_loss,
    deep_speech_flops,
    lstm_flops,
)
from skindx_bench.devices.work import DTYPES, Case, Mode, Precision, Work


@dataclass(frozen=True)
class Network:
    """How to build a network and its input, and the operations of one sample's forward pass."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    flops: Callable[[], float]
    batch: int
    loss: Callable[[Tensor], Tensor] = lambda out: out.float().square().mean()


def networks(batch: int, shrink: int = 1) -> dict[str, Network]:
    """Return the networks by name; `shrink` divides their widths, for tests."""
    width, model_width = 512 // shrink, 512 // shrink
    frames, side, places = 200 // shrink, max(32, 224 // shrink), 128 // shrink
    speech = 800 // shrink
    return {
        "resnet50": timm_network("resnet50", side, batch),
        "lstm-2": Network(
            lambda: TwoLayerLstm(width), (64, width), lambda: lstm_flops(width, 64), batch
        ),
        "deep-speech-2": Network(
            lambda: DeepSpeech2(speech),
            (1, 161, frames),
            lambda: deep_speech_flops(speech, frames),
            batch,
            ctc_loss,
        ),
        "transformer-6": Network(
            lambda: _encoder(model_width),
            (places, model_width),
            lambda: encoder_flops(model_width, places),
            batch,
        ),
    }


def timm_network(model: str, side: int, batch: int) -> Network:
    """Return a timm model on square images."""
    import timm

    def count() -> float:
        from torch.utils.flop_counter import FlopCounterMode

        with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
            timm.create_model(model).eval()(torch.zeros(1, 3, side, side))
        return float(counter.get_total_flops())

    return Network(lambda: timm.create_model(model), (3, side, side), count, batch)


def network_cases(
    found: dict[str, Network], precisions: Sequence[Precision], modes: Sequence[Mode]
) -> Iterator[Case]:
    """Yield each network in each precision that networks have: fp32, bf16, fp16."""
    for name, network in found.items():
        for precision in precisions:
            if precision == "int8":
                continue  # a network of integers is an export, not this network
            for mode in modes:

                def bind(
                    device: torch.device,
                    network: Network = network,
                    precision: Precision = precision,
                    mode: Mode = mode,
                ) -> Work:
                    return _work(network, precision, mode, device)

                yield Case(name, precision, mode, "network", bind)


def encoder_flops(width: int, places: int, layers: int = 6) -> float:
    """Return operations of one sequence: projections, attention, and a hidden layer of 4 widths."""
    return layers * (2.0 * places * (4 * width**2 + 8 * width**2) + 4.0 * places**2 * width)


def _encoder(width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


def _work(network: Network, precision: Precision, mode: Mode, device: torch.device) -> Work:
    torch.manual_seed(0)
    dtype = DTYPES[precision]
    model = network.build().to(device)
    images = torch.randn((network.batch, *network.shape), device=device)
    mixed = torch.autocast(device.type, dtype=dtype, enabled=precision != "fp32")
    flops = network.flops() * network.batch
    if mode == "inference":
        model.eval()

        def infer() -> object:
            with torch.inference_mode(), mixed:
                return model(images)

        return Work(infer, network.batch, flops)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def train() -> object:
        with mixed:
            out = model(images)
        loss = network.loss(out)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return Work(train, network.batch, BACKWARD * flops)
