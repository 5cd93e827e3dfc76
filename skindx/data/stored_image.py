"""Pixels of a dataset's stored images, or one sentence about why there are none."""

import hashlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.layout import stored_file
from skindx.data.manifest import Record
from skindx.imaging.decode import decode


class StoredImage(Protocol):
    """What has a path relative to its dataset folder: a manifest's record, for one."""

    @property
    def path(self) -> str: ...


def read_image(dataset: Path, record: StoredImage) -> NDArray[np.uint8]:
    """Return an image's pixels_HWC. Raises UserError for one that is gone or damaged."""
    file = stored_file(dataset, record.path)
    try:
        return decode(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}); run `skindx build` again.") from None


_SAMPLE = 64


def check_sample(dataset: Path, records: Sequence[Record]) -> None:
    """Compare some images, others at each call, with the hashes that the manifest has of them.

    Raises UserError for one that is gone, or was changed after the build.
    """
    for record in random.sample(records, min(_SAMPLE, len(records))):
        file = stored_file(dataset, record.path)
        try:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise UserError(f"{file} cannot be read ({error}); run `skindx build` again.") from None
        if digest != record.sha256:
            raise changed(file, f"its SHA-256 begins with {digest[:8]}, not {record.sha256[:8]}")


def check_size(
    record: Record, pixels_HWC: NDArray[np.uint8], file: Callable[[], Path], *, scaled: bool
) -> None:
    """Raise UserError, which names the `file`, for an image of another size than the manifest's.

    One that is `scaled` may be of n / 8 of it, as libjpeg-turbo makes it.
    """
    height, width = pixels_HWC.shape[:2]
    for eighths in range(8, 0 if scaled else 7, -1):
        if height == -(-record.height * eighths // 8) and width == -(-record.width * eighths // 8):
            return
    raise UserError(
        f"image {file()} cannot be read as the manifest has it: its size is not the manifest's, "
        f"{width} x {height} pixels instead of {record.width} x {record.height}, so it was changed "
        "after the dataset was built; build the dataset again, or restore the file."
    )


def changed(file: Path, how: str) -> UserError:
    """Return the error of an image that is not the one that the manifest describes."""
    return UserError(
        f"{file} was changed after the dataset was built ({how}), so that its label and boxes may "
        "be another image's; restore it, or build the dataset again."
    )
