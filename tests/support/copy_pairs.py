"""Pairs of images, compared and named."""

from typing import Any

from numpy.typing import NDArray

from skindx.data.copies.describe import describe, describe_bytes
from skindx.data.copies.verified import Pair
from skindx.data.copies.verify import Copy, verify
from skindx.imaging.hashes import grey


def pair_of(one: str, other: str) -> Pair:
    """Return the name of a pair, in whichever order it is given."""
    return (one, other) if one < other else (other, one)


def compare_pair(first_HW3: NDArray[Any], second_HW3: NDArray[Any]) -> Copy | None:
    """Compare two RGB images, uint8; None where no points agree.

    A stored JPEG is described at the scale its decoder gives (`compare_bytes`), which differs
    from these pixels by a grey level here and there.
    """
    return verify(describe(grey(first_HW3)), describe(grey(second_HW3)))


def compare_bytes(first: bytes, second: bytes) -> Copy | None:
    """Compare two encoded images as `find_copies` does. Raises DamagedImage."""
    return verify(describe_bytes(first), describe_bytes(second))
