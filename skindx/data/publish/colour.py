"""Colour profiles: what is published is sRGB and says nothing; wide colours are brought there."""

import io
import warnings

import numpy as np
from numpy.typing import NDArray

from skindx.imaging.decode import FORMATS

_SAME = 4
"""Levels of 255 by which two ways to write down sRGB may differ."""


def to_srgb(pixels_HWC: NDArray[np.uint8], data: bytes) -> NDArray[np.uint8] | None:
    """Return the pixels of the file `data` in sRGB, None where they already are.

    A profile is judged by what it does to colours, not by its name. A file without one, or whose
    profile is broken or not of RGB, counts as sRGB, as it does for every viewer.
    """
    from PIL import Image, ImageCms

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data), formats=tuple(FORMATS.values())) as image:
                profile = image.info.get("icc_profile")
            if not profile or profile[16:20] != b"RGB ":
                return None
            transform = ImageCms.buildTransform(
                ImageCms.ImageCmsProfile(io.BytesIO(profile)),
                ImageCms.createProfile("sRGB"),
                "RGB",
                "RGB",
                renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
            )
        except Exception:
            # Pillow and littleCMS meet hostile bytes with every kind of exception.
            return None

    def convert(values_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
        changed = ImageCms.applyTransform(Image.fromarray(values_HWC), transform)
        assert changed is not None  # None only comes from a conversion in place
        return np.asarray(changed)

    levels = np.linspace(0, 255, 9, dtype=np.uint8)
    cube_HWC = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(1, -1, 3)
    difference = np.abs(convert(cube_HWC).astype(int) - cube_HWC)
    return convert(pixels_HWC) if difference.max() > _SAME else None
