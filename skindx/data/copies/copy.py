"""One verified pair of images."""

import dataclasses
from dataclasses import dataclass

import numpy as np

ACCEPT = 0.9
"""From this probability on two images are copies; `learn.acceptance` fits the weights to it."""
REVIEW = 0.5
"""From this one on a person should look."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One verified pair of images, positions first < second in the caller's order."""

    first: int
    second: int
    probability: float
    """Of the learned acceptance; it depends on the two images alone."""
    inliers: int
    """Points of the first that lie where the transform puts them, at different places."""
    ncc: float
    """Mean local normalised cross-correlation of the aligned pair, weighted by texture."""
    covered: float
    """Share of the smaller image that the overlap covers."""
    mirrored: bool
    transform_23: tuple[float, ...]
    """Affine, row by row: maps (x, y, 1) of first to second, in pixels of the described size."""

    @property
    def same(self) -> bool:
        """Whether the pair is accepted without a person."""
        return self.probability >= ACCEPT

    @property
    def uncertain(self) -> bool:
        """Whether a person should decide."""
        return REVIEW <= self.probability < ACCEPT

    def turned(self) -> "Copy":
        """Return the same evidence with the two images exchanged."""
        linear_22, move_2 = np.reshape(self.transform_23, (2, 3))[:, :2], self.transform_23[2::3]
        back_22 = np.linalg.inv(linear_22)
        back_23 = np.column_stack([back_22, -back_22 @ np.array(move_2)])
        transform_23 = tuple(float(value) for value in back_23.ravel())
        return dataclasses.replace(
            self, first=self.second, second=self.first, transform_23=transform_23
        )
