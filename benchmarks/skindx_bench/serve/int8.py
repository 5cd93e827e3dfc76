"""How much faster int8 answers one image than eager, OpenVINO and ONNX Runtime do."""

import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.measurement import interleave, torch_threads
from skindx.core.settings_base import Settings
from skindx.models.exports.runtimes import Precision, Runtime, unsupported
from skindx_bench.harness.result import Figure, Result, median, ratio
from skindx_bench.serve.serve import body_candidates

SMALLEST = ("networks=[test_resnet]", "size=64", "rounds=5")

RUNTIMES: dict[str, tuple[Runtime, Precision]] = {
    "ort_fp32": ("onnx", "fp32"),
    "openvino_fp32": ("openvino", "fp32"),
    "openvino_bf16": ("openvino", "bf16"),
    "ort_int8": ("onnx", "int8"),
    "openvino_int8": ("openvino", "int8"),
}
_EAGER = ("eager", "eager_channels_last")


class Config(Settings):
    """Which networks, and how often each answers."""

    networks: tuple[str, ...] = Field(
        ("resnet50", "efficientnet_b0", "mobilenetv3_large_100", "convnext_tiny"), min_length=1
    )
    size: int = Field(224, ge=32)
    rounds: int = Field(30, ge=5)


def run(settings: Config) -> Result:
    """Let all candidates of a network take turns on one image and one thread.

    Seconds are of the processor, so that a busy machine counts alike for all. Raises UserError on
    a machine that has no int8.
    """
    if why := unsupported("openvino", "int8"):
        raise UserError(why)
    peer = "openvino_fp32" if unsupported("openvino", "bf16") else "openvino_bf16"
    by_network: dict[str, dict[str, Figure]] = {}
    models: dict[str, dict[str, dict[str, float]]] = {}
    with torch_threads(1), tempfile.TemporaryDirectory(prefix="skindx-bench-") as folder:
        for network in settings.networks:
            candidates = body_candidates(network, settings.size, Path(folder), RUNTIMES)
            seconds = interleave(candidates, settings.rounds, warmup=3, clock=time.process_time)
            by_network[network] = _ratios(seconds, peer)
            models[network] = {name: _milliseconds(measured) for name, measured in seconds.items()}
    figures = {
        f"{network}_{key}": figure
        for network, found in by_network.items()
        for key, figure in found.items()
    }
    for key in next(iter(by_network.values())):
        least = (found[key] for found in by_network.values())
        figures[key] = min(least, key=lambda figure: figure.value)
    return Result("int8", figures, models=models, notes=_notes(settings, peer))


def _ratios(seconds: Mapping[str, list[float]], peer: str) -> dict[str, Figure]:
    eager = min(_EAGER, key=lambda name: statistics.median(seconds[name]))
    ours = seconds["openvino_int8"]
    return {
        f"int8_over_{peer}": ratio(ours, seconds[peer]),
        "int8_over_eager": ratio(ours, seconds[eager]),
        "ort_int8_over_ort_fp32": ratio(seconds["ort_int8"], seconds["ort_fp32"]),
        "ort_int8_over_eager": ratio(seconds["ort_int8"], seconds[eager]),
    }


def _milliseconds(seconds: list[float]) -> dict[str, float]:
    found = median([1000 * second for second in seconds], "ms")
    return {"value": found.value, "low": found.spread[0], "high": found.spread[1]}


def _notes(settings: Config, peer: str) -> tuple[str, ...]:
    notes = [
        f"{', '.join(settings.networks)} with random weights, one image of {settings.size} px on "
        "one thread, head and probabilities included, in seconds of the processor. int8 is "
        "OpenVINO's unless a key says ort. A key that names no network is the smallest value over "
        "all networks. "
        "Eager is the faster of PyTorch's two memory formats.",
    ]
    if peer == "openvino_fp32":
        notes.append(f"OpenVINO in fp32 is the peer: {unsupported('openvino', 'bf16')}")
    return tuple(notes)
