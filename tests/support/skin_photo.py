"""Photos of painted skin, which pass a diagnosis' gates where plain noise would not."""

import io
from functools import lru_cache

import numpy as np
from PIL import Image, ImageFilter

TONES = {1: (241, 208, 184), 3: (205, 152, 118), 5: (124, 79, 54), 6: (66, 43, 34)}
"""RGB by Fitzpatrick type."""


def skin_pixels(
    width: int = 240, height: int = 180, *, seed: int = 3, skin_type: int = 3
) -> np.ndarray:
    """Return H x W x 3 uint8: a tone, uneven light, fine grain, and a darker spot."""
    return _painted(width, height, seed, skin_type).copy()


@lru_cache(maxsize=64)
def _painted(width: int, height: int, seed: int, skin_type: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.normal(128, 12, (5, 6)).clip(0, 255).astype(np.uint8))
    light = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)) / 128.0
    grain = sum(_grain(rng, width, height, across) for across in (width, 400, 200, 100, 50))
    y, x = np.mgrid[:height, :width]
    centre_y, centre_x = rng.uniform(0.4, 0.6, 2) * (height, width)
    spot = np.hypot((y - centre_y) / height, (x - centre_x) / width) < rng.uniform(0.12, 0.2)
    shade = light * (1 + grain) * np.where(spot, 0.6, 1.0)
    return (np.array(TONES[skin_type]) * shade[..., None]).clip(0, 255).astype(np.uint8)


def _grain(rng: np.random.Generator, width: int, height: int, across: int) -> np.ndarray:
    """Return H x W of noise so coarse that it has `across` grains; skin has some at every scale."""
    size = (min(across, width), max(1, round(min(across, width) * height / width)))
    noise = Image.fromarray(rng.normal(0, 0.03, size[::-1]).astype(np.float32))
    return np.asarray(noise.resize((width, height), Image.Resampling.BICUBIC))


def skin_photo(
    width: int = 240,
    height: int = 180,
    form: str = "JPEG",
    *,
    seed: int = 3,
    skin_type: int = 3,
    blur: float = 0,
    **options: object,
) -> bytes:
    """Return such a photo as a file; `blur` is a Gaussian's sigma in pixels."""
    photo = Image.fromarray(skin_pixels(width, height, seed=seed, skin_type=skin_type))
    if blur:
        photo = photo.filter(ImageFilter.GaussianBlur(blur))
    file = io.BytesIO()
    photo.save(file, form, **options)
    return file.getvalue()
