"""Screening: each stored image is decoded once, judged, measured and hashed.

Images are hostile until proven sound: `screen_files` decodes them in processes of their own,
which have a limit of memory and of time; what breaks there becomes a reason.
"""

import gc
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.data.screening.judge import (
    Measured,
    ScreenSettings,
    judge_content,
    judge_shape,
    measure,
)
from skindx.data.screening.resolution import effective_pixels
from skindx.imaging.decode import decode, import_decoders
from skindx.imaging.formats import refusal
from skindx.imaging.gates import skin_mask
from skindx.imaging.hashes import HashKind, grey, hash_thumbnails, thumbnail
from skindx.imaging.skin_content import SKIN, content_of
from skindx.workers.sandbox import Failure, Work, run_sandboxed, sandboxed

__all__ = ["Measured", "ScreenSettings", "Screened", "screen_bytes", "screen_files"]

# N = images, K = kinds of hash, O = orientations, S = thumbnail side


@dataclass(frozen=True, slots=True)
class Screened:
    """One image's verdict; a damaged one has no size (0), only a sound one has codes_KO."""

    reason: str | None
    """not-a-picture, unsupported-format, too-many-pixels, damaged, decode-memory, decode-timeout,
    decode-crash, too-small, bad-aspect, too-dark, too-bright, blank, blurred; None: it is sound."""
    detail: str
    width: int
    height: int
    codes_KO: NDArray[np.uint64]
    perceptual_hash: str = ""
    """Of the image as it stands, hexadecimal, whichever hashes are compared."""
    sha256: str = ""
    """Of the bytes that were judged; "" where they could not be read or ended their decoder."""
    luminance: float = 0.0
    """This and the next two as `Measured` has them; 0 where nothing was measured."""
    contrast: float = 0.0
    sharpness: float = 0.0
    effective_pixels: float = 0.0
    """How many pixels an image of the same detail needs; 0 where it was not measured."""
    not_skin: float = 0.0
    """0..1, from 0.5 on it looks like no skin; 0 where it was not checked."""
    shows: str = ""
    """Appearance instead of skin: grey, colours, flat, text or noise; "" for skin."""


def screen_files(
    paths: Sequence[Path],
    settings: ScreenSettings,
    hashes: Sequence[HashKind],
    *,
    workers: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Screened]:
    """Screen files in `workers` processes; the order is that of `paths`.

    Never raises for an image: one that hangs, crashes or exhausts its decoder has that as its
    reason. Raises RuntimeError when no decoder can be started at all.
    """
    job = {"settings": settings.model_dump(mode="json"), "hashes": list(hashes)}
    screened: dict[int, Screened] = {}
    for position, answer in run_sandboxed(screening, job, paths, settings.limits, workers):
        screened[position] = (
            _unscreened(answer.reason, answer.detail)
            if isinstance(answer, Failure)
            else from_plain(answer)
        )
        if on_progress:
            on_progress(len(screened), len(paths))
    return [screened[position] for position in range(len(paths))]


def _prepare() -> None:
    import_decoders()
    # OpenCV computes its tables of colours in the first call, which takes longer than an image.
    skin_mask(np.zeros((1, 1, 3), np.uint8))


@sandboxed(_prepare)
def screening(job: dict[str, Any]) -> Work:
    """Return what judges files by the job's `settings` and hashes the sound ones."""
    settings, hashes = ScreenSettings.model_validate(job["settings"]), job["hashes"]

    def work(paths: Sequence[Path]) -> Iterator[list[Any] | None]:
        judged = []
        for path in paths:
            judged.append(judge_file(path, settings))
            if not judged[-1][0].width:
                # What a decoder left half done may hold itself; the next one needs the memory.
                gc.collect()
            yield None
        yield [to_plain(verdict) for verdict in hash_sound(judged, hashes)]

    return work


def screen_bytes(data: bytes, settings: ScreenSettings, hashes: Sequence[HashKind]) -> Screened:
    """Decode an image in this process, judge it, and hash it when it is sound."""
    return hash_sound([judge_bytes(data, settings)], hashes)[0]


Judged = tuple[Screened, NDArray[np.float32] | None]
"""A verdict that lacks its hashes, and the thumbnail_SS that they come from, if it is sound."""


def judge_file(path: Path, settings: ScreenSettings) -> Judged:
    """Read, decode, measure and judge a stored image."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return _unscreened("damaged", f"the file cannot be read ({error.strerror})"), None
    except MemoryError:
        return _unscreened("decode-memory", "the file is larger than the memory limit"), None
    return judge_bytes(data, settings)


def judge_bytes(data: bytes, settings: ScreenSettings) -> Judged:
    """Decode, measure and judge an image."""
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        pixels_HWC = decode(data, max_pixels=settings.max_pixels)
        height, width = pixels_HWC.shape[:2]
        refused, measured, thumb_SS = judge_shape(width, height, settings), Measured(0, 0, 0), None
        looked = SKIN if refused or settings.not_skin == "off" else content_of(pixels_HWC)
        grey_HW = grey(pixels_HWC)
        del pixels_HWC  # of a large image the colours are freed before more is made of it
        effective = 0.0
        if not refused:
            thumb_SS = thumbnail(grey_HW)
            measured = measure(grey_HW, thumb_SS)
            refused = judge_content(measured, settings)
            effective = 0.0 if refused else effective_pixels(grey_HW)
    except Exception as error:
        broken = refusal(error)
        return replace(_unscreened(broken.reason, str(broken)), sha256=sha256), None
    reason, detail = refused or (None, "")
    content = SKIN if refused else looked
    verdict = Screened(
        *(reason, detail, width, height, _NO_CODES, "", sha256, *measured, effective),
        not_skin=content.score,
        shows=content.shows,
    )
    return verdict, None if refused else thumb_SS


def hash_sound(judged: Sequence[Judged], hashes: Sequence[HashKind]) -> list[Screened]:
    """Hash the sound ones together, which takes a third of the time of one by one."""
    thumbs = [thumb_SS for _, thumb_SS in judged if thumb_SS is not None]
    if not thumbs:
        return [verdict for verdict, _ in judged]
    kinds = [*hashes, *(() if "perceptual" in hashes else ("perceptual",))]
    codes_NKO = hash_thumbnails(np.stack(thumbs), kinds)
    codes = iter(codes_NKO)
    done: list[Screened] = []
    for verdict, thumb_SS in judged:
        if thumb_SS is None:
            done.append(verdict)
            continue
        codes_KO = next(codes)
        perceptual = f"{int(codes_KO[kinds.index('perceptual'), 0]):016x}"
        codes_KO = codes_KO[: len(hashes)].copy()
        done.append(replace(verdict, codes_KO=codes_KO, perceptual_hash=perceptual))
    return done


_NO_CODES = np.empty((0, 0), np.uint64)


def _unscreened(reason: str, detail: str) -> Screened:
    return Screened(reason, detail, 0, 0, _NO_CODES)


def to_plain(screened: Screened) -> dict[str, Any]:
    """Return plain values that JSON can hold; nothing that a decoder sends is ever unpickled."""
    return {**asdict(screened), "codes_KO": screened.codes_KO.tolist()}


def from_plain(plain: dict[str, Any]) -> Screened:
    """Return what `to_plain` was given."""
    codes = plain["codes_KO"]
    codes_KO = np.array(codes, np.uint64) if codes else _NO_CODES
    return Screened(**{**plain, "codes_KO": codes_KO})
