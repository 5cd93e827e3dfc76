"""Overlapping patches of an array of any number of axes, the last of each axis shifted inward.

As in chunkflow, inference of a volume that no memory holds goes patch by patch; body photos
have two axes, stacks of confocal or OCT images three.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

# A = axes


def starts(length: int, patch: int, overlap: int) -> tuple[int, ...]:
    """Return where the patches of one axis begin: at least `overlap` elements are in common.

    The last patch is shifted inward to end with the axis; an axis shorter than a patch has one.
    Raises ValueError for an overlap that leaves no step.
    """
    if not 0 <= overlap < patch or length < 1:
        raise ValueError(f"a patch of {patch} cannot overlap by {overlap} on a length of {length}")
    last = max(0, length - patch)
    return (*range(0, last, patch - overlap), last)


@dataclass(frozen=True)
class Patches:
    """The patches of an array of `shape`; all have `patch` elements, or those of a shorter axis."""

    shape: tuple[int, ...]
    patch: tuple[int, ...]
    overlap: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse axes that do not belong together."""
        if not len(self.shape) == len(self.patch) == len(self.overlap) >= 1:
            raise ValueError(f"shape {self.shape}, patch {self.patch} and overlap {self.overlap}")

    @cached_property
    def begins_by_axis(self) -> tuple[tuple[int, ...], ...]:
        """Starts of patches, by axis."""
        axes = zip(self.shape, self.patch, self.overlap, strict=True)
        return tuple(starts(*axis) for axis in axes)

    @property
    def size(self) -> tuple[int, ...]:
        """Elements of one patch along each axis."""
        return tuple(min(pair) for pair in zip(self.shape, self.patch, strict=True))

    def __len__(self) -> int:
        return math.prod(len(begins) for begins in self.begins_by_axis)

    def __getitem__(self, number: int) -> tuple[slice, ...]:
        """Return where patch `number` lies; the last axis runs fastest."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        place: list[slice] = []
        for begins, size in zip(reversed(self.begins_by_axis), reversed(self.size), strict=True):
            number, index = divmod(number, len(begins))
            place.append(slice(begins[index], begins[index] + size))
        return tuple(reversed(place))

    def touching(self, block: Sequence[slice]) -> Iterator[int]:
        """Yield the numbers of the patches that share an element with a block, in order."""
        found: list[list[int]] = []
        for begins, size, part in zip(self.begins_by_axis, self.size, block, strict=True):
            found.append(
                [
                    index
                    for index, begin in enumerate(begins)
                    if begin < part.stop and part.start < begin + size
                ]
            )
        strides = [
            math.prod(len(b) for b in self.begins_by_axis[axis + 1 :]) for axis in range(len(found))
        ]
        for indices in itertools.product(*found):
            yield sum(i * stride for i, stride in zip(indices, strides, strict=True))


def blocks(shape: Sequence[int], block: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yield the parts of an array that cover it once, without overlaps."""
    axes = [
        [slice(begin, min(begin + size, length)) for begin in range(0, length, size)]
        for length, size in zip(shape, block, strict=True)
    ]
    yield from itertools.product(*axes)
