"""All copies among the stored images of a dataset, whichever runner computes them."""

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file
from skindx.core.progress import Progress, silent
from skindx.data.copies import alike, votes
from skindx.data.copies.copy import ACCEPT, REVIEW, Copy
from skindx.data.copies.parts import (
    IMAGES,
    PAIRS,
    PART_PAIRS,
    job_folder,
    run_parts,
    verified_file,
    votes_file,
)
from skindx.data.copies.recurring import recurring_keys
from skindx.data.copies.shards import Library, describe_missing, folder_of, sha256_of
from skindx.data.copies.verified import read_verified, verified_files, verified_folder
from skindx.data.dedup.clusters import connected
from skindx.data.runner import TaskRunner

# N = images, P = pairs, K = keys


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
    candidate is accepted not on the other images (`recurring` and `alike` say what does). Raises
    JobError when the workers end before their parts do.
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
    found = [_copy(values, sha256s, position) for values in verified_PV]
    return sorted(found, key=lambda copy: (copy.first, copy.second))


class _Search:
    """The steps of one search; each leaves its parts in a folder named by all that decides them."""

    def __init__(
        self, dataset: Path, sha256s: Sequence[str], runner: TaskRunner, progress: Progress
    ) -> None:
        self._dataset, self._sha256s = dataset, sha256s
        self._runner, self._progress = runner, progress
        fixed = (
            folder_of(dataset).name,
            verified_folder(dataset).name,
            (votes.RADIUS, votes.VOTES, votes.PROBES, votes.CHUNK_IMAGES, PART_PAIRS),
            (alike.RADIUS, alike.NEAR, alike.LEAST, alike.LEADING_IMAGES),
        )
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
        size = votes.CHUNK_IMAGES
        job = self._job(recurring, np.empty((0, 2), np.int64))
        chunks = range(-(-len(self._sha256s) // size))
        pairs = itertools.combinations_with_replacement(chunks, 2)
        files = [votes_file(self._dataset, job, a, b, size) for a, b in pairs]
        self._run(files, "candidates", len(self._sha256s))
        rows_C4 = np.concatenate([np.empty((0, 4), np.int64), *(np.load(file) for file in files)])
        voted_P2 = rows_C4[rows_C4[:, 2] > 0, :2]
        alike_P2 = alike.leading(rows_C4[rows_C4[:, 3] > 0][:, [0, 1, 3]])[:, :2]
        return _unique(np.concatenate([voted_P2, alike_P2]))

    def recurring(self, verified_PV: NDArray[np.float64]) -> NDArray[np.uint64]:
        """Return the keys of points that stand in too many families to separate them."""
        count = len(self._sha256s)
        links_P2 = verified_PV[verified_PV[:, 2] >= ACCEPT, :2].astype(np.int64)
        family_N = np.array(connected(count, links_P2) if count else [], np.int64)
        return recurring_keys(Library(self._dataset), self._sha256s, family_N)

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
    unique_P2: NDArray[np.int64] = np.unique(ordered_P2, axis=0)
    return unique_P2


def _copy(values: NDArray[np.float64], sha256s: Sequence[str], position: dict[str, int]) -> Copy:
    i, j, probability, inliers, ncc, covered, mirrored, *transform = values.tolist()
    first, second = position[sha256s[int(i)]], position[sha256s[int(j)]]
    shown = (probability, int(inliers), ncc, covered, bool(mirrored), tuple(transform))
    copy = Copy(first, second, *shown)
    return copy if first < second else copy.turned()
