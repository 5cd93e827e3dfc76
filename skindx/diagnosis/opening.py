"""From the bytes of a photo to pixels; whatever is wrong with them is told in a sentence."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.screening.decode import DamagedPicture, decode
from skindx.data.screening.magic import picture_suffix
from skindx.diagnosis.refusal import Refused
from skindx.errors import UserError

MAX_BYTES = 20 * 1024 * 1024
MIN_SIDE = 32
MAX_RATIO = 10


@dataclass(frozen=True)
class Opened:
    """A decoded photo, H x W x 3 RGB uint8, upright, perhaps at a smaller scale than its file."""

    pixels_HWC: NDArray[np.uint8]
    width: int
    height: int
    """Pixels of the upright photo at full scale."""
    sha256: str
    """Of the file's bytes."""


def read_picture(path: Path) -> bytes:
    """Read a picture file, never more than the limit. Raises UserError."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"picture {path} does not exist; check the path.") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError(f"picture {path} cannot be read ({reason}); give a file.") from None


def open_photo(data: bytes, photo: int = 0) -> Opened:
    """Decode a photo's bytes; `photo` is its place in the case. Raises Refused."""
    if not data:
        raise Refused("unreadable", "the file is empty; choose a JPEG, PNG or WebP photo.", photo)
    if len(data) > MAX_BYTES:
        raise Refused(
            "size",
            f"the file has more than {MAX_BYTES >> 20} MB; save the photo smaller and try again.",
            photo,
        )
    if picture_suffix(data[:16]) is None:
        raise Refused(
            "unreadable",
            "the file is no picture that can be read here, whatever its name says; "
            "choose a JPEG, PNG or WebP photo (save HEIC as JPEG first).",
            photo,
        )
    try:
        pixels_HWC = decode(data)
    except DamagedPicture as error:
        # A third-party decoder's own words (`error` has a cause then) tell a user nothing.
        reason = str(error) if error.__cause__ is None else "it is damaged or cut short"
        raise Refused(
            "unreadable",
            f"the picture cannot be read ({reason}); take it again or export it anew as JPEG.",
            photo,
        ) from None
    height, width = pixels_HWC.shape[:2]
    if min(height, width) < MIN_SIDE or max(height, width) > MAX_RATIO * min(height, width):
        raise Refused(
            "size",
            f"the picture measures {width} x {height} pixels; choose one of at least "
            f"{MIN_SIDE} on each side and at most {MAX_RATIO} times longer than wide.",
            photo,
        )
    return Opened(pixels_HWC, width, height, hashlib.sha256(data).hexdigest())
