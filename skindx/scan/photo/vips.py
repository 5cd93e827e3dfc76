"""libvips for untrusted files: four decoders and no other, one thread, nothing remembered."""

import os
from typing import Any

from skindx.core.machine import require_extra
from skindx.imaging.formats import DamagedImage

LOADERS = {".jpg": "jpegload", ".png": "pngload", ".webp": "webpload", ".tif": "tiffload"}
"""By the first bytes of a file: libvips is never left to guess."""

_CLASSES = ("JpegFile", "PngFile", "WebpFile", "TiffFile")
_STRICTNESS = {".jpg": "warning"}
"""libjpeg only warns of damage in mid-stream; the others' warnings are of harmless metadata."""


def import_vips() -> Any:
    """Return the module pyvips with every loader blocked but those of LOADERS.

    Raises UserError without the extra `scan`.
    """
    require_extra("scan", "pyvips", purpose="reading large photos")
    os.environ.setdefault("VIPS_CONCURRENCY", "1")  # read at import
    import pyvips

    pyvips.cache_set_max(0)
    pyvips.block_untrusted_set(True)
    pyvips.operation_block_set("VipsForeignLoad", True)
    for name in _CLASSES:
        pyvips.operation_block_set(f"VipsForeignLoad{name}", False)
    return pyvips


def open_image(vips: Any, path: str, suffix: str) -> Any:
    """Return a lazy image whose rows come from top to bottom. Raises DamagedImage."""
    load = getattr(vips.Image, LOADERS[suffix])
    try:
        return load(path, access="sequential", fail_on=_STRICTNESS.get(suffix, "error"))
    except vips.Error as error:
        raise damaged(error) from error


def value(image: Any, name: str, default: int) -> int:
    """Return a whole number of an image's metadata."""
    return int(image.get(name)) if image.get_typeof(name) else default


def damaged(error: Exception) -> DamagedImage:
    """Return what an error of libvips means."""
    said = " ".join(str(error).split())[:200]
    memory = "memory" in said.lower()
    return DamagedImage(said, "decode-memory" if memory else "damaged")
