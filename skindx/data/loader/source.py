"""Sources of the loader: image files, or encoded bytes in memory, whose headers are read once."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.layout import stored_file
from skindx.data.manifest import Record, check_size, decoding_of
from skindx.imaging.decode import MAX_PIXELS, ROUGH_FACTOR, decode, orientation_of, turned
from skindx.imaging.decode_cost import jpeg_cost
from skindx.imaging.image_formats import DamagedImage, image_suffix
from skindx.imaging.sandboxed_images import decode_limited
from skindx.imaging.srgb import FileColours
from skindx.imaging.stored_colours import PLAIN, SRGB, Decoding, StoredColours, stored_colours

# T = images of a task, H, W = height, width, S = side

_GOLDEN = 0.6180339887498949  # (sqrt(5) - 1) / 2


class ImageSource(Protocol):
    """Images by number."""

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width) of an image as the dataset has it."""

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """Return H x W x 3 uint8, perhaps smaller, but no side below `at_least`; do not write."""


@runtime_checkable
class MappedSource(ImageSource, Protocol):
    """Images that lie decoded in memory, so that many are cropped at once."""

    def crop(
        self, indices: Sequence[int], windows_T4: NDArray[np.float64], out_TSS3: NDArray[np.uint8]
    ) -> None:
        """Write a window of each image, resized to S x S."""


class Files:
    """The images of records below a dataset folder, read and decoded at each call.

    Their colours are the dataset's, or those of a bundle that is to see them. If `limited`, each
    image has limits of time and memory, which takes up to a millisecond more.
    """

    def __init__(
        self,
        dataset: Path,
        records: Sequence[Record],
        decoding: Decoding | None = None,
        *,
        limited: bool = False,
    ) -> None:
        self._decode = decode_limited if limited else decode
        self.dataset = dataset
        self.records = records
        self.decoding = decoding or decoding_of(dataset)

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width) as the manifest has it."""
        return self.records[index].height, self.records[index].width

    def path(self, index: int) -> Path:
        """Return an image's file. Raises UserError for one that is none of the dataset's."""
        return stored_file(self.dataset, self.records[index].path)

    def size_bytes(self, index: int) -> int:
        """Return the size of an image's file. Raises UserError when it is not there."""
        try:
            return self.path(index).stat().st_size
        except OSError as error:
            raise self.unreadable(index, error) from None

    def read(self, index: int) -> bytes:
        """Return an image's encoded bytes. Raises UserError when the file cannot be read."""
        try:
            return self.path(index).read_bytes()
        except OSError as error:
            raise self.unreadable(index, error) from None

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """Return an image; without `at_least` exactly as `decode` gives it.

        Raises UserError for one that is gone or damaged: a training on grey pixels looks healthy.
        """
        return self.decode(index, self.read(index), at_least)

    def decode(
        self, index: int, data: bytes, at_least: tuple[int, int] | None = None
    ) -> NDArray[np.uint8]:
        """Decode an image's bytes. Raises UserError for damage, or another size than it had."""
        try:
            pixels_HWC = self._decode(data, at_least=at_least, decoding=self.decoding)
        except DamagedImage as error:
            raise self.unreadable(index, error) from None
        scaled = at_least is not None
        check_size(self.records[index], pixels_HWC, lambda: self.path(index), scaled=scaled)
        return pixels_HWC

    def unreadable(self, index: int, reason: object) -> UserError:
        """Return the sentence that ends a training on a broken dataset."""
        return UserError(
            f"image {self.path(index)} cannot be read ({reason}); build the dataset again."
        )


class JpegHeader(NamedTuple):
    """What the header of a JPEG says, read and checked once where the bytes are decoded each epoch.

    Reading it takes a fiftieth of decoding in a tight loop, and three times as long between images,
    when the interpreter's code has left the processor's caches.
    """

    orientation: int
    colours: StoredColours

    def decode(self, jpeg: bytes, at_least: tuple[int, int]) -> NDArray[np.uint8] | None:
        """Return what `decode` makes of the bytes that it was read from; None if they need it."""
        import simplejpeg

        height, width = at_least if self.orientation < 5 else at_least[::-1]
        try:
            pixels_HWC: NDArray[np.uint8] = simplejpeg.decode_jpeg(
                jpeg, "RGB", True, True, height, width, ROUGH_FACTOR
            )
        except (ValueError, MemoryError):
            return None
        if self.colours.profile:
            pixels_HWC = FileColours(self.colours).rgb(pixels_HWC)
        return pixels_HWC if self.orientation == 1 else turned(pixels_HWC, self.orientation)


_PLAIN_HEADER = JpegHeader(1, PLAIN)


def read_header(data: bytes, decoding: Decoding = SRGB) -> JpegHeader | None:
    """Return the header of a JPEG; None for what `decode` alone takes, refuses or mends."""
    import simplejpeg

    if image_suffix(data[:16]) != ".jpg":
        return None
    try:
        height, width, colorspace, subsampling = simplejpeg.decode_jpeg_header(data)
        # What may be decoded at full scale may be at any.
        jpeg_cost(data, width, height, colorspace, subsampling).check(MAX_PIXELS)
    except ValueError:
        return None
    if colorspace != "YCbCr":
        return None
    colours = stored_colours(data, "JPEG") if decoding == SRGB else PLAIN
    header = JpegHeader(orientation_of(data, "JPEG"), colours)
    return _PLAIN_HEADER if header == _PLAIN_HEADER else header


def rank_in_memory(index: int) -> float:
    """Return 0..1: where only a share of the images can be kept, those below it are.

    Multiples of the golden ratio lie evenly, also those of every second or third number, which is
    what a rank sees of a sharded set.
    """
    return index * _GOLDEN % 1


class InMemory(Files):
    """Files whose bytes are kept once they were read.

    A `share` of the images is kept (see `rank_in_memory`); the others are read each time.
    """

    def __init__(
        self,
        dataset: Path,
        records: Sequence[Record],
        share: float = 1.0,
        decoding: Decoding | None = None,
    ) -> None:
        super().__init__(dataset, records, decoding)
        self.share = share
        # Threads may read the same image at once and both write it: the bytes are the same. No
        # lock, so that a fork can never leave a locked one without an owner.
        self._kept: dict[int, bytes] = {}
        self._headers: dict[int, tuple[bytes, JpegHeader | None]] = {}

    def __contains__(self, index: int) -> bool:
        """True when the image's bytes are in memory."""
        return index in self._kept

    def read(self, index: int) -> bytes:
        """Return an image's encoded bytes. Raises UserError when the file cannot be read."""
        data = self._kept.get(index)
        if data is None:
            data = super().read(index)
            if rank_in_memory(index) < self.share:
                self._kept[index] = data
        return data

    def decode(
        self, index: int, data: bytes, at_least: tuple[int, int] | None = None
    ) -> NDArray[np.uint8]:
        """Decode an image's bytes; the header of a JPEG that is kept is read and checked once.

        Raises UserError for damage, or another size than it had.
        """
        if at_least and self._kept.get(index) is data:
            known = self._headers.get(index)
            if known is None or known[0] is not data:
                known = self._headers[index] = data, read_header(data, self.decoding)
            if known[1] and (pixels_HWC := known[1].decode(data, at_least)) is not None:
                row = self.records[index]
                check_size(row, pixels_HWC, lambda: self.path(index), scaled=True)
                return pixels_HWC
        return super().decode(index, data, at_least)

    def hold(self, index: int, data: bytes) -> None:
        """Keep bytes that came from elsewhere than the file."""
        self._kept[index] = data

    def take(self, index: int) -> bytes:
        """Return an image's bytes and forget them. Raises UserError as `read` does."""
        data = self.read(index)
        self._kept.pop(index, None)
        self._headers.pop(index, None)
        return data

    def forget_all_but(self, mask_N: NDArray[np.bool_]) -> None:
        """Keep the images of the mask alone."""
        for index in [number for number in self._kept if not mask_N[number]]:
            del self._kept[index]
            self._headers.pop(index, None)
