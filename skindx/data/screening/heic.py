"""HEIC photos, for a process of its own: libheif is given what strangers sent."""

from pathlib import Path

import numpy as np

from skindx.data.screening.decode import decode_with_pillow, refusal


def decode_heic(path: Path, folder: Path, max_pixels: int) -> dict[str, str]:
    """Write a HEIC photo's pixels_HWC, uint8 RGB, upright, as FOLDER/pixels.npy; say what failed.

    libheif turns the picture as the file says, and leaves metadata out. Never raises for a file.
    """
    try:
        pixels_HWC = decode_with_pillow(path.read_bytes(), "HEIF", max_pixels)
    except Exception as error:
        damage = refusal(error)
        return {"reason": damage.reason, "detail": str(damage)}
    np.save(folder / "pixels.npy", pixels_HWC, allow_pickle=False)
    return {"reason": "", "detail": ""}
