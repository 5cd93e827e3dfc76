"""Pairs whose hashes are near, and whose points deny it: different photos in one frame.

A hash sees 64 numbers of an image. Where a frame, a page or a bar fills most of it, the hashes of
all images in it are near. Their points align by the frame, and what it surrounds does not agree.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.acceptance import RANGES
from skindx.data.copies.describe import Description
from skindx.data.copies.shards import Library, sha256_of
from skindx.data.copies.verified import VALUES, read_verified, verified_files
from skindx.data.copies.verify import evidence_of

# P = pairs

DENY = 0.01
"""Up to this probability a pair is of different images, if MANY points align it."""
MANY = 24
"""Inliers. With fewer it may be the points that are missing: of a blurred copy, of smooth skin."""


def denied(dataset: Path, paths: Sequence[str], pairs_P2: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which pairs, positions in `paths`, show different images although hashes are near.

    `find_copies` has verified them before, as its `hash_candidates`; a pair that it has not is not
    denied.
    """
    sha256s = sorted({sha256_of(path) for path in paths})
    row = {sha256: number for number, sha256 in enumerate(sha256s)}
    row_N = np.array([row[sha256_of(path)] for path in paths], np.int64)
    asked_P2 = np.sort(row_N[pairs_P2.reshape(-1, 2)], axis=1)
    wanted_P2 = np.unique(asked_P2, axis=0)
    files = verified_files(dataset)
    _, read_PV = read_verified(files, sha256s, wanted_P2, 0.0)
    probability_P, inliers_P = (
        read_PV[:, 2 + VALUES.index(name)] for name in ("probability", "inliers")
    )
    doubtful_P2 = read_PV[(probability_P <= DENY) & (inliers_P >= MANY), :2].astype(np.int64)
    library = Library(dataset)
    no = [
        i * len(sha256s) + j
        for i, j in doubtful_P2.tolist()
        if _differ(library[sha256s[i]], library[sha256s[j]])
    ]
    key_P = asked_P2[:, 0] * len(sha256s) + asked_P2[:, 1]
    return np.isin(key_P, np.array(no, np.int64))


def _differ(first: Description, second: Description) -> bool:
    """Return whether the gradients disagree where most points agree.

    A copy under a large opaque overlay may be refused for other reasons.
    """
    return evidence_of(first, second)[0]["beneath"] < RANGES["beneath"][1]
