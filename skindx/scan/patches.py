"""Overlapping patches of an array of any number of axes, and one map from their answers.

Inference of what no memory holds, by unreliable workers (chunkflow). The map is the mean of the
patches' answers with the weights w(x) = exp(-sum over axes of 1 / (1 - x^2)), x in (-1, 1).
chunkflow accumulates w y and w; here the answers of all patches are stored first, and the map is
made block by block from the patches that touch it: memory does not grow with the map, a block that
is written twice is the same to the bit, and who answered in which order does not matter.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import require_extra
from skindx.core.private_files import private_file
from skindx.scan.pixel_store import Floats

PAPER = (
    "chunkflow | Wu et al., Chunkflow: Hybrid Cloud Processing of Large 3D Images by "
    "Convolutional Nets, arXiv 1904.10489, 2019 | tests/scan/test_scan_tiles.py | "
    "docs/measured/scan.json"
)

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
        indices_by_axis: list[list[int]] = []
        for begins, size, part in zip(self.begins_by_axis, self.size, block, strict=True):
            indices_by_axis.append(
                [
                    index
                    for index, begin in enumerate(begins)
                    if begin < part.stop and part.start < begin + size
                ]
            )
        strides = [
            math.prod(len(b) for b in self.begins_by_axis[axis + 1 :])
            for axis in range(len(indices_by_axis))
        ]
        for indices in itertools.product(*indices_by_axis):
            yield sum(i * stride for i, stride in zip(indices, strides, strict=True))


def blocks(shape: Sequence[int], block: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yield the parts of an array that cover it once, without overlaps."""
    axes = [
        [slice(begin, min(begin + size, length)) for begin in range(0, length, size)]
        for length, size in zip(shape, block, strict=True)
    ]
    yield from itertools.product(*axes)


# A = axes of the map, N = elements of one axis; answers may have further axes behind, as channels

_LEAST = 1e-60
"""Least weight along one axis, relative to the largest: at an edge the formula underflows, and an
element without another patch would give 0 / 0. The product of five axes is still a double."""

ReadPatch = Callable[[int], "NDArray[Any] | None"]
"""Returns the answer for a patch by its number, A axes and those of its channels; None: none."""


class Writable(Protocol):
    """A NumPy array, a Zarr array, or what else takes blocks."""

    def __setitem__(self, place: Any, value: Any) -> None: ...


@lru_cache(maxsize=64)
def axis_weights(size: int) -> Floats:
    """Return exp(-1 / (1 - x^2)) at the centres of `size` elements, over its largest value, N."""
    x_N = (2 * np.arange(size) + 1) / size - 1
    exponents_N = -1 / (1 - x_N**2)
    weights_N: Floats = np.maximum(np.exp(exponents_N - exponents_N.max()), _LEAST)
    weights_N.flags.writeable = False
    return weights_N


def bump(size: Sequence[int]) -> Floats:
    """Return the weights of a patch, with A axes: the product of those of its axes."""
    weights = np.ones(())
    for length in size:
        weights = weights[..., None] * axis_weights(length)
    return weights


def blend_block(
    patches: Patches,
    read: ReadPatch,
    block: Sequence[slice],
    channels: Sequence[int] = (),
    fill: float = 0.0,
) -> Floats:
    """Return the weighted mean over the patches that touch a block; `fill` where there is none.

    Holds the block and one patch. Patches are added by their number, so that a block is always
    the same to the bit.
    """
    shape = tuple(part.stop - part.start for part in block)
    sum_ = np.zeros((*shape, *channels))
    weight_sum = np.zeros(shape)
    weights, wide = bump(patches.size), (..., *(None for _ in channels))
    for number in patches.touching(block):
        answer = read(number)
        if answer is None:
            continue
        place = patches[number]
        common = [
            slice(max(a.start, b.start), min(a.stop, b.stop))
            for a, b in zip(place, block, strict=True)
        ]
        inner = tuple(
            slice(c.start - p.start, c.stop - p.start) for c, p in zip(common, place, strict=True)
        )
        out = tuple(
            slice(c.start - b.start, c.stop - b.start) for c, b in zip(common, block, strict=True)
        )
        sum_[out] += weights[inner][wide] * np.asarray(answer, np.float64)[inner]
        weight_sum[out] += weights[inner]
    has_weight = weight_sum > 0
    mean: Floats = np.full_like(sum_, fill)
    np.divide(sum_, weight_sum[wide], out=mean, where=np.broadcast_to(has_weight[wide], sum_.shape))
    return mean


def blend(
    patches: Patches,
    read: ReadPatch,
    out: Writable,
    *,
    block: Sequence[int],
    channels: Sequence[int] = (),
    fill: float = 0.0,
) -> None:
    """Write the map of all patches into `out`, block after block."""
    for part in blocks(patches.shape, block):
        out[part] = blend_block(patches, read, part, channels, fill)


def create_map(folder: Path, shape: Sequence[int], chunks: Sequence[int]) -> Any:
    """Return a new Zarr array (version 3, float32) in a folder; blocks of `chunks` are one file.

    Raises UserError without the extra `scan`.
    """
    require_extra("scan", "zarr", purpose="a map larger than memory")
    import zarr

    return zarr.create_array(
        store=str(folder), shape=tuple(shape), chunks=tuple(chunks), dtype="float32", fill_value=0
    )


def save_patch(file: Path, answer: NDArray[Any]) -> None:
    """Write the answer for a patch whole or not at all; the same again changes nothing."""
    with private_file(file) as temporary, temporary.open("wb") as stream:
        np.save(stream, answer, allow_pickle=False)
