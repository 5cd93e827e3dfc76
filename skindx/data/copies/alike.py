"""More candidates: for each image those few whose points lie in it most alike.

Second photos of a lesion, nearer, turned and in another light, share few points, and not nearly
the same ones: `votes` misses a third of them. Here codes may differ twice as much, and in return
matches must agree on the whole similarity, place included (Philbin et al. 2007, "Object retrieval
with large vocabularies and fast spatial matching"). Strangers reach that too, by chance, so only
the LEADING_IMAGES most alike of each image are candidates: their number grows with the images, not
with the pairs. Which these are depends on the other images; whether a candidate is accepted does
not.
"""

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import require_extra
from skindx.data.copies.codebook import LEADING, shipped
from skindx.data.copies.votes import Chunk, by_cell

# A = pairs with their likeness

RADIUS = 4000
"""Squared distance of two codes that match, in the leading components."""
NEAR = 20.0
"""Pixels within which a match agrees with another one."""
LEAST = 3
LEADING_IMAGES = 5


def chunk_alike(firsts: Chunk, seconds: Chunk, own: bool) -> NDArray[np.int64]:
    """Return alike_A3, rows (first, second, likeness) in positions of the two chunks.

    Only pairs that are among the LEADING_IMAGES of either image, as far as these chunks know.
    `own`: both are the same chunk, and only first < second counts.
    """
    require_extra("data", "numba", purpose="the search for copies")
    from skindx.data.copies.alike_kernels import compare

    cells_B, image_Q, order_Q = by_cell(seconds)
    found_A3 = np.empty((1 << 16, 3), np.int64)
    while True:
        count = compare(
            own,
            firsts.starts_N,
            firsts.codes_PL,
            firsts.probes_PXT,
            firsts.points_P4,
            firsts.widths_N,
            shipped().signs[:LEADING],
            cells_B,
            image_Q,
            seconds.codes_PL[order_Q],
            seconds.points_P4[order_Q],
            len(seconds.widths_N),
            RADIUS,
            NEAR,
            LEAST,
            found_A3,
        )
        if count <= len(found_A3):
            # The two chunks count their images apart: they are different ones.
            apart = 0 if own else len(firsts.widths_N)
            move = np.array([0, apart, 0], np.int64)
            return leading(found_A3[:count] + move) - move
        found_A3 = np.empty((count, 3), np.int64)


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
