"""Views of one square for test-time augmentation: skin has no upright."""

from typing import Literal

from torch import Tensor

Views = Literal[1, 2, 4, 8]
"""1: as it is; 2: and mirrored; 4: both mirrors and the half turn; 8: and all quarter turns.

Each set is a group: the mean over it is the same for every image of the set.
"""

# B = batch, S = side

_FLIPS: tuple[tuple[int, ...], ...] = ((), (2,), (1,), (1, 2))


def views_of(squares_BSS3: Tensor, views: Views) -> list[Tensor]:
    """Return the images as they are and in their other views, each B x S x S x 3."""
    flips = _FLIPS[: min(views, 4)]
    found = [squares_BSS3.flip(flip) if flip else squares_BSS3 for flip in flips]
    return found if views < 8 else found + [view_BSS3.transpose(1, 2) for view_BSS3 in found]
