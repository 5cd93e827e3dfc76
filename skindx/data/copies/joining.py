"""Candidates of one part of the search: pairs between two runs of images."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.alike import chunk_alike
from skindx.data.copies.shards import Library
from skindx.data.copies.votes import chunk_candidates, load_chunk

# C = candidates


def join_chunks(
    library: Library,
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
