"""Descriptions on disk, by SHA-256: an image is described once, and a kill loses at most a shard.

A shard is an Arrow file with a row an image. Its columns are read where they lie, so that many
shards are open at once and the memory holds what is asked for.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file, sha256_file
from skindx.core.progress import Progress
from skindx.data.copies.describe import (
    CODEBOOK_FILE,
    COMPONENTS,
    NEAREST,
    Description,
    describe_bytes,
)
from skindx.data.layout import stored_file
from skindx.imaging.decode import import_decoders
from skindx.imaging.image_formats import DamagedImage
from skindx.workers.sandbox import Failure, Work, for_each, run_sandboxed, sandboxed
from skindx.workers.task_runner import TaskRunner
from skindx.workers.worker_process import SandboxLimits

DESCRIPTIONS = "copies"
"""Folder in the dataset folder. It may be deleted; what is needed is described again."""

SHARD_IMAGES = 1000
_LIMITS = SandboxLimits(timeout_s=60, memory_mb=600)
_VERSION = 1
"""Counts up when descriptions change, so that older ones are made again."""


def sha256_of(path: str) -> str:
    """Return the SHA-256 that names a stored file."""
    return PurePath(path).name.partition(".")[0]


def folder_of(dataset: Path) -> Path:
    """Return the folder of the descriptions that this version makes."""
    return dataset / DESCRIPTIONS / f"v{_VERSION}-{sha256_file(CODEBOOK_FILE)[:12]}"


def describe_missing(
    dataset: Path, paths: Sequence[str], runner: TaskRunner, progress: Progress
) -> None:
    """Describe the images that no shard holds yet, in tasks of SHARD_IMAGES.

    An image that cannot be decoded, or ends its decoder, is described by no points.
    """
    folder = folder_of(dataset.absolute())
    known = {sha256 for file in shard_files(folder) for sha256 in DescriptionShard(file).sha256s}
    missing = [path for path in paths if sha256_of(path) not in known]
    done = len(paths) - len(missing)
    progress("describe", done, len(paths))
    cuts = range(0, len(missing), SHARD_IMAGES)
    parts = [tuple(missing[start : start + SHARD_IMAGES]) for start in cuts]

    def on_shard(task: tuple[Any, ...]) -> None:
        nonlocal done
        done += len(task[1])
        progress("describe", done, len(paths))

    tasks = [(dataset.absolute(), part, runner.screen_workers) for part in parts]
    for _, part, _ in runner.run(describe_shard, tasks, on_shard):
        # The decoders are processes of their own: this is a worker that was taken away.
        describe_shard(dataset.absolute(), part, runner.driver_workers)


def describe_shard(dataset: Path, paths: Sequence[str], workers: int) -> None:
    """Describe images and write their shard; a task of the runner."""
    rows: list[dict[str, Any]] = [{}] * len(paths)
    files = [stored_file(dataset, path) for path in paths]
    for at, answer in run_sandboxed(description_work, {}, files, _LIMITS, workers):
        rows[at] = _NOTHING if isinstance(answer, Failure) else answer
    names = [sha256_of(path) for path in paths]
    write_shard(folder_of(dataset), names, rows)


def _prepare() -> None:
    import cv2

    import_decoders()
    cv2.SIFT.create()


@sandboxed(_prepare)
def description_work(job: dict[str, Any]) -> Work:
    """Return what describes files, in plain values."""
    return for_each(_described)


def _described(file: Path) -> dict[str, Any]:
    try:
        return to_row(describe_bytes(file.read_bytes()))
    except (OSError, DamagedImage, MemoryError):
        return _NOTHING


def to_row(description: Description) -> dict[str, Any]:
    """Return plain values, arrays as bytes."""
    (height, width), (small_height, small_width) = description.shape_hw, description.small_HW.shape
    return {
        "sides": [height, width, small_height, small_width],
        "small": description.small_HW.tobytes(),
        "points": description.points_P4.tobytes(),
        "codes": description.codes_PC.tobytes(),
        "nearest": description.nearest_PHR.tobytes(),
        "mirrored": description.mirrored_PHR.tobytes(),
    }


_NOTHING: dict[str, Any] = {
    "sides": [0, 0, 0, 0],
    **dict.fromkeys(("small", "points", "codes", "nearest", "mirrored"), b""),
}


def write_shard(folder: Path, sha256s: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Write descriptions, atomically, one row an image; the file is named by its images."""
    import pyarrow as pa

    digest = hashlib.sha256("\n".join(sha256s).encode()).hexdigest()[:32]
    file = folder / f"described-{digest}.arrow"

    types = {"sides": pa.list_(pa.int16(), 4)}
    columns: dict[str, Any] = {"sha256": pa.array(sha256s, pa.string())}
    for name in _NOTHING:
        values = [row[name] for row in rows]
        columns[name] = pa.array(values, types.get(name, pa.large_binary()))
    table = pa.table(columns)
    with (
        atomic_file(file) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=max(1, len(table)))


def shard_files(folder: Path) -> list[Path]:
    """Return the finished shards in a folder of descriptions, in the order of their names."""
    return sorted(folder.glob("described-*.arrow"))


class DescriptionShard:
    """One file of descriptions, mapped into memory."""

    def __init__(self, file: Path) -> None:
        import pyarrow as pa

        self.file = file
        with pa.memory_map(str(file)) as source:
            table = pa.ipc.open_file(source).read_all()
        self.sha256s: list[str] = table["sha256"].to_pylist()
        self._columns = {
            name: table[name].combine_chunks()
            if table[name].num_chunks != 1
            else table[name].chunk(0)
            for name in _NOTHING
        }

    def description(self, row: int) -> Description:
        """Return one image's description, as views of the file."""
        height, width, small_height, small_width = self._columns["sides"][row].as_py()
        words = (-1, 2, NEAREST)
        return Description(
            (height, width),
            self._array("small", row, np.uint8).reshape(small_height, small_width),
            self._array("points", row, np.float32).reshape(-1, 4),
            self._array("codes", row, np.int8).reshape(-1, COMPONENTS),
            self._array("nearest", row, np.uint8).reshape(words),
            self._array("mirrored", row, np.uint8).reshape(words),
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows as `write_shard` takes them."""
        count = len(self.sha256s)
        return [
            {name: self._columns[name][row].as_py() for name in _NOTHING} for row in range(count)
        ]

    def _array(self, name: str, row: int, kind: Any) -> NDArray[Any]:
        buffer = self._columns[name][row].as_buffer()
        return np.frombuffer(buffer, kind) if buffer.size else np.empty(0, kind)


@dataclass(frozen=True)
class ShardRow:
    """Position of one image's description."""

    shard: int
    row: int


class DescriptionLibrary:
    """The descriptions of a dataset folder, found by SHA-256."""

    def __init__(self, dataset: Path) -> None:
        """Open the shards."""
        self._shards = [
            DescriptionShard(file) for file in shard_files(folder_of(dataset.absolute()))
        ]
        self._places = {
            sha256: ShardRow(number, row)
            for number, shard in enumerate(self._shards)
            for row, sha256 in enumerate(shard.sha256s)
        }

    def __contains__(self, sha256: object) -> bool:
        return sha256 in self._places

    def __getitem__(self, sha256: str) -> Description:
        place = self._places[sha256]
        return self._shards[place.shard].description(place.row)
