"""Screening: each stored picture is decoded once, judged, measured and hashed."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.config import Settings
from skindx.data.decode import MAX_PIXELS, DamagedPicture, decode
from skindx.data.hashes import HashKind, hash_thumbnails, thumbnail
from skindx.errors import UserError

# N = pictures, K = kinds of hash, O = orientations

_BATCH = 32
_INLINE_BATCHES = 8
"""So few pictures are screened sooner than another process starts."""


class ScreenSettings(Settings):
    """What a picture must be to enter; luminances are means on 0..255.

    The limits only take away what shows nothing. Measured on 2,359 dermoscopic and 855 strongly
    augmented clinical pictures: luminance 75..227 and 8..255, where the first black ones lie
    below 20 and the burnt-out ones above 250; detail 12..7,700 and 0.7..1,060, smooth skin with
    one faint lesion still having 3 and more, and a Gaussian blur of 1/30 of the side leaving 1.9.
    """

    min_side: int = Field(default=64, ge=8, description="pixels")
    max_aspect: float = Field(default=4.0, ge=1, description="longer side / shorter side")
    min_luminance: float = Field(default=20.0, ge=0, le=255)
    max_luminance: float = Field(default=250.0, ge=0, le=255)
    min_detail: float = Field(
        default=2.0, ge=0, description="variance of the Laplacian at 256 pixels"
    )
    max_pixels: int = Field(default=MAX_PIXELS, gt=0)


@dataclass(frozen=True, slots=True)
class Screened:
    """One picture's verdict; a damaged one has no size (0), only a sound one has codes_KO."""

    reason: str | None
    """damaged, too-small, bad-aspect, too-dark, too-bright, blurred; None: it is sound."""
    detail: str
    width: int
    height: int
    codes_KO: NDArray[np.uint64]
    perceptual_hash: str = ""
    """Of the picture as it stands, hexadecimal, whichever hashes are compared."""


def screen_bytes(data: bytes, settings: ScreenSettings, hashes: Sequence[HashKind]) -> Screened:
    """Decode a picture, judge it, and hash it when it is sound."""
    none = np.empty((0, 0), np.uint64)
    try:
        pixels_HWC = decode(data, max_pixels=settings.max_pixels)
    except DamagedPicture as error:
        return Screened("damaged", str(error), 0, 0, none)
    height, width = pixels_HWC.shape[:2]
    verdict = judge(pixels_HWC, settings)
    if verdict:
        return Screened(*verdict, width, height, none)
    thumb_1SS = thumbnail(pixels_HWC)[None]
    codes_KO = hash_thumbnails(thumb_1SS, hashes)[0]
    perceptual = int(hash_thumbnails(thumb_1SS, ("perceptual",))[0, 0, 0])
    return Screened(None, "", width, height, codes_KO, f"{perceptual:016x}")


def judge(pixels_HWC: NDArray[np.uint8], settings: ScreenSettings) -> tuple[str, str] | None:
    """Return (reason, sentence) for a picture that shows nothing of use, None for a sound one."""
    height, width = pixels_HWC.shape[:2]
    size = f"{width} x {height} pixels"
    if min(width, height) < settings.min_side:
        return "too-small", f"{size}; each side needs {settings.min_side}"
    if max(width, height) > settings.max_aspect * min(width, height):
        return "bad-aspect", f"{size}; one side is more than {settings.max_aspect:g} x the other"
    luminance, detail = measure(pixels_HWC)
    if luminance < settings.min_luminance:
        return "too-dark", f"mean luminance {luminance:.1f}, at least {settings.min_luminance:g}"
    if luminance > settings.max_luminance:
        return "too-bright", f"mean luminance {luminance:.1f}, at most {settings.max_luminance:g}"
    if detail < settings.min_detail:
        return "blurred", f"variance of Laplacian {detail:.2f}, at least {settings.min_detail:g}"
    return None


def measure(pixels_HWC: NDArray[np.uint8]) -> tuple[float, float]:
    """Return (mean luminance on 0..255, variance of the Laplacian).

    The longer side is first brought down to 256 pixels, so that detail does not depend on the
    camera's resolution.
    """
    import cv2

    grey_HW = cv2.cvtColor(pixels_HWC, cv2.COLOR_RGB2GRAY)
    scale = 256 / max(grey_HW.shape)
    if scale < 1:
        grey_HW = cv2.resize(grey_HW, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return float(grey_HW.mean()), float(cv2.Laplacian(grey_HW, cv2.CV_64F).var())


def screen_files(
    paths: Sequence[Path],
    settings: ScreenSettings,
    hashes: Sequence[HashKind],
    *,
    workers: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Screened]:
    """Screen files in `workers` processes; the order is that of `paths`."""
    batches = [paths[start : start + _BATCH] for start in range(0, len(paths), _BATCH)]
    screen_batch = partial(_screen_batch, settings=settings, hashes=tuple(hashes))
    screened: list[Screened] = []
    for results in _map(screen_batch, batches, workers):
        screened += results
        if on_progress:
            on_progress(len(screened), len(paths))
    return screened


def to_plain(screened: Screened) -> dict[str, Any]:
    """Return plain values that JSON and Parquet can hold."""
    return {**asdict(screened), "codes_KO": screened.codes_KO.tolist()}


def from_plain(plain: dict[str, Any]) -> Screened:
    """Return what `to_plain` was given."""
    codes = plain["codes_KO"]
    codes_KO = np.array(codes, np.uint64) if codes else np.empty((0, 0), np.uint64)
    return Screened(**{**plain, "codes_KO": codes_KO})


def _screen_batch(
    paths: Sequence[Path], settings: ScreenSettings, hashes: Sequence[HashKind]
) -> list[Screened]:
    return [screen_bytes(_read(path), settings, hashes) for path in paths]


def _read(path: Path) -> bytes:
    """Read a stored file; one that has gone or cannot be read screens as damaged."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _map(
    function: Callable[[Sequence[Path]], list[Screened]],
    batches: Sequence[Sequence[Path]],
    workers: int,
) -> Iterator[list[Screened]]:
    if workers == 1 or len(batches) <= _INLINE_BATCHES:
        yield from map(function, batches)
        return
    # A fresh interpreter, not a fork: the caller's progress bar and libraries run threads.
    with ProcessPoolExecutor(min(workers, len(batches)), get_context("spawn")) as pool:
        try:
            yield from pool.map(function, batches)
        except BrokenProcessPool:
            raise UserError(
                "a screening process died, most likely for want of memory; build again with "
                "`--set workers=1` or a lower screen.max_pixels."
            ) from None
