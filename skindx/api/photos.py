"""Photos as a caller has them: paths, bytes, images of Pillow, arrays; all become file bytes."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError, refuse_unknown
from skindx.diagnosis.case import Patient
from skindx.diagnosis.photo_checks import read_photo

if TYPE_CHECKING:
    from PIL.Image import Image

PhotoLike: TypeAlias = "str | os.PathLike[str] | bytes | Image | NDArray[np.uint8]"
"""A path, a file's bytes, an image of Pillow, or an array H x W x 3 of uint8 RGB."""

FACTS = ("age", "sex", "site", "laterality", "duration", "skin_type")


def photo_bytes(photo: Any) -> bytes:
    """Return a photo as the bytes of a file, for the one reader with limits.

    Images and arrays become a PNG, which keeps each pixel. Raises UserError.
    """
    if isinstance(photo, bytes | bytearray | memoryview):
        return bytes(photo)
    if isinstance(photo, str | os.PathLike):
        return read_photo(Path(photo))
    if isinstance(photo, np.ndarray):
        return _png_of_array(photo)
    if type(photo).__module__.startswith("PIL."):
        return _png_of_image(photo)
    raise UserError(
        f"a photo of type {type(photo).__name__} cannot be read; give a path, bytes, an image of "
        "Pillow, or an array H x W x 3 of uint8."
    )


def _png_of_array(photo: NDArray[Any]) -> bytes:
    import cv2

    if photo.dtype != np.uint8 or photo.ndim != 3 or photo.shape[2] != 3 or not photo.size:
        raise UserError(
            f"an array of shape {photo.shape} and type {photo.dtype} is no photo; give "
            "H x W x 3, RGB, uint8."
        )
    done, png = cv2.imencode(".png", photo[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 1])
    if not done:
        raise UserError(f"an array of shape {photo.shape} cannot be encoded; give fewer pixels.")
    return png.tobytes()


def _png_of_image(photo: "Image") -> bytes:
    from PIL import ImageOps

    try:
        upright = ImageOps.exif_transpose(photo)
        if upright.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
            upright = upright.convert("RGB")
        written = io.BytesIO()
        upright.save(written, "PNG", compress_level=1)
    except Exception as error:  # what a plug-in of Pillow raises for a damaged file that is lazy
        raise UserError(
            f"the image cannot be read ({type(error).__name__}); open it again or save it as JPEG."
        ) from None
    return written.getvalue()


def patient_of(facts: Mapping[str, Any]) -> Patient:
    """Return what is known of the person. Raises UserError, which names an unknown keyword."""
    refuse_unknown("facts", facts, FACTS)
    return Patient.parse(dict(facts), origin="facts", expand=False)
