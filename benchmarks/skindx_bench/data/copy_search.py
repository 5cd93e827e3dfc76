"""The search for copies among many images, in a process of its own: time by stage, and memory."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, count, islice, product
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from skindx.core.errors import JobError, UserError
from skindx.core.machine import spawn_context
from skindx.data import layout
from skindx.data.synthetic.painter import CLASSES, encode_jpeg, paint
from skindx.workers.task_runner import LocalRunner
from skindx_bench.data.copy_variants import KINDS, make_copy
from skindx_bench.harness.conditions import ProcessTree
from skindx_bench.harness.result import Figure

COPIED = 10
"""Every so manieth image is a copy of the one before it."""
TILED = 400
"""Pixels a side from which on an image is cut into tiles."""
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
class Images:
    """Searched images: those of the folders first, then painted ones."""

    count: int
    folders: tuple[Path, ...] = ()
    tiles: int = 1
    """Parts a side into which the folders' images of TILED pixels and more are cut."""
    seed: int = 0

    def __iter__(self) -> Iterator[tuple[bytes, str]]:
        """Yield bytes and the ending of the file's name."""
        yield from islice(chain(self._given(), self._painted()), self.count)

    def _given(self) -> Iterator[tuple[bytes, str]]:
        for path in (path for folder in self.folders for path in sorted(folder.rglob("*"))):
            if path.suffix.lower() in (".jpg", ".jpeg", ".png"):
                yield from self._parts(path)

    def _parts(self, path: Path) -> Iterator[tuple[bytes, str]]:
        data = path.read_bytes()
        with Image.open(path) as image:
            if self.tiles == 1 or min(image.size) < TILED:
                yield data, path.suffix.lower()
                return
            pixels_HWC = np.asarray(image.convert("RGB"))
        height, width = (side // self.tiles for side in pixels_HWC.shape[:2])
        for row, column in product(range(self.tiles), repeat=2):
            part_HWC = pixels_HWC[row * height :, column * width :][:height, :width]
            yield encode_jpeg(np.ascontiguousarray(part_HWC)), ".jpg"

    def _painted(self) -> Iterator[tuple[bytes, str]]:
        pixels, kinds = None, sorted(KINDS)
        for index in count():
            if pixels is not None and index % COPIED == COPIED - 1:
                kind = kinds[index // COPIED % len(kinds)]
                yield make_copy(kind, pixels, index, self.seed), ".jpg"
                continue
            pixels = paint(CLASSES[index % len(CLASSES)], index, self.seed).pixels
            yield encode_jpeg(pixels), ".jpg"


@dataclass(frozen=True)
class Measured:
    """Cost of one search; `seconds` are wall seconds by stage."""

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


def measure(images: Images, workers: int) -> list[Measured]:
    """Search a quarter of the images, and then all of them, which goes on with what is there.

    Raises UserError for a folder that does not exist.
    """
    for folder in images.folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder; name one with images, or leave datasets out.")
    context = spawn_context()
    ours, theirs = context.Pipe()
    process = context.Process(target=_measure, args=(images, workers, theirs))
    process.start()
    theirs.close()
    assert process.pid is not None
    tree, most_mb = ProcessTree(process.pid), 0.0
    measured: list[Measured] = []
    try:
        while len(measured) < 2:
            if ours.poll(_SAMPLED_S):
                received = json.loads(ours.recv_bytes())
                most_mb = 0.0 if received is None else most_mb
                if received is not None:
                    measured.append(Measured(**{**received, "memory_mb": most_mb}))
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


def _measure(images: Images, workers: int, pipe: Connection) -> None:
    from skindx.data.copies.find import find_copies

    with TemporaryDirectory(prefix="skindx-scale-") as temporary:
        out = Path(temporary)
        paths = [layout.store_bytes(out, data, suffix)[1] for data, suffix in images]
        order = np.random.default_rng(images.seed).permutation(len(paths))
        # Compiled functions are loaded, as in any process that has searched before.
        find_copies(out, sorted({paths[at] for at in order[:8]}), runner=LocalRunner(workers))
        for count in (len(paths) // 4, len(paths)):
            some = sorted({paths[at] for at in order[:count]})
            pipe.send_bytes(b"null")  # from here on memory counts
            pipe.send_bytes(json.dumps(asdict(_searched(out, some, workers))).encode())


def _searched(out: Path, paths: Sequence[str], workers: int) -> Measured:
    from skindx.data.copies.describe import folder_of
    from skindx.data.copies.find import find_copies

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
