"""Whole networks, inference and one step of training: timm's, recurrent ones, one's own."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from skindx_bench.devices.measure import DTYPES, Case, Mode, Precision, Work
from skindx_bench.devices.operators import BACKWARD

LETTERS = 29
"""Characters of English with space, apostrophe and the blank of CTC."""


class TwoLayerLstm(nn.Module):
    """Two layers of LSTM over a sequence, and a class from the last step. Input: B x T x width."""

    def __init__(self, width: int, classes: int = 10) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, sequence: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(sequence)[0][:, -1])
        return out


def lstm_flops(width: int, steps: int, classes: int = 10) -> float:
    """Return operations of one sequence's forward pass."""
    return 2 * steps * recurrent_flops(4, width, width) + 2.0 * width * classes


def recurrent_flops(gates: int, inputs: int, width: int) -> float:
    """Return operations of one step of one layer: products with the input and with the state."""
    return 2.0 * gates * width * (inputs + width)


class DeepSpeech2(nn.Module):
    """Deep Speech 2 (Amodei et al. 2015, arXiv 1512.02595). Input: B x 1 x F x T.

    Two convolutions over a spectrogram, five bidirectional layers of GRU, one fully connected one.
    """

    def __init__(self, width: int, bands: int = 161, layers: int = 5) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )
        self.features = 32 * _half(_half(bands))
        self.recurrent = nn.GRU(
            self.features, width, num_layers=layers, bidirectional=True, batch_first=True
        )
        self.head = nn.Linear(2 * width, LETTERS)

    def forward(self, spectrogram: Tensor) -> Tensor:
        maps = self.convolutions(spectrogram)
        sequence = maps.flatten(1, 2).transpose(1, 2)
        out: Tensor = self.head(self.recurrent(sequence)[0])
        return out


def deep_speech_flops(width: int, frames: int, bands: int = 161, layers: int = 5) -> float:
    """Return operations of one utterance's forward pass."""
    half, quarter = _half(bands), _half(_half(bands))
    steps = _half(frames)
    first = 2.0 * 32 * half * steps * 41 * 11
    second = 2.0 * 32 * quarter * steps * 32 * 21 * 11
    features = 32 * quarter
    inputs = [features] + [2 * width] * (layers - 1)
    recurrent = sum(2 * recurrent_flops(3, count, width) for count in inputs)
    return first + second + steps * (recurrent + 2.0 * 2 * width * LETTERS)


def ctc_loss(logits: Tensor) -> Tensor:
    """Return the CTC loss against a tenth as many letters as steps. Input: B x T x letters."""
    batch, steps = logits.shape[:2]
    letters = max(1, steps // 10)
    targets = torch.ones(batch, letters, dtype=torch.long, device=logits.device)
    targets[:, ::2] = 2
    return nn.functional.ctc_loss(
        logits.float().log_softmax(-1).transpose(0, 1),
        targets,
        torch.full((batch,), steps, dtype=torch.long),
        torch.full((batch,), letters, dtype=torch.long),
    )


def _half(size: int) -> int:
    """Return what a stride of two leaves of `size` places."""
    return (size + 1) // 2


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


def config_networks(config: Path, batch: int | None) -> dict[str, Network]:
    """Return the members that a training would train, at their size and batch.

    Raises UserError for settings that cannot be read.
    """
    from skindx.training.config.run import TrainSettings

    settings = TrainSettings.load(config)
    return {
        f"member {member.name}": timm_network(
            member.model, member.preprocess.size, batch or settings.recipe.batch
        )
        for member in settings.members
    }


def bundle_networks(bundle: Path, batch: int) -> dict[str, Network]:
    """Return the members of a bundle, as torch runs them, at their size.

    Raises UserError for what is no bundle.
    """
    from skindx.models.bundle.bundle import open_bundle

    return {
        f"bundle {member.name}": _member(member.classifier, member.preprocess.size, batch)
        for member in open_bundle(bundle).ensemble().members
    }


def _member(classifier: nn.Module, side: int, batch: int) -> Network:
    shape = (side, side, 3)

    def build() -> nn.Module:
        return deepcopy(classifier).requires_grad_(True)

    def count() -> float:
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            classifier(torch.zeros(1, *shape))
        return float(counter.get_total_flops())

    return Network(build, shape, count, batch)
