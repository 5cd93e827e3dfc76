"""Candidates for copies: pairs that share points, and for each image the few most alike.

*Votes.* Whether a pair is a candidate by its votes depends on the pair alone: cells are fixed, a
point votes within a fixed distance, and votes for one turn and one change of size are counted
(weak geometric consistency: Jegou, Douze, Schmid 2008, "Hamming embedding and weak geometric
consistency").

*Alike.* Second photos of a lesion, nearer, turned and in another light, share few points, and not
nearly the same ones: votes miss a third of them. Here codes may differ three times as much, and in
return matches must agree on the whole similarity, place included (Philbin et al. 2007, "Object
retrieval with large vocabularies and fast spatial matching"). Different images reach that too, by
chance, so only the LEADING_IMAGES most alike of each image are candidates: their number grows with
the images, not with the pairs.

*Recurring points* have no vote: captions, watermarks, rulers and frames would make every image of
a site a candidate for every other one. A point's key is its cell, its place, its direction and its
size, all rounded; a key that stands in more than `family_limit` families recurs. Families, and not
images, are counted: a family is what verified copies by hash join, so that a thousand copies of
one image do not lose their points. The count is a sum over the images, so shards, order and
cluster do not change it.

Which images are alike, and which points recur, depends on the other images; whether a candidate is
accepted does not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import require_extra
from skindx.data.copies.describe import LEADING, POINTS, Description, shipped_codebook

# N = images, P = points, K = keys, L = leading components, X = chiralities, T = probes,
# B = cells, C = candidates, A = pairs with their likeness


LEAST_FAMILIES = 24
SHARE = 0.001
"""A key stands in more than this share of the families before it counts as recurring."""
_PLACE = 16.0
"""Pixels; an overlay that lies across the edge of two squares is counted in both."""
_PASS_KEYS = 1 << 25
"""Number of keys that are sorted at once, which takes about 0.5 GB."""


class Described(Protocol):
    """Descriptions of images, by SHA-256."""

    def __getitem__(self, sha256: str) -> Description: ...


def family_limit(families: int) -> int:
    """Return in how many families a key may stand."""
    return max(LEAST_FAMILIES, int(SHARE * families))


def point_keys(description: Description) -> NDArray[np.uint64]:
    """Return keys_P of the points of an image."""
    words_P2 = description.nearest_PHR[:, :, 0].astype(np.uint64)
    x_P, y_P, size_P, angle_P = description.points_P4.T
    parts = (
        (words_P2[:, 0], 8),
        (words_P2[:, 1], 8),
        (np.floor(x_P / _PLACE).clip(0, 63).astype(np.uint64), 6),
        (np.floor(y_P / _PLACE).clip(0, 63).astype(np.uint64), 6),
        (np.floor(angle_P / 22.5).clip(0, 15).astype(np.uint64), 4),
        (np.floor(np.log2(size_P.clip(1))).clip(0, 15).astype(np.uint64), 4),
    )
    keys_P = np.zeros(len(x_P), np.uint64)
    for value_P, bits in parts:
        keys_P = (keys_P << np.uint64(bits)) | value_P
    return keys_P


def recurring_keys(
    library: Described, sha256s: Sequence[str], family_N: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return the sorted keys that stand in more families than `family_limit` allows.

    `family_N` numbers the family of each image. Beyond _PASS_KEYS points the keys are counted in
    several passes, which give the same.
    """
    most = family_limit(len(np.unique(family_N)))
    recurring = [np.empty(0, np.uint64)]
    if len(sha256s) <= most:
        return recurring[0]
    passes = max(1, -(-len(sha256s) * POINTS // _PASS_KEYS))
    for number in range(passes):
        keys, families = [], []
        for sha256, family in zip(sha256s, family_N.tolist(), strict=True):
            image_K = point_keys(library[sha256])
            image_K = np.unique(image_K[image_K % np.uint64(passes) == number])
            keys.append(image_K)
            families.append(np.full(len(image_K), family, np.int32))
        keys_K, family_K = np.concatenate(keys), np.concatenate(families)
        order_K = np.lexsort((family_K, keys_K))
        keys_K, family_K = keys_K[order_K], family_K[order_K]
        again_K = np.zeros(len(keys_K), bool)
        again_K[1:] = (keys_K[1:] == keys_K[:-1]) & (family_K[1:] == family_K[:-1])
        every_K, count_K = np.unique(keys_K[~again_K], return_counts=True)
        recurring.append(every_K[count_K > most])
    return np.sort(np.concatenate(recurring))


CHUNK_IMAGES = 2000
PROBES = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Which nearest words of the two halves are looked up: a rank of either half."""
VOTE_PROBES = 3
"""Number of these probes that are looked up for votes; all are for likeness."""
VOTE_RADIUS = 2000
"""Squared distance of two codes that agree, in the leading components."""
VOTES = 4


@dataclass(frozen=True)
class PointChunk:
    """The points of some images, one after the other."""

    starts_N: NDArray[np.int64]
    """One more than there are images."""
    codes_PL: NDArray[np.int8]
    probes_PXT: NDArray[np.uint16]
    angle_P: NDArray[np.int16]
    """Angle of each point, in 256 parts of a full turn."""
    scale_P: NDArray[np.int16]
    """Half octaves of the diameter."""
    points_P4: NDArray[np.float32]
    """Points as `Description` has them."""
    widths_N: NDArray[np.int64]


def load_chunk(
    library: Described, sha256s: Sequence[str], recurring: NDArray[np.uint64]
) -> PointChunk:
    """Read images' points without those whose keys are recurring (sorted)."""
    codes, probes, points, counts, widths = [], [], [], [0], []
    for sha256 in sha256s:
        description = library[sha256]
        keep_P = np.ones(len(description.points_P4), bool)
        if len(recurring):
            keys_P = point_keys(description)
            at_P = np.searchsorted(recurring, keys_P).clip(max=len(recurring) - 1)
            keep_P = recurring[at_P] != keys_P
        codes.append(description.codes_PC[keep_P, :LEADING])
        points.append(description.points_P4[keep_P])
        widths.append(description.shape_hw[1])
        both = (description.nearest_PHR[keep_P], description.mirrored_PHR[keep_P])
        probes.append(np.stack([_cells(nearest_PHR) for nearest_PHR in both], axis=1))
        counts.append(int(keep_P.sum()))
    points_P4 = np.concatenate([np.empty((0, 4), np.float32), *points])
    octaves_P = np.log2(np.maximum(points_P4[:, 2], 1e-3))
    return PointChunk(
        np.cumsum(counts),
        np.concatenate([np.empty((0, LEADING), np.int8), *codes]),
        np.concatenate([np.empty((0, 2, len(PROBES)), np.uint16), *probes]),
        np.rint(points_P4[:, 3] * (256 / 360)).astype(np.int16),
        np.rint(2 * octaves_P).astype(np.int16),
        points_P4,
        np.array(widths, np.int64),
    )


def _cells(nearest_PHR: NDArray[np.uint8]) -> NDArray[np.uint16]:
    words_PHR = nearest_PHR.astype(np.uint16)
    return np.stack([words_PHR[:, 0, i] * 256 + words_PHR[:, 1, j] for i, j in PROBES], axis=1)


def by_cell(chunk: PointChunk) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.intp]]:
    """Return (cells_B, image_Q, order_Q): its points sorted by cell, and where each cell starts."""
    cell_Q = chunk.probes_PXT[:, 0, 0]
    order_Q = np.argsort(cell_Q, kind="stable")
    cells_B = np.searchsorted(cell_Q[order_Q], np.arange((1 << 16) + 1)).astype(np.int64)
    images = np.arange(len(chunk.widths_N), dtype=np.int32)
    return cells_B, np.repeat(images, np.diff(chunk.starts_N))[order_Q], order_Q


def chunk_candidates(
    firsts: PointChunk, seconds: PointChunk, same_chunk: bool
) -> NDArray[np.int64]:
    """Return candidates_C3, rows (first, second, votes) in positions of the two chunks.

    `same_chunk`: both are the same chunk, and only first < second counts.
    """
    require_extra("data", "numba", purpose="the search for copies")
    from skindx.data.copies.candidate_kernels import vote

    cells_B, image_Q, order_Q = by_cell(seconds)
    return _all_rows(
        1024,
        lambda rows_C3: vote(
            same_chunk,
            firsts.starts_N,
            firsts.codes_PL,
            np.ascontiguousarray(firsts.probes_PXT[:, :, :VOTE_PROBES]),
            firsts.angle_P,
            firsts.scale_P,
            shipped_codebook().signs[:LEADING],
            cells_B,
            image_Q,
            seconds.codes_PL[order_Q],
            seconds.angle_P[order_Q],
            seconds.scale_P[order_Q],
            len(seconds.widths_N),
            VOTE_RADIUS,
            VOTES,
            rows_C3,
        ),
    )


def _all_rows(expected: int, kernel: Callable[[NDArray[np.int64]], int]) -> NDArray[np.int64]:
    """Return the rows of a kernel that writes as many as fit and returns how many there are."""
    rows_C3 = np.empty((expected, 3), np.int64)
    while (count := kernel(rows_C3)) > len(rows_C3):
        rows_C3 = np.empty((count, 3), np.int64)
    return rows_C3[:count]


ALIKE_RADIUS = 6000
"""Squared distance of two codes that match, in the leading components."""
ALIKE_NEAR = 14.0
"""Pixels within which a match agrees with another one."""
ALIKE_LEAST = 3
LEADING_IMAGES = 5


def chunk_alike(firsts: PointChunk, seconds: PointChunk, same_chunk: bool) -> NDArray[np.int64]:
    """Return alike_A3, rows (first, second, likeness) in positions of the two chunks.

    Only pairs that are among the LEADING_IMAGES of either image, as far as these chunks know.
    `same_chunk`: both are the same chunk, and only first < second counts.
    """
    require_extra("data", "numba", purpose="the search for copies")
    from skindx.data.copies.candidate_kernels import compare

    cells_B, image_Q, order_Q = by_cell(seconds)
    alike_A3 = _all_rows(
        1 << 16,
        lambda rows_A3: compare(
            same_chunk,
            firsts.starts_N,
            firsts.codes_PL,
            firsts.probes_PXT,
            firsts.points_P4,
            firsts.widths_N,
            shipped_codebook().signs[:LEADING],
            cells_B,
            image_Q,
            seconds.codes_PL[order_Q],
            seconds.points_P4[order_Q],
            len(seconds.widths_N),
            ALIKE_RADIUS,
            ALIKE_NEAR,
            ALIKE_LEAST,
            rows_A3,
        ),
    )
    # The two chunks count their images apart: they are different ones.
    move = np.array([0, 0 if same_chunk else len(firsts.widths_N), 0], np.int64)
    return leading(alike_A3 + move) - move


def leading(alike_A3: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows that are among the LEADING_IMAGES most alike of one of their two images.

    Among equals those of the smaller position are taken.
    """
    image_R = alike_A3[:, :2].T.ravel()
    other_R = alike_A3[:, 1::-1].T.ravel()
    order_R = np.lexsort((other_R, -np.tile(alike_A3[:, 2], 2), image_R))
    image_R = image_R[order_R]
    rank_R = np.arange(len(image_R)) - np.searchsorted(image_R, image_R)
    rows = order_R[rank_R < LEADING_IMAGES] % max(1, len(alike_A3))
    return alike_A3[np.unique(rows)]
