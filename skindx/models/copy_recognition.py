"""Copies of images that are elsewhere, recognised by their fingerprints."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.copy_candidates import LEADING_IMAGES, PointChunk, chunk_alike, load_chunk
from skindx.data.copies.describe import LEADING, Description
from skindx.data.copies.geometry import laid_on, models_of
from skindx.imaging.hashes import fine_hashes, thumbnail
from skindx.models.fingerprints import BATCH, Fingerprints

# N = images with a fingerprint, Q = images that are compared with them, O = orientations,
# W = words of a hash, A = pairs that are alike

WHOLE, PART = 28, 56
"""Bits of 255 within which the whole image, or a photo that its points laid, is a copy."""


@dataclass(frozen=True, slots=True)
class RecognisedCopy:
    """An image, and one of the fingerprints that know it; both by their SHA-256."""

    sha256: str
    of: str
    kind: Literal["whole", "part"]
    distance: int
    """Bits of 255 that differ."""


@dataclass(frozen=True)
class CopyRecognition:
    """Fingerprints, made ready to compare images with them."""

    prints: Fingerprints

    def recognise(self, images: Iterable[tuple[str, Description]]) -> Iterator[RecognisedCopy]:
        """Yield the copies among described images, each with every fingerprint that knows it.

        Raises UserError without the `data` extra.
        """
        rest = iter(images)
        while batch := list(islice(rest, BATCH)):
            yield from self._recognised(batch)

    @cached_property
    def _known(self) -> tuple[list[Description], PointChunk]:
        known = [self.prints.description(at) for at in range(len(self.prints))]
        return known, _chunk(known)

    def _recognised(self, batch: list[tuple[str, Description]]) -> Iterator[RecognisedCopy]:
        known, chunk = self._known
        leading = [_leading(one) for _, one in batch]
        alike = _nearest(chunk_alike(_chunk(leading), chunk, False)) if len(self.prints) else {}
        codes_QOW = fine_hashes(np.stack([thumbnail(one.small_HW) for one in leading]))
        for number, (sha256, _) in enumerate(batch):
            signs_NOW = self.prints.hashes_NW[:, None] ^ codes_QOW[number]
            distance_N = np.bitwise_count(signs_NOW).sum(axis=2).min(axis=1)
            near = np.flatnonzero(distance_N <= WHOLE).tolist()
            for at in near:
                yield RecognisedCopy(sha256, self.prints.sha256s[at], "whole", int(distance_N[at]))
            for at in alike.get(number, ()):
                distance = self._laid_distance(at, known[at], leading[number])
                if at not in near and distance <= PART:
                    yield RecognisedCopy(sha256, self.prints.sha256s[at], "part", distance)

    def _laid_distance(self, at: int, known: Description, image: Description) -> int:
        """Return how many signs differ when points lay the image onto one; 256: none agree."""
        distance = 256
        for model in models_of(known, image):
            laid_HW = laid_on(image, known.shape_hw, model.transform_23)
            (code_OW,) = fine_hashes(thumbnail(laid_HW)[None])
            differ = int(np.bitwise_count(code_OW[0] ^ self.prints.hashes_NW[at]).sum())
            distance = min(distance, differ)
        return distance


def _leading(one: Description) -> Description:
    """Return an image with the components that fingerprints have."""
    codes_PC = one.codes_PC.copy()
    codes_PC[:, LEADING:] = 0
    words = (one.nearest_PHR, one.mirrored_PHR)
    return Description(one.shape_hw, one.small_HW, one.points_P4, codes_PC, *words)


def _chunk(images: list[Description]) -> PointChunk:
    names = [str(at) for at in range(len(images))]
    return load_chunk(dict(zip(names, images, strict=True)), names, np.empty(0, np.uint64))


def _nearest(alike_A3: NDArray[np.int64]) -> dict[int, list[int]]:
    """Return for each image the few fingerprints that are most alike."""
    nearest: dict[int, list[int]] = {}
    order_A = np.lexsort((alike_A3[:, 1], -alike_A3[:, 2]))
    for first, second, _ in alike_A3[order_A].tolist():
        few = nearest.setdefault(first, [])
        if len(few) < LEADING_IMAGES:
            few.append(second)
    return nearest
