"""How fast a diagnosis is served: runtimes, what HTTP adds, and a large photo in a browser."""

import copy
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.measurement import interleave, torch_threads
from skindx.core.settings_base import Settings
from skindx.diagnosis.case import Case
from skindx.diagnosis.predictor import Predictor
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
from skindx_bench.harness.result import Figure, Result, median, ratio
from skindx_bench.harness.training import kept_when_stopped
from skindx_bench.serve.server import QUALITY, Server, photo_jpeg, random_bundle, running

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
    return figures, baselines, _runtime_notes(ratios, networks)


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


def _runtime_notes(
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


REST = "the rest"


def _parts(predictor: Predictor) -> dict[str, tuple[tuple[Any, str], ...]]:
    """Return, for each stage, the functions that do it, as (where they are looked up, name)."""
    from skindx.diagnosis import diagnose, photo_checks, record_assembly

    return {
        "decode and scale the photo": ((photo_checks, "open_photo"),),
        "gates of light, skin and blur": ((photo_checks, "inspect"),),
        "networks": ((type(predictor.ensemble), "predict_with_features"),),
        "detector": ((type(predictor.detector), "detect"),),
        "heat map": ((record_assembly, "heat_maps"), (record_assembly, "heat_png")),
        "similar cases": ((record_assembly, "similar_cases"),),
        "text of the answer": ((diagnose, "conclude_case"), (diagnose, "assemble")),
        "photo for the page": ((record_assembly, "small_jpeg"),),
    }


def measure_stages(predictor: Predictor, photos: Sequence[bytes], rounds: int) -> dict[str, Figure]:
    """Return the processor seconds of each stage of `answer`, a photo; the last one is the rest.

    The time of a stage inside another one counts for the inner one alone.
    """
    from skindx.diagnosis.diagnose import answer

    seconds: dict[str, list[float]] = {}
    with _watched(_parts(predictor)) as taken_s:
        for turn in range(-1, rounds):
            taken_s.update(dict.fromkeys(taken_s, 0.0))
            start = time.process_time()
            for photo in photos:
                answer(predictor, Case((photo,)))
            whole_s = time.process_time() - start
            if turn >= 0:
                for stage, stage_s in taken_s.items():
                    seconds.setdefault(stage, []).append(stage_s / len(photos))
                rest_s = whole_s - sum(taken_s.values())
                seconds.setdefault(REST, []).append(rest_s / len(photos))
    return {stage: median(samples, "s") for stage, samples in seconds.items()}


@contextmanager
def _watched(parts: dict[str, tuple[tuple[Any, str], ...]]) -> Iterator[dict[str, float]]:
    """Count the seconds of functions in the block, by stage."""
    taken_s, inner_s = dict.fromkeys(parts, 0.0), [0.0]

    def watch(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            inner_s.append(0.0)
            start = time.process_time()
            try:
                return function(*arguments, **keywords)
            finally:
                whole_s = time.process_time() - start
                taken_s[stage] += whole_s - inner_s.pop()
                inner_s[-1] += whole_s

        return timed

    before = [(owner, name, getattr(owner, name)) for own in parts.values() for owner, name in own]
    try:
        for stage, own in parts.items():
            for owner, name in own:
                setattr(owner, name, watch(stage, getattr(owner, name)))
        yield taken_s
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


WIDTH, HEIGHT = 4000, 3000

SMALLEST = (
    "models=[]",
    "rounds=5",
    "photos=1",
    "gallery=8",
    "members=[test_resnet]",
    "side=64",
)


class Config(Settings):
    """The bundle to serve, and the number of requests."""

    members: tuple[str, ...] = Field(("resnet50", "mobilenetv2_100"), min_length=1)
    side: int = Field(224, ge=32)
    detector_side: int = Field(320, ge=64, multiple_of=32)
    gallery: int = Field(2000, ge=8)
    """Images that similar cases are sought among."""
    models: tuple[str, ...] = ("resnet50", "convnext_tiny", "efficientnet_b0")
    """Networks whose exports are timed; none: they are left out."""
    rounds: int = Field(7, ge=5)
    photos: int = Field(10, ge=1)
    """Photos a round, each way; processor time is counted in hundredths of a second."""
    repeats: int = Field(30, ge=5)
    """Turns of one image in which runtimes are timed."""
    page: bool = True
    """Whether to open the page in a browser; it needs chromium."""


def run(settings: Config) -> Result:
    """Time all of it, one after the other, so that nothing shares the processor with another.

    After Ctrl-C the whole figures so far are returned, marked as partial.
    """
    found = ServeResults()
    with kept_when_stopped("the server was measured") as stopped:
        _measure(settings, found)
    return Result(
        "serve",
        found.figures,
        found.baselines,
        notes=(*_notes(settings), *found.notes),
        parts={"stages": {stage: asdict(figure) for stage, figure in found.stages.items()}},
        partial=stopped.partial,
    )


@dataclass
class ServeResults:
    """What was measured so far."""

    figures: dict[str, Figure] = field(default_factory=dict)
    baselines: dict[str, Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stages: dict[str, Figure] = field(default_factory=dict)


def _measure(settings: Config, found: ServeResults) -> None:
    if settings.models:
        figures, baselines, notes = measure_backends(
            settings.repeats, settings.models, settings.side
        )
        found.figures |= figures
        found.baselines |= baselines
        found.notes += notes
    with tempfile.TemporaryDirectory() as folder:
        bundle = random_bundle(
            Path(folder) / "bundle",
            settings.members,
            side=settings.side,
            detector_side=settings.detector_side,
            gallery=settings.gallery,
        ).path
        photos = [photo_jpeg(WIDTH, HEIGHT, seed) for seed in range(settings.photos)]
        found.notes.append(_photos_note(settings, photos))
        with running(bundle, "--workers", "1") as server:
            direct, over_http, stages = _cpu_seconds(server, bundle, photos, settings.rounds)
        found.stages = stages
        found.figures["direct_over_http_cpu"] = ratio(over_http, direct)
        found.baselines["direct call, CPU a photo"] = median(direct, "s")
        found.baselines["over HTTP, CPU a photo"] = median(over_http, "s")
        found.baselines |= {f"CPU a photo, {stage}": figure for stage, figure in stages.items()}
        if settings.page:
            with running(bundle) as server:
                complete, report = _page_seconds(server, photos, Path(folder), settings)
                found.figures |= {"page_12mp_s": complete, "page_report_s": report}
                memory = server.memory_bytes() / 1e6
            found.baselines["memory of the server's processes"] = Figure(
                memory, "MB", 1, (memory,) * 2
            )


def _cpu_seconds(
    server: Server, bundle: Path, photos: list[bytes], rounds: int
) -> tuple[list[float], list[float], dict[str, Figure]]:
    """Return processor seconds a photo of each round: called directly, over HTTP; and by stage."""
    import httpx
    import torch

    from skindx.diagnosis.case import Case
    from skindx.diagnosis.diagnose import answer
    from skindx.diagnosis.predictor import Predictor

    torch.set_num_threads(1)
    predictor = Predictor.load(bundle)
    direct, over_http = [], []
    with httpx.Client(base_url=server.url, timeout=300, trust_env=False) as client:
        for turn in range(-1, rounds):
            start = time.process_time()
            for photo in photos:
                answer(predictor, Case((photo,)))
            called = time.process_time() - start
            start = server.cpu_s()
            for photo in photos:
                client.post("/v1/diagnose", files={"photo": photo}).raise_for_status()
            served = server.cpu_s() - start
            if turn >= 0:
                direct.append(called / len(photos))
                over_http.append(served / len(photos))
    return direct, over_http, measure_stages(predictor, photos, rounds)


def _page_seconds(
    server: Server, photos: list[bytes], folder: Path, settings: Config
) -> tuple[Figure, Figure]:
    """Return the seconds to the complete page, and from the click on the report to it."""
    from skindx_bench.serve.server import ask, opened

    files = []
    for number, photo in enumerate(photos):
        files.append(folder / f"{number}.jpg")
        files[-1].write_bytes(photo)
    with opened(server.url) as page:
        ask(page, files[-1])  # the first one also warms up what is made once
        seconds = [ask(page, files[turn % len(files)]) for turn in range(settings.rounds)]
    completes, reports = zip(*seconds, strict=True)
    return median(completes, "s"), median(reports, "s")


def _photos_note(settings: Config, photos: list[bytes]) -> str:
    mean_mb = sum(map(len, photos)) / len(photos) / 1e6
    shown = " + ".join(settings.members)
    return (
        f"{len(photos)} painted photos of {WIDTH} x {HEIGHT} pixels, JPEG of quality {QUALITY}, "
        f"{mean_mb:.1f} MB on average; {shown} at {settings.side} px, a yolo11n detector at "
        f"{settings.detector_side} px, heat map, {settings.gallery:,} images in the gallery; "
        "random weights, one thread a worker."
    )


def _notes(settings: Config) -> tuple[str, ...]:
    return (
        "direct_over_http_cpu: processor time of `answer` called in a process, over that of the "
        "server and its worker for the same photo sent to /v1/diagnose; the client's is not in it.",
        "CPU a photo, by stage: of `answer` called in a process; a stage inside another one counts "
        "alone.",
        "page_12mp_s: from the click to the whole answer with its images decoded, in chromium on "
        "the same machine: upload, diagnosis, rendering. The PDF report is made when it is asked "
        "for; page_report_s: from that click to the file.",
        "The ratios of runtimes are the least of "
        f"{', '.join(settings.models)}: one image at a time, body and head, one thread."
        if settings.models
        else "Runtimes were left out.",
    )
