"""Candidates: pairs of images some of whose points agree, also in how the image was turned.

Whether a pair is a candidate by its votes depends on the pair alone: cells are fixed, a point votes
within a fixed distance, and votes for one turn and one change of size are counted (weak geometric
consistency: Jegou, Douze, Schmid 2008, "Hamming embedding and weak geometric consistency").
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import require_extra
from skindx.data.copies.codebook import LEADING, shipped
from skindx.data.copies.recurring import point_keys
from skindx.data.copies.shards import Library

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
    points_P4: NDArray[np.float32]
    """As `Description` has them."""
    widths_N: NDArray[np.int64]


def load_chunk(library: Library, sha256s: Sequence[str], recurring: NDArray[np.uint64]) -> Chunk:
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
    return Chunk(
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


def by_cell(
    chunk: Chunk,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.intp]]:
    """Return (cells_B, image_Q, order_Q): its points sorted by cell, and where each cell starts."""
    cell_Q = chunk.probes_PXT[:, 0, 0]
    order_Q = np.argsort(cell_Q, kind="stable")
    cells_B = np.searchsorted(cell_Q[order_Q], np.arange((1 << 16) + 1)).astype(np.int64)
    images = np.arange(len(chunk.widths_N), dtype=np.int32)
    return cells_B, np.repeat(images, np.diff(chunk.starts_N))[order_Q], order_Q


def chunk_candidates(firsts: Chunk, seconds: Chunk, own: bool) -> NDArray[np.int64]:
    """Return candidates_C3, rows (first, second, votes) in positions of the two chunks.

    `own`: both are the same chunk, and only first < second counts.
    """
    require_extra("data", "numba", purpose="the search for copies")
    from skindx.data.copies.vote_kernels import vote

    cells_B, image_Q, order_Q = by_cell(seconds)
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
            cells_B,
            image_Q,
            seconds.codes_PL[order_Q],
            seconds.angle_P[order_Q],
            seconds.scale_P[order_Q],
            len(seconds.widths_N),
            RADIUS,
            VOTES,
            found,
        )
        if count <= len(found):
            return found[:count]
        found = np.empty((count, 3), np.int64)
