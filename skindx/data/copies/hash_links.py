"""Links between near images: all pairs of hashes within a Hamming radius, and their clusters.

The radius of duplicates is `DedupSettings.radius` (deduplicate.py), that of groups
`GroupSettings.radius` (splits/groups.py).

*Join* of 64-bit hashes: exact, by pigeonhole buckets. Cut 64 bits into radius + a blocks: two codes
within the radius agree in at least a of them. So each choice of a blocks buckets the codes by the
bits of these blocks, and only codes of one bucket are compared. a = 0 is one bucket: brute force.
Each pair is given once, by the first a blocks in which it agrees.

*Chunks*: cut N codes into C chunks: the pairs within each chunk and between each two of them,
C(C + 1)/2 joins that need not know of each other, are together the pairs of the one join over all
N. So memory is bounded, and a pair of chunks is one task.

*Clusters*: images of equal codes count as one, so nothing explodes. c images of equal codes are
c - 1 links from the first to the others, and not c(c - 1)/2. That loses nothing: they are equally
far from everything, so that any of them stands for all.

A link says that two images are alike to the hashes, not that they show the same: dark moles on
light skin chain by the hundred. So a build groups by the links that the pixels confirm
(build/copy_stage.py), and drops only direct neighbours of what it keeps (`centres`).
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import JobError, UserError
from skindx.core.machine import require_extra
from skindx.data.screening.screen import SHARDS
from skindx.workers.task_runner import TaskRunner

if TYPE_CHECKING:
    from types import ModuleType

# N = images or codes, K = kinds of hash, O = orientations, U = different codes, M = blocks,
# P = pairs, L = links, E = links, both ways; a node is an image that stands for its equals


HashPairs = tuple[NDArray[Any], NDArray[Any], NDArray[np.uint8]]
"""(first_P, second_P, distance_P), positions in int32 or int64."""

MOST_CODES = 1 << 28
MOST_CHOICES = 5000
MOST_PAIRS = 50_000_000
"""Most pairs: more would take gigabytes and only say that everything looks like everything."""
SORT_NS, TABLE_NS, COMPARE_NS = 12.0, 1.5, 0.2
"""Nanoseconds to sort a code, make a bucket, compare a pair; they choose only the plan."""


def pairs_within(codes_N: NDArray[np.uint64], radius: int) -> HashPairs:
    """Return (first_P, second_P, distance_P) of all pairs within `radius` bits.

    first < second; each pair stands once, sorted by first, then second. One thread. Memory is
    17 bytes a pair and some 50 bytes a code; the pairs of c equal codes are c(c - 1)/2. Raises
    UserError when numba is not installed, or for more than MOST_PAIRS.
    """
    return turned_pairs_within(np.asarray(codes_N, np.uint64).reshape(-1, 1, 1), radius)


def turned_pairs_within(codes_NKO: NDArray[np.uint64], radius: int) -> HashPairs:
    """Return `pairs_within` for images with K codes in O orientations.

    The distance of first and second is, over the orientations of first, the least of the largest
    Hamming distance among the K kinds: all kinds must agree on the same orientation. Second
    stays in orientation 0.
    """
    return _join(np.ascontiguousarray(codes_NKO, np.uint64), len(codes_NKO), 0, radius)


def turned_pairs_between(
    firsts_NKO: NDArray[np.uint64], seconds_NKO: NDArray[np.uint64], radius: int
) -> HashPairs:
    """Return `turned_pairs_within` for a first out of one array and a second out of another."""
    codes_NKO = np.concatenate([firsts_NKO, seconds_NKO])
    n = len(firsts_NKO)
    first_P, second_P, distance_P = _join(codes_NKO, n, n, radius)
    return first_P, second_P - np.int32(n), distance_P


def _join(codes_NKO: NDArray[np.uint64], end: int, start: int, radius: int) -> HashPairs:
    """Return the pairs of a first before `end` and a second from `start` on."""
    n, _, orientations = codes_NKO.shape
    assert n < MOST_CODES, n
    assert radius >= 0, radius
    kernels = import_kernels()
    # One kind is enough to find the pairs; the kernel compares the others there.
    codes_ON = np.ascontiguousarray(codes_NKO[:, 0].T)
    agree = _must_agree(n, radius)
    blocks = _cut(radius + agree if agree else 0)
    masks = np.array([((1 << width) - 1) << shift for shift, width in blocks], np.uint64)
    packed_P, filled = np.empty(1024, np.int64), 0
    for chosen in itertools.combinations(range(len(blocks)), agree):
        buckets = _key([blocks[block] for block in chosen], n)
        starts, codes, position = kernels.bucket_sort(codes_ON[0, start:], *buckets)
        upright = turned = (starts, codes, position + np.int32(start))
        for orientation in range(orientations):
            if orientation or start:
                turned = kernels.bucket_sort(codes_ON[orientation, :end], *buckets)
            what = (codes_NKO, orientation, radius, masks, np.array(chosen, np.int64))
            new = kernels.emit(*what, turned, upright, packed_P[filled:])
            if filled + new > MOST_PAIRS:
                raise UserError(
                    f"more than {MOST_PAIRS:,} pairs of the {n:,} images look alike by their "
                    f"hashes (within {radius} bits); lower `dedup.radius` and `groups.radius` in "
                    "the recipe, or remove such images from the sources."
                )
            if filled + new > len(packed_P):
                packed_P.resize(filled + new + len(packed_P) // 2, refcheck=False)
                kernels.emit(*what, turned, upright, packed_P[filled:])
            filled += new
    packed_P.resize(filled, refcheck=False)
    packed_P.sort()
    first_P, second_P, distance_P = kernels.unpack(packed_P)
    return first_P, second_P, distance_P


def _must_agree(n: int, radius: int) -> int:
    """Return the a that joins evenly spread codes fastest; the answer is the same with any."""

    def cost_ns(agree: int) -> float:
        bits = min(64 * agree / (radius + agree), _most_bits(n)) if agree else 0
        choice_ns = n * SORT_NS + 2**bits * TABLE_NS + n * n / 2 ** (bits + 1) * COMPARE_NS
        return math.comb(radius + agree, agree) * choice_ns

    blocks_fit = range(1, 65 - radius)
    few = (agree for agree in blocks_fit if math.comb(radius + agree, agree) <= MOST_CHOICES)
    return min((0, *few), key=cost_ns)


def _cut(count: int) -> list[tuple[int, int]]:
    """Return (shift, width) of the blocks."""
    edges = [64 * block // max(count, 1) for block in range(count + 1)]
    return [(low, high - low) for low, high in itertools.pairwise(edges)]


def _key(
    blocks: Sequence[tuple[int, int]], n: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return shifts and widths of the bits that tell buckets apart: not more than n calls for.

    Codes that agree in the blocks share a bucket also when some bits are left out.
    """
    left, shifts, widths = _most_bits(n), [], []
    for shift, width in blocks:
        shifts.append(shift)
        widths.append(min(width, left))
        left -= widths[-1]
    return np.array(shifts, np.uint64), np.array(widths, np.uint64)


def _most_bits(n: int) -> int:
    return max(n, 1).bit_length()


def import_kernels() -> "ModuleType":
    """Return the compiled part of the join. Raises UserError without the `data` extra."""
    require_extra("data", "numba", purpose="the search for near duplicates")
    from skindx.data.copies import candidate_kernels

    return candidate_kernels


EQUAL = -1
"""The "distance" in a link from the first image of some codes to another one of the same codes.

Only the first has links to images of other codes."""


@dataclass(frozen=True, slots=True)
class NearGraph:
    """Images within a radius of each other."""

    node_N: NDArray[np.int64]
    """The first image of the same codes, itself where there is none before."""
    links_L2: NDArray[np.int64]
    """Pairs of different nodes."""


def near_graph(count: int, links_L3: NDArray[np.int64], radius: int) -> NearGraph:
    """Return the graph of `count` images whose links are rows (i, j, distance or EQUAL)."""
    node_N = np.arange(count)
    equal_L = links_L3[:, 2] == EQUAL
    node_N[links_L3[equal_L, 1]] = links_L3[equal_L, 0]
    near_L2 = node_N[links_L3[~equal_L & (links_L3[:, 2] <= radius), :2]]
    return NearGraph(node_N, near_L2[near_L2[:, 0] != near_L2[:, 1]])


def collapse(rows: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each row stands first, and links (first, later, EQUAL) to its repetitions."""
    count = len(rows)
    flat = rows.reshape(count, int(np.prod(rows.shape[1:])))
    order = np.argsort(flat[:, 0], kind="stable")
    same = flat[order[1:], 0] == flat[order[:-1], 0]
    # Few share even their first code: only these are compared whole.
    doubtful = np.zeros(count, bool)
    doubtful[order[1:][same]] = doubtful[order[:-1][same]] = True
    at = np.flatnonzero(doubtful)
    first_N = np.arange(count)
    if len(at):
        _, first, which = np.unique(flat[at], axis=0, return_index=True, return_inverse=True)
        first_N[at] = at[first[which.reshape(-1)]]
    later = np.flatnonzero(first_N != np.arange(count))
    equal_L3 = np.stack([first_N[later], later, np.full(len(later), EQUAL)], axis=1)
    return np.flatnonzero(first_N == np.arange(count)), equal_L3


def centres(near: NearGraph, order_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each image the one that stands for it; `order_N` has the best image first.

    Best first, each image still free takes its free neighbours: no two centres are neighbours,
    and every other image is a neighbour of its centre, so nothing chains. Images of equal
    codes always go together, so the best of them decides for all.
    """
    count = len(order_N)
    best_N = np.empty(count, np.int64)
    best_N[near.node_N[order_N[::-1]]] = order_N[::-1]  # the last one written is the best
    ends_E = np.concatenate([near.links_L2, near.links_L2[:, ::-1]])
    ends_E = ends_E[np.argsort(ends_E[:, 0], kind="stable")]
    stops = np.cumsum(np.bincount(ends_E[:, 0], minlength=count))
    starts = np.concatenate([[0], stops[:-1]])
    centre_N = np.arange(count)
    free_N = np.ones(count, bool)
    leading = order_N[best_N[near.node_N[order_N]] == order_N]
    nodes = near.node_N[leading]
    for node in nodes[starts[nodes] < stops[nodes]].tolist():
        if free_N[node]:
            around = ends_E[starts[node] : stops[node], 1]
            around = around[free_N[around]]
            centre_N[around] = node
            free_N[around] = free_N[node] = False
    return best_N[centre_N[near.node_N]]


def connected(count: int, links_L2: NDArray[np.int64]) -> list[int]:
    """Return the number of its connected component for each of `count` images."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    ones_L = np.ones(len(links_L2), bool)
    joined = coo_matrix((ones_L, (links_L2[:, 0], links_L2[:, 1])), shape=(count, count))
    return connected_components(joined, directed=False)[1].tolist()


Join = Callable[[NDArray[np.uint64], int], HashPairs]
"""What `turned_pairs_within` is."""


def near_links(
    codes_NKO: NDArray[np.uint64], radius: int, join: Join = turned_pairs_within
) -> NDArray[np.int64]:
    """Return links_L3, rows (i, j, distance) with i < j, of all pairs within `radius` bits.

    The distance of two images is, over the eight orientations of i, the least of the largest
    Hamming distance among the K kinds: all kinds must agree on the same orientation. Of images
    with equal codes the first has a link to each of the others, of distance EQUAL, and stands for
    them in all other links. `join` may find the pairs in another way. Sorted and exact; memory is
    33 bytes a link. Raises UserError when numba is not installed, or for more links than memory
    should hold.
    """
    first_U, equal_L3 = collapse(codes_NKO)
    first_P, second_P, distance_P = join(codes_NKO[first_U], radius)
    columns = (first_U[first_P], first_U[second_P], distance_P)
    links_L3 = np.stack(columns, axis=1, dtype=np.int64, casting="safe")
    if len(equal_L3):
        links_L3 = np.concatenate([links_L3, equal_L3])
        links_L3 = links_L3[np.lexsort((links_L3[:, 1], links_L3[:, 0]))]
    return links_L3


def with_pairs(links_L3: NDArray[np.int64], pairs_P2: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the links and the pairs, as links of distance 0, sorted; each pair stands once."""
    new_P3 = np.concatenate([pairs_P2, np.zeros((len(pairs_P2), 1), np.int64)], axis=1)
    both_L3 = np.concatenate([links_L3, new_P3])
    # Of a pair that stands twice the nearer link comes first, and stays.
    both_L3 = both_L3[np.lexsort((both_L3[:, 2], both_L3[:, 1], both_L3[:, 0]))]
    again_L = np.zeros(len(both_L3), bool)
    again_L[1:] = (both_L3[1:, :2] == both_L3[:-1, :2]).all(axis=1)
    return both_L3[~again_L]


CHUNK_CODES = 1 << 22
"""A pair of chunks takes some 2 GB with two kinds of hash in eight orientations."""


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

    def join(codes_NKO: NDArray[np.uint64], radius: int) -> HashPairs:
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
) -> HashPairs:
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
            f"{len(lost)} of {len(parts)} parts of the comparison of images crash their worker "
            "each time, probably for lack of memory; give the workers more memory and run the "
            "same command again."
        )
    return in_order([_read(_file(folder, *part)) for part in parts])


def join_part(folder: Path, a: int, b: int, radius: int, chunk: int) -> None:
    """Join chunk a with chunk b and write their pairs; a task of the runner."""
    codes_NKO = np.load(folder / "codes.npy", mmap_mode="r")
    first_P, second_P, distance_P = chunk_pairs(codes_NKO, a, b, radius, chunk)
    with atomic_file(_file(folder, a, b)) as temporary, temporary.open("wb") as file:
        np.savez(file, first_P=first_P, second_P=second_P, distance_P=distance_P)


def chunk_pairs(
    codes_NKO: NDArray[np.uint64], a: int, b: int, radius: int, chunk: int
) -> HashPairs:
    """Return the pairs of the a-th and the b-th chunk, a <= b, in positions of all codes."""
    firsts_NKO = np.asarray(codes_NKO[a * chunk : (a + 1) * chunk])
    if a == b:
        first_P, second_P, distance_P = turned_pairs_within(firsts_NKO, radius)
    else:
        seconds_NKO = np.asarray(codes_NKO[b * chunk : (b + 1) * chunk])
        first_P, second_P, distance_P = turned_pairs_between(firsts_NKO, seconds_NKO, radius)
    return first_P + np.int64(a * chunk), second_P + np.int64(b * chunk), distance_P


def in_order(parts: Sequence[HashPairs]) -> HashPairs:
    """Return the pairs of all chunks in the order in which one join gives them."""
    first_P, second_P, distance_P = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((second_P, first_P))
    return first_P[order], second_P[order], distance_P[order]


def _read(file: Path) -> HashPairs:
    with np.load(file) as columns:
        return columns["first_P"], columns["second_P"], columns["distance_P"]


def _file(folder: Path, a: int, b: int) -> Path:
    return folder / f"{a}-{b}.npz"
