"""All copies among the stored images of a dataset, whichever runner computes them.

The search is cut into parts, each named by the file it leaves. A finished part is never made
again, and a part that is made twice gives the same bytes.
"""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import JobError
from skindx.core.progress import Progress, silent
from skindx.data.copies import copy_candidates
from skindx.data.copies.copy_candidates import (
    chunk_alike,
    chunk_candidates,
    load_chunk,
    recurring_keys,
)
from skindx.data.copies.describe import DescriptionLibrary, describe_missing, folder_of, sha256_of
from skindx.data.copies.hash_links import connected
from skindx.data.copies.verified import (
    read_verified,
    values_of,
    verified_files,
    verified_folder,
    write_verified,
)
from skindx.data.copies.verify import ACCEPT, REVIEW, Copy, verify
from skindx.data.screening.screen import SHARDS
from skindx.imaging.decode import import_decoders
from skindx.workers.sandbox import Failure, Work, for_each, run_sandboxed, sandboxed
from skindx.workers.task_runner import TaskRunner
from skindx.workers.worker_process import SandboxLimits

# N = images, P = pairs, K = keys


PAIRS, IMAGES = "pairs.npy", "images.npz"
"""What the parts of one job read: pairs of positions among the images; images, recurring keys."""
PART_PAIRS = 500
_LIMITS = SandboxLimits(timeout_s=3600, memory_mb=4000)
_PER_TASK = 64


def run_parts(
    dataset: Path, files: Sequence[Path], runner: TaskRunner, on_part: Callable[[int], None]
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
            f"{count} of {len(files)} parts of the search for copies crash their worker each "
            "time, probably for lack of memory; give the workers more memory and run the same "
            "command again."
        )


def make_parts(dataset: Path, files: Sequence[Path], workers: int) -> None:
    """Make parts; a task of the runner."""
    if workers == 1 or len(files) == 1:
        for file in files:
            make_part(dataset, file)
        return
    for _, answer in run_sandboxed(parts_work, {"dataset": str(dataset)}, files, _LIMITS, workers):
        if isinstance(answer, Failure):
            raise JobError(
                f"a part of the search for copies failed ({answer.detail}); run the same command "
                "again, which continues from the finished parts."
            )


@sandboxed(import_decoders)
def parts_work(job: dict[str, Any]) -> Work:
    """Return what makes the part of each file."""
    # Not before the fork: numba's memory would count in every other sandboxed process.
    from skindx.data.copies import candidate_kernels, geometry_kernels  # noqa: F401

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


def _join(library: DescriptionLibrary, folder: Path, made: Path, numbers: Sequence[int]) -> None:
    a, b, chunk = numbers
    sha256s, recurring = _images(folder)
    rows_C4 = join_chunks(library, sha256s, recurring, (a, b, chunk))
    with atomic_file(made) as temporary, temporary.open("wb") as file:
        np.save(file, rows_C4)


def _verify(library: DescriptionLibrary, folder: Path, made: Path, numbers: Sequence[int]) -> None:
    start, stop = numbers
    sha256s, _ = _images(folder)
    pairs_P2 = np.load(folder / PAIRS, mmap_mode="r")[start:stop]
    named = [(sha256s[i], sha256s[j]) for i, j in pairs_P2.tolist()]
    values = [values_of(verify(library[one], library[other])) for one, other in named]
    write_verified(made, named, np.array(values, np.float64))


_MAKERS: dict[str, Callable[..., None]] = {"votes": _join, "verified": _verify}


@lru_cache(maxsize=1)
def _library(dataset: Path, folder: Path) -> DescriptionLibrary:
    # One job has one folder: the shards are complete when its parts are made.
    return DescriptionLibrary(dataset)


@lru_cache(maxsize=1)
def _images(folder: Path) -> tuple[list[str], NDArray[np.uint64]]:
    """Return a job's images and its recurring keys, which its many parts share."""
    with np.load(folder / IMAGES) as file:
        return file["sha256s"].tolist(), file["recurring"]


def join_chunks(
    library: DescriptionLibrary,
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


def find_copies(
    dataset: Path,
    paths: Sequence[str],
    *,
    runner: TaskRunner,
    hash_candidates: NDArray[np.int64] | None = None,
    progress: Progress | None = None,
) -> list[Copy]:
    """Return the pairs of images that are copies or may be, sorted by their positions in `paths`.

    `paths` are relative to the dataset folder and named by SHA-256. `hash_candidates`, pairs_P2 of
    positions, are verified too, beside the pairs that share points. Killed at any moment, the same
    call goes on; no image is described again, and no pair verified again, that an earlier call has
    described or verified. The answer does not depend on that or on the runner, and whether a
    candidate is accepted not on the other images (`candidates` says what does). Raises JobError
    when the workers end before their parts do.
    """
    progress = progress or silent
    position: dict[str, int] = {}
    for at, path in enumerate(paths):
        position.setdefault(sha256_of(path), at)
    sha256s = sorted(position)
    describe_missing(dataset, [paths[position[sha256]] for sha256 in sha256s], runner, progress)
    row = {sha256: number for number, sha256 in enumerate(sha256s)}
    by_hash_P2 = np.empty((0, 2), np.int64)
    if hash_candidates is not None and len(hash_candidates):
        row_N = np.array([row[sha256_of(path)] for path in paths], np.int64)
        by_hash_P2 = _unique(row_N[hash_candidates])
    search = _Search(dataset.absolute(), sha256s, runner, progress)
    recurring = search.recurring(search.verify(by_hash_P2))
    by_points_P2 = search.candidates(recurring)
    verified_PV = search.verify(_unique(np.concatenate([by_hash_P2, by_points_P2])))
    copies = [_copy(values, sha256s, position) for values in verified_PV]
    return sorted(copies, key=lambda copy: (copy.first, copy.second))


def same_pictures(
    dataset: Path,
    paths: Sequence[str],
    pairs_P2: NDArray[np.int64],
    *,
    runner: TaskRunner,
    progress: Progress | None = None,
) -> NDArray[np.bool_]:
    """Return which pairs, positions in `paths`, the verification accepts as showing the same.

    Paths, evidence on disk and errors are those of `find_copies`; no other pair is looked for.
    """
    progress = progress or silent
    at_N = np.unique(pairs_P2)
    path_of = {sha256_of(paths[at]): paths[at] for at in at_N.tolist()}
    sha256s = sorted(path_of)
    row = {sha256: number for number, sha256 in enumerate(sha256s)}
    row_N = np.full(len(paths), -1, np.int64)
    row_N[at_N] = [row[sha256_of(paths[at])] for at in at_N.tolist()]
    wanted_P2 = np.sort(row_N[pairs_P2.reshape(-1, 2)], axis=1)
    if not len(wanted_P2):
        return np.zeros(0, np.bool_)
    describe_missing(dataset, [path_of[sha256] for sha256 in sha256s], runner, progress)
    verified_PV = _Search(dataset.absolute(), sha256s, runner, progress).verify(_unique(wanted_P2))
    accepted_P2 = verified_PV[verified_PV[:, 2] >= ACCEPT, :2].astype(np.int64)
    key_P, count = wanted_P2[:, 0] * len(sha256s) + wanted_P2[:, 1], len(sha256s)
    return np.isin(key_P, accepted_P2[:, 0] * count + accepted_P2[:, 1])


class _Search:
    """The steps of one search; each leaves its parts in a folder named by all that decides them."""

    def __init__(
        self, dataset: Path, sha256s: Sequence[str], runner: TaskRunner, progress: Progress
    ) -> None:
        self._dataset, self._sha256s = dataset, sha256s
        self._runner, self._progress = runner, progress
        c = copy_candidates
        voting = (c.VOTE_RADIUS, c.VOTES, c.VOTE_PROBES, c.PROBES, c.CHUNK_IMAGES, PART_PAIRS)
        alike = (c.ALIKE_RADIUS, c.ALIKE_NEAR, c.ALIKE_LEAST, c.LEADING_IMAGES)
        fixed = (folder_of(dataset).name, verified_folder(dataset).name, voting, alike)
        self._digest = hashlib.sha256(repr((fixed, list(sha256s))).encode())

    def verify(self, pairs_P2: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the evidence of the pairs that are copies or may be: positions and VALUES.

        Pairs that an earlier search verified are read.
        """
        files = verified_files(self._dataset)
        known_P, read_PV = read_verified(files, self._sha256s, pairs_P2, REVIEW)
        new_P2 = pairs_P2[~known_P]
        if not len(new_P2):
            return read_PV
        job = self._job(np.empty(0, np.uint64), new_P2)
        stops = [*range(PART_PAIRS, len(new_P2), PART_PAIRS), len(new_P2)]
        parts = [
            verified_file(self._dataset, job, i, j) for i, j in itertools.pairwise([0, *stops])
        ]
        self._run(parts, "verify", len(new_P2))
        _, new_PV = read_verified(parts, self._sha256s, new_P2, REVIEW)
        return np.concatenate([read_PV, new_PV])

    def candidates(self, recurring: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return pairs_P2 that share points, or are among the most alike of one of the two."""
        size = copy_candidates.CHUNK_IMAGES
        job = self._job(recurring, np.empty((0, 2), np.int64))
        chunks = range(-(-len(self._sha256s) // size))
        pairs = itertools.combinations_with_replacement(chunks, 2)
        files = [votes_file(self._dataset, job, a, b, size) for a, b in pairs]
        self._run(files, "candidates", len(self._sha256s))
        rows_C4 = np.concatenate([np.empty((0, 4), np.int64), *(np.load(file) for file in files)])
        voted_P2 = rows_C4[rows_C4[:, 2] > 0, :2]
        alike_P2 = copy_candidates.leading(rows_C4[rows_C4[:, 3] > 0][:, [0, 1, 3]])[:, :2]
        return _unique(np.concatenate([voted_P2, alike_P2]))

    def recurring(self, verified_PV: NDArray[np.float64]) -> NDArray[np.uint64]:
        """Return the keys of points that stand in too many families to separate them."""
        count = len(self._sha256s)
        links_P2 = verified_PV[verified_PV[:, 2] >= ACCEPT, :2].astype(np.int64)
        family_N = np.array(connected(count, links_P2) if count else [], np.int64)
        return recurring_keys(DescriptionLibrary(self._dataset), self._sha256s, family_N)

    def _job(self, recurring: NDArray[np.uint64], pairs_P2: NDArray[np.int64]) -> str:
        """Write what the parts of one job read; return its name."""
        digest = self._digest.copy()
        digest.update(recurring.tobytes() + pairs_P2.tobytes())
        job = digest.hexdigest()[:32]
        folder = job_folder(self._dataset, job)
        with atomic_file(folder / IMAGES) as temporary, temporary.open("wb") as file:
            np.savez(file, sha256s=np.array(self._sha256s), recurring=recurring)
        with atomic_file(folder / PAIRS) as temporary, temporary.open("wb") as file:
            np.save(file, pairs_P2)
        return job

    def _run(self, files: Sequence[Path], stage: str, total: int) -> None:
        done = 0

        def on_part(count: int) -> None:
            nonlocal done
            done += count
            self._progress(stage, total * done // len(files), total)

        if files:
            run_parts(self._dataset, files, self._runner, on_part)


def _unique(pairs_P2: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the pairs once, the smaller position first, without those of one image, sorted."""
    ordered_P2 = np.sort(pairs_P2, axis=1)
    ordered_P2 = ordered_P2[ordered_P2[:, 0] < ordered_P2[:, 1]]
    if not len(ordered_P2):
        return np.empty((0, 2), np.int64)
    return np.unique(ordered_P2, axis=0)


def _copy(values: NDArray[np.float64], sha256s: Sequence[str], position: dict[str, int]) -> Copy:
    i, j, probability, inliers, ncc, covered, mirrored, *transform = values.tolist()
    first, second = position[sha256s[int(i)]], position[sha256s[int(j)]]
    shown = (probability, int(inliers), ncc, covered, bool(mirrored), tuple(transform))
    copy = Copy(first, second, *shown)
    return copy if first < second else copy.turned()
