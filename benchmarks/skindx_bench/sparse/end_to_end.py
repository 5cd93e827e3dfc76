"""A whole network that skips zeros where that is faster, beside dense ones and other runtimes."""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from skindx.core.atomic_files import write_json
from skindx.core.measurement import interleave, torch_threads
from skindx.models.exports.runtimes import Precision, Runtime, unsupported, with_export
from skindx.models.exports.sparse_backend import LayerRecord, SparseRecord
from skindx_bench.harness.clock import Figure, median, ratio
from skindx_bench.serve.backends import body_candidates, judging, network_of

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
