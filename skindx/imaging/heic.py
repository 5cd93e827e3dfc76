"""HEIC photos, for a process of its own: libheif is given what strangers sent."""

from pathlib import Path

import numpy as np

from skindx.imaging.decode import decode_with_pillow, refusal


def decode_heic(path: Path, out: Path, max_pixels: int) -> dict[str, str]:
    """Write a HEIC photo's pixels_HWC, uint8 RGB, upright, to `out` as npy; say what failed.

    libheif turns the picture as the file says, and leaves metadata out. Never raises for a file.
    """
    try:
        pixels_HWC = decode_with_pillow(path.read_bytes(), "HEIF", max_pixels)
    except Exception as error:
        damage = refusal(error)
        return {"reason": damage.reason, "detail": str(damage)}
    with out.open("wb") as file:  # as a name it would get a suffix
        np.save(file, pixels_HWC, allow_pickle=False)
    return {"reason": "", "detail": ""}
