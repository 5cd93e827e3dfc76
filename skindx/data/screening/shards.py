"""Screening in shards: a finished shard is a Parquet file, and is never screened again."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skindx.core.atomic_files import atomic_file, read_parquet
from skindx.data.runner import TaskRunner
from skindx.data.screening.screen import (
    Screened,
    ScreenSettings,
    from_plain,
    screen_files,
    to_plain,
)
from skindx.data.store import stored_file
from skindx.imaging.hashes import HashKind

SHARDS = ".shards"
"""Folder in the dataset folder; it goes when the dataset is whole."""

SHARD_PICTURES = 4000

_MEASURES = 3
"""Counts up when verdicts gain a measure: shards of a killed build of before are made again."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Images that are screened together. `paths` are relative to the dataset folder."""

    dataset: Path
    paths: tuple[str, ...]
    settings: ScreenSettings
    hashes: tuple[HashKind, ...]

    @property
    def file(self) -> Path:
        """The Parquet file of the verdicts, named by all that decides them."""
        what = [_MEASURES, self.paths, self.settings.model_dump(mode="json"), self.hashes]
        name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]
        return self.dataset / SHARDS / f"screened-{name}.parquet"

    def halves(self) -> "tuple[Shard, Shard]":
        """Cut the shard in two."""
        middle = len(self.paths) // 2
        first, second = self.paths[:middle], self.paths[middle:]
        return dataclasses.replace(self, paths=first), dataclasses.replace(self, paths=second)


def screen(
    dataset: Path,
    paths: Sequence[str],
    settings: ScreenSettings,
    hashes: Sequence[HashKind],
    *,
    runner: TaskRunner,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Screened]:
    """Screen stored images; the order is that of `paths`, which are relative to `dataset`.

    Killed at any moment, the same call goes on after its last finished shard. An image that ends
    its worker every time costs itself alone.
    """
    report = on_progress or (lambda done, total: None)
    if len(paths) <= SHARD_PICTURES:  # no shard would be finished before all is
        files = [stored_file(dataset, path) for path in paths]
        workers = runner.driver_workers
        return screen_files(files, settings, hashes, workers=workers, on_progress=on_progress)
    cuts = range(0, len(paths), SHARD_PICTURES)
    parts = [tuple(paths[start : start + SHARD_PICTURES]) for start in cuts]
    shards = [Shard(dataset.absolute(), part, settings, tuple(hashes)) for part in parts]
    done = sum(len(shard.paths) for shard in shards if shard.file.exists())
    report(done, len(paths))

    def on_shard(count: int) -> None:
        nonlocal done
        done += count
        report(done, len(paths))

    _screen_missing(shards, runner, on_shard)
    return [verdict for shard in shards for verdict in read_shard(shard.file)]


def _screen_missing(
    shards: Sequence[Shard], runner: TaskRunner, on_shard: Callable[[int], None]
) -> None:
    workers = runner.screen_workers
    missing = [(shard, workers) for shard in shards if not shard.file.exists()]
    lost = runner.run(screen_shard, missing, lambda task: on_shard(len(task[0].paths)))
    cut: list[tuple[Shard, tuple[Shard, Shard]]] = []
    for shard, _ in lost:
        if len(shard.paths) == 1:
            detail = "it ends the process that decodes it"
            none = np.empty((0, 0), np.uint64)
            write_shard(shard.file, [Screened("decode-crash", detail, 0, 0, none)])
            on_shard(1)
        else:
            cut.append((shard, shard.halves()))
    if cut:
        _screen_missing([half for _, halves in cut for half in halves], runner, on_shard)
    for shard, (first, second) in cut:
        write_shard(shard.file, read_shard(first.file) + read_shard(second.file))


def screen_shard(shard: Shard, workers: int) -> None:
    """Screen one shard and write its file; a task of the runner."""
    files = [stored_file(shard.dataset, path) for path in shard.paths]
    write_shard(shard.file, screen_files(files, shard.settings, shard.hashes, workers=workers))


def write_shard(file: Path, verdicts: Sequence[Screened]) -> None:
    """Write verdicts, atomically, one row an image."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [to_plain(verdict) for verdict in verdicts]
    codes = pa.list_(pa.list_(pa.uint64()))
    columns = {
        name: pa.array([row[name] for row in rows], codes if name == "codes_KO" else None)
        for name in rows[0]
    }
    with atomic_file(file) as temporary:
        pq.write_table(pa.table(columns), temporary)


def read_shard(file: Path) -> list[Screened]:
    """Read what `write_shard` wrote."""
    return [from_plain(row) for row in read_parquet(file).to_pylist()]


def remove_shards(dataset: Path) -> None:
    """Remove what only serves to resume, once the dataset is whole."""
    shutil.rmtree(dataset / SHARDS, ignore_errors=True)
