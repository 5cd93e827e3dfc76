"""The search for copies among many images, in a process of its own: time by stage, and memory."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from skindx.bench.harness.clock import Figure
from skindx.bench.harness.processes import ProcessTree
from skindx.data import store
from skindx.data.runner import LocalRunner
from skindx.data.synthetic.painter import CLASSES, encode_jpeg, paint
from skindx.data.synthetic.variants import KINDS, make_copy
from skindx.errors import JobError, UserError

COPIED = 10
"""Every so manieth image is a copy of the one before it."""
FAR = 100_000
"""Images to which the times are extrapolated."""
_SAMPLED_S = 2.0


@dataclass
class Stages:
    """Seconds of each stage of a search, from its progress."""

    seconds: dict[str, float] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Count the time between the first and the last call of a stage."""
        now = time.perf_counter()
        self.seconds[stage] = now - self._since.setdefault(stage, now)


@dataclass(frozen=True)
class Measured:
    """What one search took; `seconds` are wall seconds by stage."""

    images: int
    seconds: dict[str, float]
    wall_s: float
    cpu_s: float
    pairs: int
    """Pairs that were verified."""
    found: int
    """Pairs that were accepted."""
    memory_mb: float
    """Most that the process and all that it starts take at once, pages that they share once."""
    disk_mb: float


def measure(images: int, dataset: Path | None, workers: int, seed: int) -> list[Measured]:
    """Search a quarter of the images, and then all of them, which goes on with what is there.

    Raises UserError for a `dataset` that is no folder.
    """
    if dataset is not None and not dataset.is_dir():
        raise UserError(f"{dataset} is no folder; name one with images, or leave dataset out.")
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measure, args=(images, dataset, workers, seed, theirs))
    process.start()
    theirs.close()
    assert process.pid is not None
    tree, most_mb = ProcessTree(process.pid), 0.0
    measured: list[Measured] = []
    try:
        while len(measured) < 2:
            if ours.poll(_SAMPLED_S):
                told = ours.recv()
                most_mb = 0.0 if told is None else most_mb
                measured += [] if told is None else [replace(told, memory_mb=most_mb)]
            most_mb = max(most_mb, tree.memory_bytes() / 1e6)
    except EOFError:
        raise JobError("the search for copies ended before its time; see the error above") from None
    finally:
        process.join()
    return measured


def figures_of(quarter: Measured, whole: Measured) -> dict[str, Figure]:
    """Return the figures of both searches together: that of a search from nothing.

    `copies_hours_100k` takes describing as linear in the images, candidates and pairs as a line
    and a square through the two searches, and the time of a pair as it was.
    """
    describe_s = quarter.seconds.get("describe", 0.0) + whole.seconds.get("describe", 0.0)
    verify_s = quarter.seconds.get("verify", 0.0) + whole.seconds.get("verify", 0.0)
    candidates_s = whole.seconds.get("candidates", 0.0)
    minutes = (quarter.wall_s + whole.wall_s - quarter.seconds.get("candidates", 0.0)) / 60
    pairs = extrapolated(quarter.images, quarter.pairs, whole.images, whole.pairs)
    votes_s = extrapolated(
        quarter.images, quarter.seconds.get("candidates", 0.0), whole.images, candidates_s
    )
    far_s = describe_s * FAR / whole.images + votes_s + pairs * verify_s / max(1, whole.pairs)
    values = {
        "copies_describe_s": (describe_s, "s"),
        "copies_candidates_s": (candidates_s, "s"),
        "copies_verify_s": (verify_s, "s"),
        "copies_minutes": (minutes, "min"),
        "copies_processor_minutes": ((quarter.cpu_s + whole.cpu_s) / 60, "min"),
        "copies_memory_mb": (max(quarter.memory_mb, whole.memory_mb), "MB"),
        "copies_disk_mb": (whole.disk_mb, "MB"),
        "copies_pairs_verified": (whole.pairs, "pairs"),
        "copies_pairs_accepted": (whole.found, "pairs"),
        "copies_hours_100k": (far_s / 3600, "h"),
    }
    return {key: Figure(value, unit, 1, (value, value)) for key, (value, unit) in values.items()}


def extrapolated(few: int, at_few: float, many: int, at_many: float) -> float:
    """Return what a line and a square from nought through two points have at FAR images.

    Neither part is negative.
    """
    square = (at_many / many - at_few / few) / (many - few)
    square = min(max(0.0, square), at_many / many**2)
    line = at_many / many - square * many
    return line * FAR + square * FAR**2


def _measure(images: int, dataset: Path | None, workers: int, seed: int, pipe: Connection) -> None:
    from skindx.data.copies import find_copies

    with TemporaryDirectory(prefix="skindx-scale-") as temporary:
        out = Path(temporary)
        paths = [store.put(out, data, suffix)[1] for data, suffix in _images(images, dataset, seed)]
        order = np.random.default_rng(seed).permutation(len(paths))
        # Compiled functions are loaded, as in any process that has searched before.
        find_copies(out, sorted({paths[at] for at in order[:8]}), runner=LocalRunner(workers))
        for count in (len(paths) // 4, len(paths)):
            some = sorted({paths[at] for at in order[:count]})
            pipe.send(None)  # from here on memory counts
            pipe.send(_searched(out, some, workers))


def _searched(out: Path, paths: Sequence[str], workers: int) -> Measured:
    from skindx.data.copies import find_copies
    from skindx.data.copies.shards import folder_of

    tree, stages = ProcessTree(os.getpid()), Stages()
    start, cpu_s = time.perf_counter(), tree.cpu_s()
    found = find_copies(out, paths, runner=LocalRunner(workers), progress=stages)
    wall_s, cpu_s = time.perf_counter() - start, tree.cpu_s() - cpu_s
    kept = [file for file in folder_of(out.absolute()).rglob("*") if file.is_file()]
    return Measured(
        len(paths),
        stages.seconds,
        wall_s,
        cpu_s,
        _verified(out),
        sum(copy.same for copy in found),
        0.0,  # who watches from outside knows
        sum(file.stat().st_size for file in kept) / 1e6,
    )


def _verified(out: Path) -> int:
    import pyarrow.parquet as pq

    from skindx.data.copies.verified import verified_files

    return sum(pq.read_metadata(file).num_rows for file in verified_files(out))


def _images(images: int, dataset: Path | None, seed: int) -> Iterator[tuple[bytes, str]]:
    """Yield the images of a folder, then painted ones until there are enough."""
    given = _given(dataset) if dataset else []
    for path in given[:images]:
        yield path.read_bytes(), path.suffix.lower()
    pixels, kinds = None, sorted(KINDS)
    for index in range(images - len(given[:images])):
        if pixels is not None and index % COPIED == COPIED - 1:
            yield make_copy(kinds[index // COPIED % len(kinds)], pixels, index, seed), ".jpg"
            continue
        pixels = paint(CLASSES[index % len(CLASSES)], index, seed).pixels
        yield encode_jpeg(pixels), ".jpg"


def _given(dataset: Path) -> list[Path]:
    return sorted(
        path for path in dataset.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png")
    )
