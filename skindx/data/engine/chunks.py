"""The join of picture hashes over pairs of chunks: bounded memory, and one task a pair.

Cut N codes into C chunks: the links within a chunk and between each two of them, C(C + 1)/2
joins that do not know of each other, are together the links of the one join over all N.
"""

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.engine import Engine
from skindx.data.engine.shards import SHARDS
from skindx.data.hashes import near_links
from skindx.data.join import turned_pairs_between, turned_pairs_within
from skindx.errors import JobError
from skindx.files import atomic_file

# N = codes, K = kinds of hash, O = orientations, L = links, P = pairs

CHUNK_CODES = 1 << 22
"""A pair of chunks takes some 2 GB with two kinds of hash in eight orientations."""


def near_links_by_chunks(
    codes_NKO: NDArray[np.uint64],
    radius: int,
    dataset: Path,
    engine: Engine,
    on_progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.int64]:
    """Return what `near_links` returns; above CHUNK_CODES codes it is joined by chunks.

    Codes and found links lie in the dataset folder meanwhile, so that workers share them and a
    build that was killed goes on. Raises JobError for a pair that ends its worker every time.
    """
    n = len(codes_NKO)
    if n <= CHUNK_CODES:
        return near_links(codes_NKO, radius)
    digest = hashlib.sha256(repr((codes_NKO.shape, radius, CHUNK_CODES)).encode())
    digest.update(np.ascontiguousarray(codes_NKO).data)
    folder = dataset.absolute() / SHARDS / f"links-{digest.hexdigest()[:32]}"
    with atomic_file(folder / "codes.npy") as temporary, temporary.open("wb") as file:
        np.save(file, codes_NKO)
    pairs = list(itertools.combinations_with_replacement(range(-(-n // CHUNK_CODES)), 2))
    missing = [pair for pair in pairs if not _file(folder, *pair).exists()]
    done = len(pairs) - len(missing)

    def on_done(_: object) -> None:
        nonlocal done
        done += 1
        if on_progress:
            on_progress(n * done // len(pairs), n)

    tasks = [(folder, a, b, radius, CHUNK_CODES) for a, b in missing]
    lost = engine.run(join_pair, tasks, on_done)
    if lost:
        raise JobError(
            f"{len(lost)} of {len(pairs)} parts of the comparison end their worker each time, "
            f"most likely for want of memory; give the workers more and run the same command again."
        )
    return sorted_links([np.load(_file(folder, *pair)) for pair in pairs])


def join_pair(folder: Path, a: int, b: int, radius: int, chunk: int) -> None:
    """Join chunk a with chunk b and write their links; a task of the engine."""
    codes_NKO = np.load(folder / "codes.npy", mmap_mode="r")
    with atomic_file(_file(folder, a, b)) as temporary, temporary.open("wb") as file:
        np.save(file, chunk_links(codes_NKO, a, b, radius, chunk))


def chunk_links(
    codes_NKO: NDArray[np.uint64], a: int, b: int, radius: int, chunk: int
) -> NDArray[np.int64]:
    """Return links_L3 between the a-th and the b-th chunk, a <= b, in positions of all codes."""
    first_NKO = np.asarray(codes_NKO[a * chunk : (a + 1) * chunk])
    if a == b:
        first_P, second_P, distance_P = turned_pairs_within(first_NKO, radius)
    else:
        second_NKO = np.asarray(codes_NKO[b * chunk : (b + 1) * chunk])
        first_P, second_P, distance_P = turned_pairs_between(first_NKO, second_NKO, radius)
    columns = (first_P + np.int64(a * chunk), second_P + np.int64(b * chunk), distance_P)
    links_L3: NDArray[np.int64] = np.stack(columns, axis=1, dtype=np.int64, casting="safe")
    return links_L3


def sorted_links(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the links of all pairs of chunks in the order in which one join gives them."""
    links_L3 = np.concatenate(parts)
    ordered: NDArray[np.int64] = links_L3[np.lexsort((links_L3[:, 1], links_L3[:, 0]))]
    return ordered


def _file(folder: Path, a: int, b: int) -> Path:
    return folder / f"{a}-{b}.npy"
