"""Parts of the search, each named by the file it leaves: run by this machine's cores or a cluster.

A finished part is never made again, and a part that is made twice gives the same bytes.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import JobError
from skindx.data.copies.alike import chunk_alike
from skindx.data.copies.shards import Library
from skindx.data.copies.verified import values_of, verified_folder, write_verified
from skindx.data.copies.verify import verify
from skindx.data.copies.votes import chunk_candidates, load_chunk
from skindx.data.runner import TaskRunner
from skindx.data.screening.shards import SHARDS
from skindx.imaging.decode import import_decoders
from skindx.workers.sandbox import Failure, Limits, Work, for_each, run_sandboxed, sandboxed

PAIRS, IMAGES = "pairs.npy", "images.npz"
"""What the parts of one job read: pairs of positions among the images; images, recurring keys."""
PART_PAIRS = 500
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


@sandboxed(import_decoders)
def making(job: dict[str, Any]) -> Work:
    """Return what makes the part of each file."""
    # Not before the fork: numba's memory would count in every other sandboxed process.
    from skindx.data.copies import alike_kernels, geometry_kernels, vote_kernels  # noqa: F401

    dataset = Path(job["dataset"])

    def work(file: Path) -> bool:
        make_part(dataset, file)
        return True

    return for_each(work)


def make_part(dataset: Path, file: Path) -> None:
    """Make the part that leaves this file: `votes_file` and `verified_file` name them."""
    kind, job, *numbers = file.stem.split("-")
    folder = job_folder(dataset, job)
    _MAKERS[kind](_library(dataset, folder), folder, file, [int(number) for number in numbers])


def job_folder(dataset: Path, job: str) -> Path:
    """Return where the images and pairs of a job stand."""
    return dataset / SHARDS / f"copies-{job}"


def votes_file(dataset: Path, job: str, a: int, b: int, chunk: int) -> Path:
    """Return the file of the candidates between the a-th and the b-th run of `chunk` images."""
    return job_folder(dataset, job) / f"votes-{job}-{a}-{b}-{chunk}.npy"


def verified_file(dataset: Path, job: str, start: int, stop: int) -> Path:
    """Return the file of the evidence of a job's pairs from `start` to before `stop`."""
    return verified_folder(dataset) / f"verified-{job}-{start}-{stop}.parquet"


def _join(library: Library, folder: Path, made: Path, numbers: Sequence[int]) -> None:
    a, b, chunk = numbers
    sha256s, recurring = _images(folder)
    found_C4 = join_chunks(library, sha256s, recurring, (a, b, chunk))
    with atomic_file(made) as temporary, temporary.open("wb") as opened:
        np.save(opened, found_C4)


def _verify(library: Library, folder: Path, made: Path, numbers: Sequence[int]) -> None:
    start, stop = numbers
    sha256s, _ = _images(folder)
    pairs_P2 = np.load(folder / PAIRS, mmap_mode="r")[start:stop]
    named = [(sha256s[i], sha256s[j]) for i, j in pairs_P2.tolist()]
    values = [values_of(verify(library[one], library[other])) for one, other in named]
    write_verified(made, named, np.array(values, np.float64))


_MAKERS: dict[str, Callable[..., None]] = {"votes": _join, "verified": _verify}


@lru_cache(maxsize=1)
def _library(dataset: Path, folder: Path) -> Library:
    # One job has one folder: the shards are complete when its parts are made.
    return Library(dataset)


@lru_cache(maxsize=1)
def _images(folder: Path) -> tuple[list[str], NDArray[np.uint64]]:
    """Return a job's images and its recurring keys, which its many parts share."""
    with np.load(folder / IMAGES) as file:
        return file["sha256s"].tolist(), file["recurring"]


def join_chunks(
    library: Library,
    sha256s: Sequence[str],
    recurring: NDArray[np.uint64],
    part: tuple[int, int, int],
) -> NDArray[np.int64]:
    """Return candidates_C4, rows (first, second, votes, likeness) in positions of all images.

    The part is (a, b, chunk): the a-th and the b-th run of `chunk` images, a <= b. A row has votes
    or a likeness, and 0 for the other one; a pair may have a row of each.
    """
    a, b, chunk = part
    firsts = load_chunk(library, sha256s[a * chunk : (a + 1) * chunk], recurring)
    seconds = firsts
    if a != b:
        seconds = load_chunk(library, sha256s[b * chunk : (b + 1) * chunk], recurring)
    voted_C3 = chunk_candidates(firsts, seconds, a == b)
    alike_C3 = chunk_alike(firsts, seconds, a == b)
    rows_C4 = np.concatenate([np.insert(voted_C3, 3, 0, axis=1), np.insert(alike_C3, 2, 0, axis=1)])
    return rows_C4 + np.array([a * chunk, b * chunk, 0, 0], np.int64)
