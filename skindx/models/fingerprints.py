"""Fingerprints: what recognises copies of images that are elsewhere, in some 500 bytes an image.

*Whole.* The 255 signs of the lowest DCT coefficients, compared in eight orientations: they know
another encoding, size or shape of an image, mirrored or turned.

*Part.* The image's strongest points with codes of four bits a component. The points that agree lay
a photo onto the image; it then must have nearly the image's signs. That knows crops, and second
photos that show the same.

No pixel is kept, and no group: nothing of it can be shown.
"""

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count
from skindx.data.copies.describe import (
    COMPONENTS,
    LEADING,
    Description,
    DescriptionLibrary,
    describe_bytes,
    shipped_codebook,
)
from skindx.data.layout import stored_file
from skindx.data.loader.load import work_ahead
from skindx.data.manifest import Record
from skindx.imaging.hashes import fine_hashes, thumbnail
from skindx.imaging.image_formats import DamagedImage
from skindx.models.bounded_files import AGAIN, declared, load_tensors, save_tensors

# N = images with a fingerprint, Q = images that are compared with them, P = points,
# O = orientations, W = words of a hash

FINGERPRINTS = "fingerprints.safetensors"
"""File in a bundle with the fingerprints of the images that made it."""
POINTS = 32
STEP = 16
"""Quantisation step of one component of a code, which is stored in four bits."""
BATCH = 256
"""Images that are read ahead, or compared at once."""
_MOST = 10_000_000
"""Images; more are no fingerprints of a bundle."""
_TENSORS = {
    "sha256": ("U8", 2),
    "hashes": ("U8", 2),
    "sides": ("I16", 2),
    "starts": ("I64", 1),
    "points": ("U8", 2),
    "codes": ("U8", 2),
}
_PACKED = _TENSORS | {"points": ("U8", 1), "codes": ("U8", 1)}
"""Tensor of all columns one after the other, compressed by zlib; older bundles store them plain."""


@dataclass(frozen=True)
class Fingerprints:
    """Fingerprints of N images."""

    sha256s: tuple[str, ...]
    hashes_NW: NDArray[np.uint64]
    sides_N2: NDArray[np.int16]
    """Height and width of the described image."""
    starts_N: NDArray[np.int64]
    """N + 1 places among the points."""
    points_P4: NDArray[np.uint8]
    """x, y in pixels of the described image, eighths of an octave of the size, 256ths of a turn."""
    codes_PD: NDArray[np.uint8]
    """Two components a byte, each plus 8."""

    @classmethod
    def from_images(cls, described: Iterable[tuple[str, Description]]) -> Self:
        """Make them of SHA-256 and description of each image."""
        rows = [(sha256, *_fingerprint(one)) for sha256, one in described]
        sha256s, hashes, sides, points, codes = zip(*rows, strict=True) if rows else ((),) * 5
        return cls(
            tuple(sha256s),
            np.array(hashes, np.uint64).reshape(-1, 4),
            np.array(sides, np.int16).reshape(-1, 2),
            np.cumsum([0, *map(len, points)]),
            np.concatenate([np.empty((0, 4), np.uint8), *points]),
            np.concatenate([np.empty((0, LEADING // 2), np.uint8), *codes]),
        )

    def __len__(self) -> int:
        return len(self.sha256s)

    def without(self, sha256s: Collection[str]) -> Self:
        """Return those of the other images."""
        kept = [at for at, sha256 in enumerate(self.sha256s) if sha256 not in sha256s]
        counts_N = np.diff(self.starts_N)
        held_P = np.repeat(np.isin(np.arange(len(self)), kept), counts_N)
        return type(self)(
            tuple(self.sha256s[at] for at in kept),
            self.hashes_NW[kept],
            self.sides_N2[kept],
            np.concatenate([[0], np.cumsum(counts_N[kept])]),
            self.points_P4[held_P],
            self.codes_PD[held_P],
        )

    def joined(self, others: Self) -> Self:
        return type(self)(
            self.sha256s + others.sha256s,
            np.concatenate([self.hashes_NW, others.hashes_NW]),
            np.concatenate([self.sides_N2, others.sides_N2]),
            np.concatenate([self.starts_N, self.starts_N[-1] + others.starts_N[1:]]),
            np.concatenate([self.points_P4, others.points_P4]),
            np.concatenate([self.codes_PD, others.codes_PD]),
        )

    def description(self, at: int) -> Description:
        """Return what is known of the points of one image, as the comparison takes it."""
        inside = slice(self.starts_N[at], self.starts_N[at + 1])
        stored_P4 = self.points_P4[inside].astype(np.float32)
        units_4 = np.array([1, 1, 1, 360 / 256], np.float32)
        points_P4 = stored_P4 * units_4
        points_P4[:, 2] = 2 ** (stored_P4[:, 2] / 8)
        pairs_PD = self.codes_PD[inside]
        halves_PD2 = np.stack([pairs_PD >> 4, pairs_PD & 15], axis=2).astype(np.int16)
        codes_PC = np.zeros((len(points_P4), COMPONENTS), np.int8)
        codes_PC[:, :LEADING] = ((halves_PD2.reshape(-1, LEADING) - 8) * STEP).clip(-127, 127)
        height, width = self.sides_N2[at].tolist()
        book = shipped_codebook()
        return Description(
            (height, width),
            np.empty((0, 0), np.uint8),
            points_P4,
            codes_PC,
            book.nearest(codes_PC),
            book.nearest(codes_PC * book.signs),
        )

    def save(self, folder: Path) -> None:
        """Write them into a bundle's folder."""
        digests = np.frombuffer(bytes.fromhex("".join(self.sha256s)), np.uint8).reshape(-1, 32)
        hashes = np.ascontiguousarray(self.hashes_NW).view(np.uint8)
        points, codes = (_packed(part) for part in (self.points_P4, self.codes_PD))
        parts = (digests, hashes, self.sides_N2, self.starts_N, points, codes)
        tensors = dict(zip(_TENSORS, parts, strict=True))
        save_tensors(
            {name: torch.from_numpy(np.array(part, order="C")) for name, part in tensors.items()},
            folder / FINGERPRINTS,
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read those of a bundle's folder. Raises UserError for any other file."""
        file = folder / FINGERPRINTS
        codes_of = declared(file).get("codes")
        packed = codes_of is not None and len(codes_of.shape) == 1
        tensors = load_tensors(file, _PACKED if packed else _TENSORS)
        digests, hashes, sides, starts, points, codes = (tensors[x].numpy() for x in _TENSORS)
        count, steps = len(digests), np.diff(starts)
        fits = (
            count <= _MOST
            and (digests.shape[1], hashes.shape, sides.shape) == (32, (count, 32), (count, 2))
            and len(starts) == count + 1
            and starts[0] == 0
            and bool(((steps >= 0) & (steps <= POINTS)).all())
        )
        if fits and packed:
            points, codes = (
                _unpacked(part, int(starts[-1]), columns)
                for part, columns in ((points, 4), (codes, LEADING // 2))
            )
        fits = (
            fits
            and (points.shape, codes.shape) == ((starts[-1], 4), (starts[-1], LEADING // 2))
            and bool(((sides >= 1) & (sides <= 256)).all())
        )
        if not fits:
            raise UserError(f"{file} does not have the fingerprints of {count} images; {AGAIN}.")
        names = tuple(digest.tobytes().hex() for digest in digests)
        words = np.ascontiguousarray(hashes).view(np.uint64)
        return cls(names, words, sides, starts, points, codes)


def _packed(part_PD: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.frombuffer(zlib.compress(np.ascontiguousarray(part_PD.T).tobytes(), 9), np.uint8)


def _unpacked(packed: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
    """Return rows x columns; nothing for anything that does not unpack to just as much."""
    unpacker, size = zlib.decompressobj(), rows * columns
    try:
        # Unpack at most one byte more than allowed, whatever the file states.
        data = unpacker.decompress(packed.tobytes(), size + 1)
    except zlib.error:
        data = b""
    if len(data) != size or not unpacker.eof or unpacker.unused_data:
        return np.empty((0, 0), np.uint8)
    return np.frombuffer(data, np.uint8).reshape(columns, rows).T


def described(
    dataset: Path, records: Sequence[Record], progress: Callable[[int, int], None] | None = None
) -> Iterator[tuple[str, Description]]:
    """Yield SHA-256 and description of the images that can be decoded; most a build described.

    Nothing is written into the dataset.
    """
    library = DescriptionLibrary(dataset)

    def read(record: Record) -> tuple[str, Description | None]:
        if record.sha256 in library:
            return record.sha256, library[record.sha256]
        try:
            data = stored_file(dataset, record.path).read_bytes()
            return record.sha256, describe_bytes(data)
        except (OSError, DamagedImage):
            return record.sha256, None

    with closing(work_ahead(read, records, threads=cpu_count(), ahead=BATCH)) as images:
        for done, (sha256, one) in enumerate(images, 1):
            if one is not None and one.small_HW.size:
                yield sha256, one
            if progress:
                progress(done, len(records))


def _fingerprint(one: Description) -> tuple[Any, ...]:
    """Return hash_W, sides, points_P4 and codes_PD of one image, as they are stored."""
    (code_OW,) = fine_hashes(thumbnail(one.small_HW)[None])
    points_P4 = one.points_P4[:POINTS].astype(np.float64)
    points_P4[:, 2] = 8 * np.log2(points_P4[:, 2].clip(1))
    points_P4[:, 3] = (points_P4[:, 3] * (256 / 360)).round() % 256
    codes_PL = one.codes_PC[:POINTS, :LEADING].astype(np.float64) / STEP
    halves_PL = (codes_PL.round().clip(-8, 7) + 8).astype(np.uint8)
    pairs_PD = (halves_PL[:, ::2] << 4) | halves_PL[:, 1::2]
    return code_OW[0], one.shape_hw, points_P4.round().clip(0, 255).astype(np.uint8), pairs_PD
