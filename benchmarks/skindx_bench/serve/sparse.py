"""Convolutions that skip zeros beside dense ones, layer by layer."""

import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.core.machine import cpu_flags
from skindx.core.measurement import interleave, torch_threads
from skindx.core.settings_base import Settings
from skindx_bench.harness.result import Figure, Result, ratio
from skindx_bench.serve.sparse_convolution import SparseConvolution


@dataclass(frozen=True)
class Layer:
    """A convolution with padding that keeps the size, before its stride."""

    side: int
    channels: int
    out: int
    kernel: int
    stride: int = 1

    @property
    def name(self) -> str:
        """Such as `3x3 256>256 at 14`, with `/2` for a stride of two."""
        stride = "/2" if self.stride == 2 else ""
        return f"{self.kernel}x{self.kernel}{stride} {self.channels}>{self.out} at {self.side}"

    def build(self) -> nn.Conv2d:
        """Return it with random weights and bias."""
        layer = nn.Conv2d(
            self.channels, self.out, self.kernel, self.stride, padding=self.kernel // 2
        )
        return layer.eval().requires_grad_(requires_grad=False)


LAYERS = (
    Layer(56, 64, 64, 3),
    Layer(28, 128, 128, 3),
    Layer(14, 256, 256, 3),
    Layer(7, 512, 512, 3),
    Layer(56, 256, 256, 3),
    Layer(28, 512, 512, 3),
    Layer(28, 256, 256, 3, 2),
    Layer(28, 512, 128, 1),
    Layer(14, 1024, 256, 1),
)
"""3 x 3 of ResNet-50, then of VGG-16, then a stride of two, and 1 x 1 of ResNet-50."""


def relu_input(layer: Layer, zeros: float, seed: int = 0) -> Tensor:
    """Return 1 x C x S x S, channels last, of which a share `zeros` is zero.

    Zeros lie as behind a ReLU: neighbours are alike, and some channels have more of them.
    """
    random = torch.Generator().manual_seed(seed)
    size = (1, layer.channels, layer.side, layer.side)
    noise = torch.randn(size, generator=random)
    smooth = nn.functional.avg_pool2d(noise, 3, 1, 1) * 2 + noise
    smooth = smooth + torch.randn((1, layer.channels, 1, 1), generator=random)
    threshold = smooth.flatten().kthvalue(max(1, round(zeros * smooth.numel()))).values
    return (smooth - threshold).relu().contiguous(memory_format=torch.channels_last)


SMALLEST = ("layers=2", "rounds=5", "shares=[0.3, 0.7]")

_ASKED = 0.7
_BF16 = ("avx512_bf16", "amx_bf16")


class Config(Settings):
    """How many of the layers, at which shares of zeros, how often."""

    layers: int = Field(len(LAYERS), ge=1, le=len(LAYERS))
    shares: tuple[float, ...] = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
    rounds: int = Field(11, ge=5)


def run(settings: Config) -> Result:
    """Time one image on one thread in processor seconds; candidates of a layer take turns.

    Raises UserError without a C++ compiler, and where 0.7 is not among the shares.
    """
    if _ASKED not in settings.shares:
        raise UserError(f"shares must hold {_ASKED}, at which figures are given: add it.")
    found: dict[str, dict[float, dict[str, Figure]]] = {}
    with torch_threads(1), torch.inference_mode():
        for layer in LAYERS[: settings.layers]:
            found[layer.name] = {
                share: _ratios(layer, share, settings.rounds) for share in sorted(settings.shares)
            }
    wide = [name for name in found if name.startswith("3x3 ")]
    figures = {
        f"{key}_70" if key != "sparse_over_im2col" else key: min(
            (found[name][_ASKED][key] for name in wide), key=lambda figure: figure.value
        )
        for key in found[wide[0]][_ASKED]
    }
    models: dict[str, dict[str, object]] = {
        name: _row(by_share) for name, by_share in found.items()
    }
    return Result("sparse", figures, models=models, notes=_layer_notes())


def _ratios(layer: Layer, zeros: float, rounds: int) -> dict[str, Figure]:
    candidates = _candidates(layer, relu_input(layer, zeros))
    seconds = interleave(candidates, rounds, warmup=2, clock=time.process_time)
    dense = min(("channels_last", "prepacked"), key=lambda name: statistics.median(seconds[name]))
    figures = {
        "sparse_over_onednn": ratio(seconds["sparse"], seconds[dense]),
        "sparse_over_im2col": ratio(seconds["sparse"], seconds["im2col"]),
    }
    if "bf16" in seconds:
        figures["sparse_over_onednn_bf16"] = ratio(seconds["sparse"], seconds["bf16"])
    return figures


def _candidates(layer: Layer, input_1CSS: Tensor) -> Mapping[str, Callable[[], object]]:
    from torch.utils import mkldnn

    torch.manual_seed(0)
    built = layer.build()
    sparse = SparseConvolution(built)
    if not sparse.compiled:
        raise UserError("the bench needs a C++ compiler; install g++.")
    tall = built.to(memory_format=torch.channels_last)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch, on its own classes
        packed = mkldnn.to_mkldnn(nn.Sequential(layer.build()))  # type: ignore[no-untyped-call]
    plain_1CSS = input_1CSS.contiguous()
    blocked = plain_1CSS.to_mkldnn()
    matrix_KD = built.weight.reshape(layer.out, -1).contiguous()

    def im2col() -> Tensor:
        columns = nn.functional.unfold(
            plain_1CSS, layer.kernel, padding=layer.kernel // 2, stride=layer.stride
        )
        return matrix_KD @ columns[0]

    candidates: dict[str, Callable[[], object]] = {
        "sparse": lambda: sparse(input_1CSS),
        "channels_last": lambda: tall(input_1CSS),
        "prepacked": lambda: packed(blocked),
        "im2col": im2col,
    }
    if cpu_flags().intersection(_BF16):
        half, half_1CSS = layer.build().bfloat16(), input_1CSS.bfloat16()
        half = half.to(memory_format=torch.channels_last)
        candidates["bf16"] = lambda: half(half_1CSS)
    return candidates


def _row(by_share: Mapping[float, Mapping[str, Figure]]) -> dict[str, object]:
    speeds = {f"{share:g}": found["sparse_over_onednn"].value for share, found in by_share.items()}
    return {
        "sparse_over_onednn": speeds,
        "break_even": _break_even(
            [(share, found["sparse_over_onednn"].value) for share, found in by_share.items()]
        ),
    }


def _break_even(points: list[tuple[float, float]]) -> float | None:
    """Return the share of zeros from which sparse is faster, between the shares measured.

    None where it is not faster at any of them; the least share where it is at all.
    """
    slower = [n for n, (_, speed) in enumerate(points) if speed < 1]
    if not slower:
        return points[0][0]
    last = slower[-1]
    if last + 1 == len(points):
        return None
    (low, before), (high, after) = points[last], points[last + 1]
    return low + (high - low) * (1 - before) / (after - before)


def _layer_notes() -> tuple[str, ...]:
    notes = [
        "One image on one thread, fp32, random weights, inputs whose zeros lie as behind a ReLU; "
        "seconds of the processor. sparse_over_onednn_70: the least of the 3 x 3 layers of stride "
        "1 at 70 % zeros over the faster of torch's convolution in channels-last memory and of "
        "one with weights packed before. sparse_over_im2col: the same layers over unfold and a "
        "product of matrices.",
    ]
    if not cpu_flags().intersection(_BF16):
        notes.append("This CPU has no bf16, so no layer in bf16 was timed.")
    return tuple(notes)
