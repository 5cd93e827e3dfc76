"""Points that recur at the same place in many images: captions, watermarks, rulers, frames.

They would make every image of a site a candidate for every other one. A point's key is its cell,
its place, its direction and its size, all rounded; a key that stands in more than `limit` families
has no vote. Families, and not images, are counted: a family is what verified copies by hash join,
so that a thousand copies of one image do not lose their points. The count is a sum over the
images, so shards, order and cluster do not change it. It decides only which pairs are looked at:
a pair that is looked at is accepted by what it shows itself.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.describe import POINTS, Description

# P = points, K = keys

LEAST_FAMILIES = 24
SHARE = 0.001
"""A key stands in more than this share of the families before it counts as recurring."""
_PLACE = 16.0
"""Pixels; an overlay that lies across the edge of two squares is counted in both."""
_PASS_KEYS = 1 << 25
"""So many keys are sorted at once: some 0.5 GB."""


class Described(Protocol):
    """Position of an image's description, by its SHA-256."""

    def __getitem__(self, sha256: str) -> Description: ...


def limit(families: int) -> int:
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
    """Return the sorted keys that stand in more families than `limit` allows.

    `family_N` numbers the family of each image. Beyond _PASS_KEYS points the keys are counted in
    several passes, which give the same.
    """
    most = limit(len(np.unique(family_N)))
    found = [np.empty(0, np.uint64)]
    if len(sha256s) <= most:
        return found[0]
    passes = max(1, -(-len(sha256s) * POINTS // _PASS_KEYS))
    for number in range(passes):
        keys, families = [], []
        for sha256, family in zip(sha256s, family_N.tolist(), strict=True):
            own_K = point_keys(library[sha256])
            own_K = np.unique(own_K[own_K % np.uint64(passes) == number])
            keys.append(own_K)
            families.append(np.full(len(own_K), family, np.int32))
        keys_K, family_K = np.concatenate(keys), np.concatenate(families)
        order_K = np.lexsort((family_K, keys_K))
        keys_K, family_K = keys_K[order_K], family_K[order_K]
        again_K = np.zeros(len(keys_K), bool)
        again_K[1:] = (keys_K[1:] == keys_K[:-1]) & (family_K[1:] == family_K[:-1])
        every_K, count_K = np.unique(keys_K[~again_K], return_counts=True)
        found.append(every_K[count_K > most])
    return np.sort(np.concatenate(found))
