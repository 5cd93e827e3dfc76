"""How fast images are screened and hashed on one core, beside the decoder's own rate."""

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.measurement import interleave
from skindx.core.settings_base import Settings
from skindx.data.screening.screen import ScreenSettings, hash_sound, judge_bytes
from skindx.imaging.decode import decode_small, import_decoders
from skindx.imaging.hashes import ORIENTATIONS, SIDE, HashKind, hash_thumbnails, thumbnail
from skindx_bench.harness.result import Figure, Result, median, ratio
from skindx_bench.harness.training import decode_codes, describe, noisy_jpegs

# N = images, K = kinds of hash, O = orientations

HASHES: tuple[HashKind, ...] = ("perceptual", "difference")

SMALLEST = ("images=4", "batch=3", "rounds=3")


class Config(Settings):
    """`images` files a round, handed over `batch` at a time as a build does."""

    images: int = Field(256, ge=2)
    batch: int = Field(32, ge=1)
    rounds: int = Field(9, ge=3)
    seed: int = 0


def run(settings: Config) -> Result:
    """Time screening, hashing and peers in turn, all in this process and on one thread."""
    import cv2
    import simplejpeg

    import_decoders()  # as the processes that screen do
    files = noisy_jpegs(settings.images, settings.seed)
    size, limits = settings.batch, ScreenSettings()
    batches = [files[low : low + size] for low in range(0, len(files), size)]

    def decode() -> None:
        for data in files:
            simplejpeg.decode_jpeg(data, "RGB")

    def decode_grey() -> None:
        for data in files:
            simplejpeg.decode_jpeg(data, "GRAY", min_height=SIDE, min_width=SIDE)

    def screen() -> None:
        for batch in batches:
            screened = hash_sound([judge_bytes(data, limits) for data in batch], HASHES)
            assert all(screening.reason is None for screening in screened)

    candidates: dict[str, Callable[[], object]] = {
        "decode": decode,
        "screen": screen,
        "hash": lambda: [hash_images(batch, HASHES) for batch in batches],
        "codes": lambda: decode_codes(files),
        "small": decode_grey,
    }
    notes = [
        describe(files),
        "All in this process on one thread, timed by its CPU seconds.",
        "decode: simplejpeg's strict RGB decoder at full size, nothing else. Screening: the same "
        f"decoder, SHA-256, light, contrast, blur, and {' + '.join(HASHES)} hash in 8 orientations "
        "each. Hashing: a scaled grey decode and the same hashes.",
        "codes: a grey decode at 1/8, which reads every Huffman code and makes hardly a pixel: no "
        "use of libjpeg is faster. profile: shares of hashing; small decode: what hashing calls.",
    ]
    if find_spec("imagehash") is None:
        notes.append("imagehash is not installed, so its row is left out: pip install imagehash.")
    else:
        candidates["imagehash"] = lambda: _imagehash(files)
        notes.append("imagehash: Pillow's decoder, phash + dhash in one orientation.")
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        seconds = interleave(candidates, settings.rounds, clock=time.process_time)
    finally:
        cv2.setNumThreads(threads)

    def rate(name: str) -> Figure:
        return median([len(files) / elapsed for elapsed in seconds[name]], "images/s")

    figures = {
        "hash_per_core": rate("hash"),
        "screen_per_core": rate("screen"),
        "codes_per_core": rate("codes"),
        "hash_over_codes": ratio(seconds["hash"], seconds["codes"]),
        "decode_per_core": rate("decode"),
        "screen_over_decode": ratio(seconds["screen"], seconds["decode"]),
    }
    baselines = {}
    if "imagehash" in seconds:
        figures["hash_over_imagehash"] = ratio(seconds["hash"], seconds["imagehash"])
        baselines["imagehash"] = rate("imagehash")
    stages = {
        "libjpeg: Huffman codes": seconds["codes"],
        "libjpeg: the rest of the small decode": _less(seconds["small"], seconds["codes"]),
        "headers, thumbnail and hashes": _less(seconds["hash"], seconds["small"]),
    }
    profile = {
        name: asdict(median(np.divide(each, seconds["hash"]).tolist(), "of hashing"))
        for name, each in stages.items()
    }
    return Result("screen", figures, baselines, notes=tuple(notes), parts={"profile": profile})


def _less(seconds: Sequence[float], other: Sequence[float]) -> list[float]:
    return [one - less for one, less in zip(seconds, other, strict=True)]


def _imagehash(files: list[bytes]) -> None:
    import imagehash
    from PIL import Image

    for data in files:
        with Image.open(io.BytesIO(data)) as image:
            imagehash.phash(image)
            imagehash.dhash(image)


def hash_images(datas: Sequence[bytes], hashes: Sequence[HashKind]) -> NDArray[np.uint64]:
    """Return codes_NKO, decoded in this process.

    They differ from those of the screening by 0 to 2 of 64 bits (1,830, 346 and 24 of 2,200
    dermoscopic images, the worse of perceptual and difference hash), because a JPEG is scaled
    while it is decoded. Compare them with each other. Raises DamagedImage.
    """
    thumbs = [thumbnail(decode_small(data, SIDE)) for data in datas]
    if not thumbs:
        return np.empty((0, len(hashes), ORIENTATIONS), np.uint64)
    return hash_thumbnails(np.stack(thumbs), hashes)
