"""The join of image hashes over pairs of chunks: bounded memory, and one task a pair.

Cut N codes into C chunks: the pairs within each chunk and between each two of them, C(C + 1)/2
joins that need not know of each other, are together the pairs of the one join over all N.
"""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import JobError
from skindx.data.dedup.join import turned_pairs_between, turned_pairs_within
from skindx.data.dedup.links import near_links
from skindx.data.runner import TaskRunner
from skindx.data.screening.shards import SHARDS

# N = codes, K = kinds of hash, O = orientations, P = pairs

CHUNK_CODES = 1 << 22
"""A pair of chunks takes some 2 GB with two kinds of hash in eight orientations."""


Pairs = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]
"""(first_P, second_P, distance_P)."""


def near_links_by_chunks(
    codes_NKO: NDArray[np.uint64],
    radius: int,
    dataset: Path,
    runner: TaskRunner,
    on_progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.int64]:
    """Return what `near_links` returns; above CHUNK_CODES codes it is joined by chunks.

    Codes and found pairs lie in the dataset folder meanwhile, so that workers share them and a
    build that was killed goes on. Raises JobError for a pair of chunks that ends its worker every
    time.
    """

    def join(codes_NKO: NDArray[np.uint64], radius: int) -> tuple[Any, Any, Any]:
        if len(codes_NKO) <= CHUNK_CODES:
            return turned_pairs_within(codes_NKO, radius)
        return _join_chunks(codes_NKO, radius, dataset, runner, on_progress)

    return near_links(codes_NKO, radius, join)


def _join_chunks(
    codes_NKO: NDArray[np.uint64],
    radius: int,
    dataset: Path,
    runner: TaskRunner,
    on_progress: Callable[[int, int], None] | None,
) -> Pairs:
    n = len(codes_NKO)
    digest = hashlib.sha256(repr((codes_NKO.shape, radius, CHUNK_CODES)).encode())
    digest.update(np.ascontiguousarray(codes_NKO).data)
    folder = dataset.absolute() / SHARDS / f"pairs-{digest.hexdigest()[:32]}"
    with atomic_file(folder / "codes.npy") as temporary, temporary.open("wb") as file:
        np.save(file, codes_NKO)
    parts = list(itertools.combinations_with_replacement(range(-(-n // CHUNK_CODES)), 2))
    missing = [part for part in parts if not _file(folder, *part).exists()]
    done = len(parts) - len(missing)

    def on_part(_: object) -> None:
        nonlocal done
        done += 1
        if on_progress:
            on_progress(n * done // len(parts), n)

    tasks = [(folder, a, b, radius, CHUNK_CODES) for a, b in missing]
    lost = runner.run(join_part, tasks, on_part)
    if lost:
        raise JobError(
            f"{len(lost)} of {len(parts)} parts of the comparison end their worker each time, "
            f"most likely for want of memory; give the workers more and run the same command again."
        )
    return in_order([_read(_file(folder, *part)) for part in parts])


def join_part(folder: Path, a: int, b: int, radius: int, chunk: int) -> None:
    """Join chunk a with chunk b and write their pairs; a task of the runner."""
    codes_NKO = np.load(folder / "codes.npy", mmap_mode="r")
    first_P, second_P, distance_P = chunk_pairs(codes_NKO, a, b, radius, chunk)
    with atomic_file(_file(folder, a, b)) as temporary, temporary.open("wb") as file:
        np.savez(file, first_P=first_P, second_P=second_P, distance_P=distance_P)


def chunk_pairs(codes_NKO: NDArray[np.uint64], a: int, b: int, radius: int, chunk: int) -> Pairs:
    """Return the pairs of the a-th and the b-th chunk, a <= b, in positions of all codes."""
    firsts_NKO = np.asarray(codes_NKO[a * chunk : (a + 1) * chunk])
    if a == b:
        first_P, second_P, distance_P = turned_pairs_within(firsts_NKO, radius)
    else:
        seconds_NKO = np.asarray(codes_NKO[b * chunk : (b + 1) * chunk])
        first_P, second_P, distance_P = turned_pairs_between(firsts_NKO, seconds_NKO, radius)
    return first_P + np.int64(a * chunk), second_P + np.int64(b * chunk), distance_P


def in_order(parts: Sequence[Pairs]) -> Pairs:
    """Return the pairs of all chunks in the order in which one join gives them."""
    first_P, second_P, distance_P = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((second_P, first_P))
    return first_P[order], second_P[order], distance_P[order]


def _read(file: Path) -> Pairs:
    with np.load(file) as columns:
        return columns["first_P"], columns["second_P"], columns["distance_P"]


def _file(folder: Path, a: int, b: int) -> Path:
    return folder / f"{a}-{b}.npz"
