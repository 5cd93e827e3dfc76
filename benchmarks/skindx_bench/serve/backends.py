"""One image through one network by each runtime: a part of `skindx bench serve`."""

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.measurement import interleave, torch_threads
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.ensemble import Member
from skindx.models.exports.backend_choice import fastest
from skindx.models.exports.runtimes import (
    Precision,
    Runtime,
    backend_of,
    make_body,
    unsupported,
    with_export,
)
from skindx_bench.harness.result import Figure, median, ratio

NETWORKS = ("resnet50", "convnext_tiny", "efficientnet_b0")

_RUNTIMES: dict[str, tuple[Runtime, Precision]] = {
    "ort_fp32": ("onnx", "fp32"),
    "openvino_fp32": ("openvino", "fp32"),
    "openvino_bf16": ("openvino", "bf16"),
}
_FIGURES = ("ort_fp32", "openvino_bf16")
_SERVED = ("eager", *_RUNTIMES)
"""What a server chooses from."""
_CLASSES = 10
_SAMPLES = 4


def measure_backends(
    rounds: int = 30, networks: tuple[str, ...] = NETWORKS, size: int = 224
) -> tuple[dict[str, Figure], dict[str, Figure], tuple[str, ...]]:
    """Return figures, baselines and notes: how many times faster than eager each runtime is.

    A figure is the least of all networks. One thread answers one image at a time, head and
    probabilities included; eager is the faster of PyTorch's two memory formats, network by
    network. Seconds are of the processor, so that a busy machine counts alike for all.
    """
    ratios: dict[str, dict[str, Figure]] = {name: {} for name in _RUNTIMES}
    baselines: dict[str, Figure] = {}
    chosen: list[Figure] = []
    with torch_threads(1), tempfile.TemporaryDirectory(prefix="skindx-bench-") as folder:
        for network in networks:
            candidates = body_candidates(network, size, Path(folder), _RUNTIMES)
            seconds = interleave(candidates, rounds, warmup=3, clock=time.process_time)
            served = {name: call for name, call in candidates.items() if name in _SERVED}
            best = min(served, key=lambda name: statistics.median(seconds[name]))
            chosen.append(ratio(seconds[fastest(served)], seconds[best]))
            eager = min(("eager", "eager_channels_last"), key=lambda name: sum(seconds[name]))
            for name, samples in seconds.items():
                milliseconds = [1000 * elapsed for elapsed in samples]
                baselines[f"{network}_{name}"] = median(milliseconds, "ms")
                if name in ratios:
                    ratios[name][network] = ratio(samples, seconds[eager])
    figures = {f"{name}_over_eager": _least(ratios[name]) for name in _FIGURES if ratios[name]}
    figures["chosen_over_best"] = min(chosen, key=lambda figure: figure.value)
    return figures, baselines, _notes(ratios, networks)


def body_candidates(
    network: str,
    size: int,
    folder: Path,
    runtimes: Mapping[str, tuple[Runtime, Precision]],
) -> dict[str, Callable[[], object]]:
    """Return calls in which a network answers one image, by name; its weights are random.

    Beside the runtimes that this machine can run: eager, in both of PyTorch's memory formats.
    int8 learns its ranges from painted noise, which is enough for its speed.
    """
    eager = _network_of(network, size)
    tall = copy.deepcopy(eager.classifier).to(memory_format=torch.channels_last)
    squares = noise_squares(_SAMPLES, size)
    candidates = {
        "eager": judging(eager),
        "eager_channels_last": judging(replace(eager, classifier=tall)),
    }
    for name, (to, precision) in runtimes.items():
        if not unsupported(to, precision):
            file = folder / f"{network}-{name}{backend_of(to).suffix}"
            samples = list(squares) if precision == "int8" else []
            make_body(
                file,
                eager.classifier,
                eager.preprocess,
                to=to,
                precision=precision,
                samples=samples,
            )
            candidates[name] = judging(with_export(eager, file, to, precision))
    return candidates


def _network_of(network: str, size: int) -> Member:
    """Return a network with random weights, always the same."""
    torch.manual_seed(0)
    preprocess = Preprocess(size=size)
    settings = ClassifierSettings(model=network, preprocess=preprocess)
    classifier = build_classifier(settings, _CLASSES).eval()
    return Member(network, classifier, preprocess)


def noise_squares(count: int, size: int) -> NDArray[np.uint8]:
    """Return count x size x size x 3 of noise, always the same."""
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def judging(member: Member) -> Callable[[], object]:
    """Return a call in which a member answers one image."""
    squares_1SS3 = noise_squares(1, member.preprocess.size)
    return lambda: member.log_probabilities_of_squares([squares_1SS3])


def _least(of: Mapping[str, Figure]) -> Figure:
    return min(of.values(), key=lambda figure: figure.value)


def _notes(
    ratios: Mapping[str, Mapping[str, Figure]], networks: tuple[str, ...]
) -> tuple[str, ...]:
    notes = [
        f"Runtimes: {', '.join(networks)} with random weights, one image on one thread, in "
        "seconds of the processor; a figure is the least of them, over eager's faster memory "
        "format. chosen_over_best: the fastest of what a server chooses from / its choice."
    ]
    for name, (to, precision) in _RUNTIMES.items():
        if ratios[name]:
            gains = ", ".join(f"{key} {of.value:.2f} ×" for key, of in ratios[name].items())
            notes.append(f"{name} over eager: {gains}.")
        else:
            notes.append(f"Left out: {unsupported(to, precision)}")
    return tuple(notes)
