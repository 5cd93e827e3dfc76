"""Candidates: pairs of images some of whose points agree, also in how the image was turned.

Whether a pair is a candidate depends on the pair alone: cells are fixed, a point votes within a
fixed distance, and votes for one turn and one change of size are counted (weak geometric
consistency: Jegou, Douze, Schmid 2008, "Hamming embedding and weak geometric consistency").
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.codebook import LEADING, shipped
from skindx.data.copies.recurring import point_keys
from skindx.data.copies.shards import Library
from skindx.system import require_extra

# N = images, P = points, L = leading components, X = chiralities, T = probes, C = candidates

CHUNK_IMAGES = 2000
PROBES = ((0, 0), (0, 1), (1, 0))
"""Which nearest words of the two halves are looked up: a rank of either half."""
RADIUS = 2000
"""Squared distance of two codes that agree, in the leading components."""
VOTES = 4


@dataclass(frozen=True)
class Chunk:
    """The points of some images, one after the other."""

    starts_N: NDArray[np.int64]
    """One more than there are images."""
    codes_PL: NDArray[np.int8]
    probes_PXT: NDArray[np.uint16]
    angle_P: NDArray[np.int16]
    """Of 256 in a full turn."""
    scale_P: NDArray[np.int16]
    """Half octaves of the diameter."""


def load_chunk(library: Library, sha256s: Sequence[str], recurring: NDArray[np.uint64]) -> Chunk:
    """Read images' points without those whose keys are recurring (sorted)."""
    codes, probes, points, counts = [], [], [], [0]
    for sha256 in sha256s:
        description = library[sha256]
        keep_P = np.ones(len(description.points_P4), bool)
        if len(recurring):
            keys_P = point_keys(description)
            at_P = np.searchsorted(recurring, keys_P).clip(max=len(recurring) - 1)
            keep_P = recurring[at_P] != keys_P
        codes.append(description.codes_PC[keep_P, :LEADING])
        points.append(description.points_P4[keep_P, 2:])
        both = (description.nearest_PHR[keep_P], description.mirrored_PHR[keep_P])
        probes.append(np.stack([_cells(nearest_PHR) for nearest_PHR in both], axis=1))
        counts.append(int(keep_P.sum()))
    points_P2 = np.concatenate([np.empty((0, 2), np.float32), *points])
    octaves_P = np.log2(np.maximum(points_P2[:, 0], 1e-3))
    return Chunk(
        np.cumsum(counts),
        np.concatenate([np.empty((0, LEADING), np.int8), *codes]),
        np.concatenate([np.empty((0, 2, len(PROBES)), np.uint16), *probes]),
        np.rint(points_P2[:, 1] * (256 / 360)).astype(np.int16),
        np.rint(2 * octaves_P).astype(np.int16),
    )


def _cells(nearest_PHR: NDArray[np.uint8]) -> NDArray[np.uint16]:
    words_PHR = nearest_PHR.astype(np.uint16)
    return np.stack([words_PHR[:, 0, i] * 256 + words_PHR[:, 1, j] for i, j in PROBES], axis=1)


def chunk_candidates(firsts: Chunk, seconds: Chunk, own: bool) -> NDArray[np.int64]:
    """Return candidates_C3, rows (first, second, votes) in positions of the two chunks.

    `own`: both are the same chunk, and only first < second counts.
    """
    require_extra("data", "numba", purpose="the search for copies")
    from skindx.data.copies.vote_kernels import vote

    images = len(seconds.starts_N) - 1
    cell_Q = seconds.probes_PXT[:, 0, 0]
    order_Q = np.argsort(cell_Q, kind="stable")
    cells_B = np.searchsorted(cell_Q[order_Q], np.arange((1 << 16) + 1))
    image_Q = np.repeat(np.arange(images, dtype=np.int32), np.diff(seconds.starts_N))[order_Q]
    signs_L = shipped().signs[:LEADING]
    found = np.empty((1024, 3), np.int64)
    while True:
        count = vote(
            own,
            firsts.starts_N,
            firsts.codes_PL,
            firsts.probes_PXT,
            firsts.angle_P,
            firsts.scale_P,
            signs_L,
            cells_B.astype(np.int64),
            image_Q,
            seconds.codes_PL[order_Q],
            seconds.angle_P[order_Q],
            seconds.scale_P[order_Q],
            images,
            RADIUS,
            VOTES,
            found,
        )
        if count <= len(found):
            return found[:count]
        found = np.empty((count, 3), np.int64)


def join_chunks(
    library: Library,
    sha256s: Sequence[str],
    recurring: NDArray[np.uint64],
    part: tuple[int, int, int],
) -> NDArray[np.int64]:
    """Return the candidates_C3 of one part, in positions of all images.

    The part is (a, b, chunk): the a-th and the b-th run of `chunk` images, a <= b.
    """
    a, b, chunk = part
    firsts = load_chunk(library, sha256s[a * chunk : (a + 1) * chunk], recurring)
    seconds = firsts
    if a != b:
        seconds = load_chunk(library, sha256s[b * chunk : (b + 1) * chunk], recurring)
    found_C3: NDArray[np.int64] = chunk_candidates(firsts, seconds, a == b)
    return found_C3 + np.array([a * chunk, b * chunk, 0], np.int64)
