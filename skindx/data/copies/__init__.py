"""Copies that image hashes miss: crops, turns, borders, watermarks, screenshots, a second photo.

An image is described by local points (`describe`, `shards`), pairs that share points are
candidates (`votes`), so are the few most alike of each image (`alike`), and a candidate is
accepted by what it shows itself (`verify`, `acceptance`): by the same evidence in every pool,
shard and build.
"""

from skindx.data.copies.compare import compare_pair
from skindx.data.copies.copy import ACCEPT, REVIEW, Copy
from skindx.data.copies.find import find_copies

__all__ = ["ACCEPT", "REVIEW", "Copy", "compare_pair", "find_copies"]
