"""The images that loading and screening are timed on: soft blobs under the grain of a camera."""

from collections.abc import Sequence

import numpy as np

WIDTH, HEIGHT, QUALITY = 500, 375, 90
GRAIN = 6.0
"""Standard deviation of the noise, in grey levels; it is what makes a JPEG slow to decode."""


def noisy_jpegs(count: int, seed: int = 0) -> list[bytes]:
    """Return JPEG files of WIDTH x HEIGHT pixels at QUALITY, 4:2:0, every one different."""
    import cv2
    import simplejpeg

    rng = np.random.default_rng(seed)
    files = []
    for _ in range(count):
        coarse = rng.uniform(40, 220, (6, 7, 3)).astype(np.float32)
        smooth = cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
        grainy = smooth + rng.normal(0, GRAIN, (HEIGHT, WIDTH, 1))
        pixels = np.clip(grainy, 0, 255).astype(np.uint8)
        files.append(simplejpeg.encode_jpeg(pixels, quality=QUALITY, colorsubsampling="420"))
    return files


def describe(files: Sequence[bytes]) -> str:
    """Say in a sentence what `noisy_jpegs` made."""
    mean_kb = sum(map(len, files)) / len(files) / 1000
    return (
        f"{len(files)} noisy JPEGs of {WIDTH} x {HEIGHT} pixels, quality {QUALITY}, 4:2:0, grain "
        f"of {GRAIN:g} grey levels, {mean_kb:.1f} kB on average."
    )
