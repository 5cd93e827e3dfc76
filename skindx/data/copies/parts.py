"""Parts of the search, each named by the file it leaves: run by this machine's cores or a cluster.

A finished part is never made again, and a part that is made twice gives the same bytes.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from skindx.data.copies.shards import Library
from skindx.data.copies.verify import verify
from skindx.data.copies.votes import join_chunks
from skindx.data.runner import TaskRunner
from skindx.errors import JobError
from skindx.files import atomic_file
from skindx.workers.sandbox import Failure, Limits, Work, for_each, run_sandboxed, sandboxed

PAIRS, IMAGES = "pairs.npy", "images.npz"
"""What the parts of one job read: pairs of positions among the images; images, recurring keys."""
PART_PAIRS = 500
COLUMNS = 13
"""Of a verified pair: two positions, probability, inliers, NCC, covered, mirrored, transform."""
_LIMITS = Limits(timeout_s=3600, memory_mb=4000)
_PER_TASK = 64


def run_parts(
    dataset: Path,
    files: Sequence[Path],
    runner: TaskRunner,
    on_part: Callable[[int], None],
) -> None:
    """Make the parts whose files are missing. Raises JobError for parts that cannot be made."""
    workers = runner.screen_workers
    missing = [file for file in files if not file.exists()]
    on_part(len(files) - len(missing))
    # Processes take a second to start: on one machine a task is worth it, on a cluster each
    # worker is one already.
    size = 1 if workers == 1 else _PER_TASK * workers
    cuts = range(0, len(missing), size)
    tasks = [(dataset.absolute(), tuple(missing[start : start + size]), workers) for start in cuts]
    lost = runner.run(make_parts, tasks, lambda task: on_part(len(task[1])))
    if lost:
        count = sum(len(task[1]) for task in lost)
        raise JobError(
            f"{count} of {len(files)} parts of the search for copies end their worker each time, "
            f"most likely for want of memory; give the workers more and run the same command "
            f"again."
        )


def make_parts(dataset: Path, files: Sequence[Path], workers: int) -> None:
    """Make parts; a task of the runner."""
    if workers == 1 or len(files) == 1:
        for file in files:
            make_part(dataset, file)
        return
    for _, answer in run_sandboxed(making, {"dataset": str(dataset)}, files, _LIMITS, workers):
        if isinstance(answer, Failure):
            raise JobError(
                f"a part of the search for copies did not end well ({answer.detail}); run the "
                f"same command again, which goes on with what is finished."
            )


@sandboxed
def making(job: dict[str, Any]) -> Work:
    """Return what makes the part of each file."""
    import cv2

    from skindx.data.copies import geometry_kernels, vote_kernels  # noqa: F401

    cv2.setNumThreads(1)
    dataset = Path(job["dataset"])

    def work(file: Path) -> bool:
        make_part(dataset, file)
        return True

    return for_each(work)


def make_part(dataset: Path, file: Path) -> None:
    """Make the part that leaves this file."""
    kind, *numbers = file.stem.split("-")
    made = _MAKERS[kind](_library(dataset, file.parent), file.parent, *map(int, numbers))
    with atomic_file(file) as temporary, temporary.open("wb") as opened:
        np.save(opened, made)


def _join(library: Library, folder: Path, a: int, b: int, chunk: int) -> Any:
    with np.load(folder / IMAGES) as file:
        sha256s, recurring = file["sha256s"].tolist(), file["recurring"]
    return join_chunks(library, sha256s, recurring, (a, b, chunk))


def _verify(library: Library, folder: Path, start: int, stop: int) -> Any:
    with np.load(folder / IMAGES) as file:
        sha256s = file["sha256s"].tolist()
    rows = []
    for i, j in np.load(folder / PAIRS, mmap_mode="r")[start:stop].tolist():
        copy = verify(library[sha256s[i]], library[sha256s[j]])
        if copy is not None:
            shown = (copy.probability, copy.inliers, copy.ncc, copy.covered, copy.mirrored)
            rows.append((i, j, *shown, *copy.transform_23))
    return np.array(rows, np.float64).reshape(-1, COLUMNS)


_MAKERS: dict[str, Callable[..., Any]] = {"votes": _join, "verified": _verify}


@lru_cache(maxsize=1)
def _library(dataset: Path, folder: Path) -> Library:
    # One job has one folder: the shards are complete when its parts are made.
    return Library(dataset)
