"""Networks and convolutions that skip zeros beside dense ones, layer by layer and end to end."""

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor, nn

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.machine import cpu_flags
from skindx.core.measurement import interleave, torch_threads
from skindx.core.settings_base import Settings
from skindx.models.exports.runtimes import Precision, Runtime, unsupported, with_export
from skindx.models.exports.sparse_backend import LayerRecord, SparseRecord
from skindx.models.exports.sparse_convolution import SparseConvolution
from skindx_bench.harness.result import Figure, Result, median, ratio
from skindx_bench.serve.backends import body_candidates, judging, network_of


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


_RUNTIMES: dict[str, tuple[Runtime, Precision]] = {
    "sparse": ("sparse", "fp32"),
    "ort": ("onnx", "fp32"),
    "openvino_fp32": ("openvino", "fp32"),
}
_EAGER = ("eager", "eager_channels_last")


@dataclass(frozen=True)
class EndToEnd:
    """Figures by key; milliseconds of each candidate; zeros that reach each convolution."""

    figures: dict[str, Figure]
    baselines: dict[str, Figure]
    zeros: dict[str, float]
    notes: list[str] = field(default_factory=list)


def measure_end_to_end(network: str, size: int, rounds: int, weights: Path | None) -> EndToEnd:
    """Let all candidates take turns on one image and one thread, in seconds of the processor.

    `dense` is the same fused network with the fastest dense choice for each convolution.
    """
    with torch_threads(1), tempfile.TemporaryDirectory(prefix="skindx-bench-") as name:
        folder = Path(name)
        candidates = body_candidates(network, size, folder, _RUNTIMES, weights)
        record = SparseRecord.read(folder / f"{network}-sparse.json")
        candidates["dense"] = _dense(network, size, weights, record, folder / "dense.json")
        seconds = interleave(candidates, rounds, warmup=2, clock=time.process_time)
    eager = min(_EAGER, key=lambda name: statistics.median(seconds[name]))
    peers = {"eager": eager} | {key: key for key in ("ort", "openvino_fp32", "dense")}
    figures = {
        f"end_to_end_over_{key}": ratio(seconds["sparse"], seconds[peer])
        for key, peer in peers.items()
        if peer in seconds
    }
    baselines = {
        f"{network}_{name}": median([1000 * second for second in found], "ms")
        for name, found in seconds.items()
    }
    zeros = {name: layer.zeros for name, layer in record.layers.items()}
    return EndToEnd(figures, baselines, zeros, _notes(network, size, weights, record))


def _dense(
    network: str, size: int, weights: Path | None, record: SparseRecord, file: Path
) -> Callable[[], object]:
    layers = {
        name: LayerRecord(zeros=layer.zeros, choices=layer.dense)
        for name, layer in record.layers.items()
    }
    dense = record.model_copy(update={"layers": layers})
    write_json(file, dense.model_dump(mode="json"))
    return judging(with_export(network_of(network, size, weights), file, "sparse", "fp32"))


def _notes(network: str, size: int, weights: Path | None, record: SparseRecord) -> list[str]:
    skip = sum(layer.choices.get("one") == "sparse" for layer in record.layers.values())
    drawn = f"the weights of {weights.name}" if weights else "random weights"
    notes = [
        f"End to end: {network} with {drawn}, noise of {size} px, one image on one thread, head "
        f"and probabilities included, in seconds of the processor; {skip} of "
        f"{len(record.layers)} convolutions skip zeros. end_to_end_over_dense: over the fastest "
        "dense choice for each convolution, in the same graph; over_eager: over the faster of "
        "PyTorch's two memory formats."
    ]
    if record.alone:
        notes.append(f"{network} is left alone: {record.alone}")
    for key, runtime in _RUNTIMES.items():
        if why := unsupported(*runtime):
            notes.append(f"Without {key}: {why}")
    return notes


SMALLEST = ("layers=2", "rounds=5", "shares=[0.3, 0.7]", "network=test_resnet", "size=64")

_ASKED = 0.7
_BF16 = ("avx512_bf16", "amx_bf16")


class Config(Settings):
    """How many of the layers, at which shares of zeros, how often."""

    layers: int = Field(len(LAYERS), ge=1, le=len(LAYERS))
    shares: tuple[float, ...] = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
    rounds: int = Field(11, ge=5)
    network: str = "resnet50"
    """Timed from end to end."""
    size: int = Field(224, ge=32)
    weights: Path | None = None
    """Of the network; with them, the natural zeros of each of its convolutions are given."""


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
    whole = measure_end_to_end(settings.network, settings.size, settings.rounds, settings.weights)
    models: dict[str, dict[str, object]] = {
        name: _row(by_share) for name, by_share in found.items()
    }
    if settings.weights:
        models[f"zeros in {settings.network}"] = {"natural_zeros": whole.zeros}
    return Result(
        "sparse",
        figures | whole.figures,
        whole.baselines,
        models=models,
        notes=(*_layer_notes(), *whole.notes),
    )


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
