"""All copies among the stored images of a dataset, whoever computes them."""

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies import acceptance, votes
from skindx.data.copies.copy import ACCEPT, REVIEW, Copy
from skindx.data.copies.parts import COLUMNS, IMAGES, PAIRS, PART_PAIRS, run_parts
from skindx.data.copies.recurring import recurring_keys
from skindx.data.copies.shards import Library, describe_missing, folder_of, sha256_of
from skindx.data.dedup.clusters import connected
from skindx.data.runner import TaskRunner
from skindx.data.screening.shards import SHARDS
from skindx.files import atomic_file, sha256_file
from skindx.progress import Progress, silent

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
    call goes on; images that were described before are not described again. The answer does not
    depend on the runner, and whether a pair is accepted not on the other images (`recurring` says
    what does). Raises JobError when the workers end before their parts do.
    """
    progress = progress or silent
    position: dict[str, int] = {}
    for at, path in enumerate(paths):
        position.setdefault(sha256_of(path), at)
    sha256s = sorted(position)
    describe_missing(dataset, [paths[position[sha256]] for sha256 in sha256s], runner, progress)
    row = {position[sha256]: number for number, sha256 in enumerate(sha256s)}
    by_hash_P2 = np.empty((0, 2), np.int64)
    if hash_candidates is not None and len(hash_candidates):
        rows = [[row[position[sha256_of(paths[at])]] for at in pair] for pair in hash_candidates]
        by_hash_P2 = _unique(np.array(rows, np.int64))
    search = _Search(dataset.absolute(), sha256s, runner, progress)
    verified = search.verify(by_hash_P2)
    recurring = search.recurring(verified)
    by_points_P2 = search.candidates(recurring)
    known = {(i, j) for i, j in by_hash_P2.tolist()}
    new = [pair for pair in by_points_P2.tolist() if tuple(pair) not in known]
    verified = np.concatenate([verified, search.verify(np.array(new, np.int64).reshape(-1, 2))])
    found = [_copy(values, sha256s, position) for values in verified if values[2] >= REVIEW]
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
            sha256_file(acceptance.FILE),
            (votes.RADIUS, votes.VOTES, votes.PROBES, votes.CHUNK_IMAGES, PART_PAIRS),
        )
        self._digest = hashlib.sha256(repr((fixed, list(sha256s))).encode())

    def verify(self, pairs_P2: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the evidence of pairs, rows of COLUMNS values."""
        nothing = np.empty((0, COLUMNS))
        if not len(pairs_P2):
            return nothing
        folder = self._folder(np.empty(0, np.uint64), pairs_P2)
        stops = [*range(PART_PAIRS, len(pairs_P2), PART_PAIRS), len(pairs_P2)]
        files = [folder / f"verified-{i}-{j}.npy" for i, j in itertools.pairwise([0, *stops])]
        self._run(files, "verify", len(pairs_P2))
        return np.concatenate([nothing, *(np.load(file) for file in files)])

    def candidates(self, recurring: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return pairs_P2 that share points."""
        size = votes.CHUNK_IMAGES
        folder = self._folder(recurring, np.empty((0, 2), np.int64))
        chunks = range(-(-len(self._sha256s) // size))
        pairs = itertools.combinations_with_replacement(chunks, 2)
        files = [folder / f"votes-{a}-{b}-{size}.npy" for a, b in pairs]
        self._run(files, "candidates", len(self._sha256s))
        nothing = np.empty((0, 2), np.int64)
        return _unique(np.concatenate([nothing, *(np.load(file)[:, :2] for file in files)]))

    def recurring(self, verified: NDArray[np.float64]) -> NDArray[np.uint64]:
        """Return the keys of points that stand in too many families to be told apart by them."""
        count = len(self._sha256s)
        links_P2 = verified[verified[:, 2] >= ACCEPT, :2].astype(np.int64)
        family_N = np.array(connected(count, links_P2) if count else [], np.int64)
        return recurring_keys(Library(self._dataset), self._sha256s, family_N)

    def _folder(self, recurring: NDArray[np.uint64], pairs_P2: NDArray[np.int64]) -> Path:
        digest = self._digest.copy()
        digest.update(recurring.tobytes() + pairs_P2.tobytes())
        folder = self._dataset / SHARDS / f"copies-{digest.hexdigest()[:32]}"
        with atomic_file(folder / IMAGES) as temporary, temporary.open("wb") as file:
            np.savez(file, sha256s=np.array(self._sha256s), recurring=recurring)
        with atomic_file(folder / PAIRS) as temporary, temporary.open("wb") as file:
            np.save(file, pairs_P2)
        return folder

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
