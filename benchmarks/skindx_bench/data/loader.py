"""How fast training gets its images: beside pure decoding, and beside torchvision's loader."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.machine import cpu_count, keep_freed_memory
from skindx.core.measurement import timed_rounds
from skindx.core.settings_base import Settings
from skindx.data.layout import store_bytes
from skindx.data.loader.crops import Window, draw_windows, fill_random_crops, sample_seeds
from skindx.data.loader.load import Pool, load, work_ahead
from skindx.data.loader.pixels import open_pixels
from skindx.data.loader.source import Files, ImageSource, InMemory
from skindx.data.manifest import Record
from skindx.imaging.resize import Resize, resize_bilinear, resize_by_opencv
from skindx.imaging.stored_colours import AS_STORED, coded_colours
from skindx_bench.harness.result import Figure, Result, median, ratio
from skindx_bench.harness.training import (
    HEIGHT,
    WIDTH,
    decode_codes,
    describe,
    kept_when_stopped,
    noisy_jpegs,
)

# N = images, S = side

SIDE, BATCH = 224, 32
SCALE, RATIO = (0.5, 1.0), (0.8, 1.25)
_DISPLAY_P3 = 12, 13
"""Primaries and curve of ITU-T H.273."""
CACHED_SIDE = 311
"""Shorter side in the cache on disk: training's for 224 pixels, 224 / 0.9 * 1.25."""

_RATIOS = {
    "loader_over_decode": ("loader", "decode"),
    "decode_and_resize_over_decode": ("decode and resize", "decode"),
    "loader_over_decode_and_resize": ("loader", "decode and resize"),
    "loader_over_imagefolder": ("loader", "ImageFolder"),
    "cache_over_imagefolder": ("cache", "ImageFolder"),
    "cache_over_resize_limit": ("cache", "resize"),
    "resize_over_opencv": ("resize", "resize, OpenCV"),
    "resize_over_copy": ("resize", "copy"),
    "crops_over_decoding": ("crops", "decoding"),
    "crops_over_profiles_ignored": ("crops", "crops, profiles ignored"),
    "wide_over_plain": ("crops, Display P3", "crops"),
}
"""Figure -> ours, and the other."""

SMALLEST = ("images=32", "rounds=5")


class Config(Settings):
    """Numbers of images and of rounds."""

    images: int = Field(1000, ge=BATCH)
    rounds: int = Field(5, ge=5)
    seed: int = 0


def run(settings: Config) -> Result:
    """Time whole epochs of the same images, interleaved; all peers use every core.

    After Ctrl-C the whole rounds so far are returned, marked as partial.
    """
    threads = cpu_count()
    keep_freed_memory()  # as training's processes do
    with tempfile.TemporaryDirectory(prefix="skindx-bench-") as name:
        files = make_images(Path(name), settings)
        n = len(files.records)
        encoded = [files.read(index) for index in range(n)]
        pixels = open_pixels(Path(name) / "cache.pixels", files, CACHED_SIDE, threads=threads)
        in_memory = InMemory(files.dataset, files.records)
        wide = InMemory(files.dataset, files.records)
        for index, data in enumerate(encoded):
            wide.hold(index, with_profile(data, coded_colours(*_DISPLAY_P3).profile))
        by_colours: dict[str, InMemory] = {
            "crops": in_memory,
            "crops, profiles ignored": InMemory(files.dataset, files.records, decoding=AS_STORED),
            "crops, Display P3": wide,
        }
        views, fresh = _views(pixels, n), _views(in_memory, BATCH)
        pool = Pool()

        def epoch(source: ImageSource) -> Callable[[], object]:
            return lambda: _epoch(source, n, threads, pool)

        with _imagefolder(files.dataset, threads) as peers:
            candidates: dict[str, Callable[[], object]] = {
                "decode": lambda: _decode(encoded, threads),
                "loader": epoch(in_memory),
                "loader, files": epoch(files),
                "cache": epoch(pixels),
                "resize": lambda: _resize(views, resize_bilinear, threads),
                "resize, just decoded": lambda: _resize(
                    _repeated(fresh, n), resize_bilinear, threads
                ),
                "resize, OpenCV": lambda: _resize(views, resize_by_opencv, threads),
                "copy": lambda: _resize(views, _copy, threads),
                **peers,
            }
            rounds: list[dict[str, float]] = []
            with kept_when_stopped("epochs were timed") as stopped:
                for taken in timed_rounds(candidates, settings.rounds):
                    rounds.append(taken | _crop_times(by_colours, encoded, views=fresh))  # noqa: PERF401 - kept one by one
    seconds = {name: [taken[name] for taken in rounds] for name in rounds[0]} if rounds else {}
    seconds["decode and resize"] = [
        taken["decode"] + taken["resize, just decoded"] for taken in rounds
    ]
    profile = _profile(rounds)
    rates: dict[str, Figure] = {}
    figures: dict[str, Figure] = {}
    if len(rounds) > 1:
        for name in (*candidates, *by_colours, "decode and resize"):
            samples = seconds[name]
            rates[name] = median([n / elapsed for elapsed in samples], "images/s")
        for key, (ours, other) in _RATIOS.items():
            figures[key] = ratio(seconds[ours], seconds[other])
    return Result(
        "loader",
        figures,
        rates,
        notes=_notes(threads, encoded),
        parts={"rates": {name: asdict(rate) for name, rate in rates.items()}, "profile": profile},
        partial=stopped.partial,
    )


def make_images(folder: Path, settings: Config) -> Files:
    """Write noisy JPEGs in one class folder of a dataset's store, the same for the same seed."""
    records = []
    for data in noisy_jpegs(settings.images, settings.seed):
        sha256, path = store_bytes(folder, data, ".jpg")
        records.append(Record(path, sha256, "", WIDTH, HEIGHT, "skin", sha256, "train"))
    return Files(folder, records)


def with_profile(jpeg: bytes, profile: bytes) -> bytes:
    """Return a JPEG with an ICC profile of less than 64 kB in its APP2."""
    body = b"ICC_PROFILE\0\1\1" + profile
    return jpeg[:2] + b"\xff\xe2" + (len(body) + 2).to_bytes(2) + body + jpeg[2:]


def _decode_alone(encoded: Sequence[bytes]) -> None:
    import simplejpeg

    for data in encoded:
        simplejpeg.decode_jpeg(data, "RGB")


def _decode(encoded: Sequence[bytes], threads: int) -> None:
    batches = [encoded[at : at + BATCH] for at in range(0, len(encoded), BATCH)]
    for _ in work_ahead(_decode_alone, batches, threads=threads, ahead=len(batches)):
        pass


def _resize(views: Sequence[NDArray[np.uint8]], resize: Resize, threads: int) -> None:
    """Resize windows that were cut out before; nothing else is done."""

    def work(indices: range) -> None:
        out_SS3 = np.empty((SIDE, SIDE, 3), np.uint8)
        for index in indices:
            resize(views[index], out_SS3)

    n = len(views)
    parts = [range(at, min(n, at + BATCH)) for at in range(0, n, BATCH)]
    for _ in work_ahead(work, parts, threads=threads, ahead=len(parts)):
        pass


def _crop_times(
    sources: Mapping[str, ImageSource],
    encoded: Sequence[bytes],
    views: Sequence[NDArray[np.uint8]],
) -> dict[str, float]:
    """Return the processor time in which one thread makes each source's crops of all images.

    Beside it that of the crops' stages alone. It tells differences of a percent, which the time of
    a clock hides on a busy machine. Batch by batch in turns, so that a slower phase meets all
    alike.
    """
    out_TSS3 = np.empty((BATCH, SIDE, SIDE, 3), np.uint8)

    def crops(source: ImageSource) -> Callable[[range], None]:
        return lambda indices: fill_random_crops(
            source,
            indices,
            sample_seeds((0, 0), indices),
            SCALE,
            RATIO,
            out_TSS3=out_TSS3[: len(indices)],
        )

    def resize(indices: range) -> None:
        for at in range(len(indices)):
            resize_bilinear(views[at], out_TSS3[at])

    work: dict[str, Callable[[range], None]] = {
        **{name: crops(source) for name, source in sources.items()},
        "codes": lambda indices: decode_codes([encoded[index] for index in indices]),
        "decoding": lambda indices: _decode_alone([encoded[index] for index in indices]),
        "libjpeg": lambda indices: _decode_rough([encoded[index] for index in indices]),
        "resizing": resize,
    }
    taken = dict.fromkeys(work, 0.0)
    for first in range(0, len(encoded), BATCH):
        indices = range(first, min(len(encoded), first + BATCH))
        for name, function in work.items():
            started = time.thread_time()
            function(indices)
            taken[name] += time.thread_time() - started
    return taken


def _decode_rough(encoded: Sequence[bytes]) -> None:
    """Decode as crops of these images have it: whole, with the rougher transform and colours."""
    import simplejpeg

    for data in encoded:
        simplejpeg.decode_jpeg(data, "RGB", fastdct=True, fastupsample=True)


def _profile(rounds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, object]]:
    """Return the share of the crops' processor time that each stage takes."""
    if len(rounds) < 2:
        return {}
    stages: dict[str, Callable[[Mapping[str, float]], float]] = {
        "libjpeg: Huffman codes": lambda taken: taken["codes"],
        "libjpeg: transforms and colours": lambda taken: taken["libjpeg"] - taken["codes"],
        "resize": lambda taken: taken["resizing"],
        "the rest": lambda taken: taken["crops"] - taken["libjpeg"] - taken["resizing"],
    }
    return {
        name: asdict(median([stage(taken) / taken["crops"] for taken in rounds], "of the crops"))
        for name, stage in stages.items()
    }


def _repeated(views: Sequence[NDArray[np.uint8]], n: int) -> list[NDArray[np.uint8]]:
    return [views[index % len(views)] for index in range(n)]


def _copy(image_HW3: NDArray[np.uint8], out_SS3: NDArray[np.uint8]) -> None:
    """Read the pixels of a window and write as many."""
    np.array(image_HW3, copy=True)


def _epoch(source: ImageSource, n: int, threads: int, pool: Pool) -> None:
    def fill(indices: Sequence[int], out_TSS3: NDArray[np.uint8]) -> None:
        fill_random_crops(
            source, indices, sample_seeds((0, 0), indices), SCALE, RATIO, out_TSS3=out_TSS3
        )

    order = np.random.default_rng(0).permutation(n)
    batches = np.array_split(order, -(-n // BATCH))
    loaded = load(fill, batches, SIDE, threads=threads, prefetch=4, allocate=pool)
    seen = sum(len(batch) for batch in loaded)
    assert seen == n


def _views(source: ImageSource, n: int) -> list[NDArray[np.uint8]]:
    """Return the windows that an epoch's crops show of each image."""
    sizes_N2 = np.array([source.size(index) for index in range(n)])
    windows_N4 = draw_windows(sizes_N2, sample_seeds((0, 0), range(n)), SCALE, RATIO)
    return [Window(*row).cut(source.image(index)) for index, row in enumerate(windows_N4.tolist())]


@contextmanager
def _imagefolder(dataset: Path, workers: int) -> Iterator[dict[str, Callable[[], object]]]:
    """Yield the peers: torchvision's documented training transform, and one that stops at uint8."""
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop(SIDE, scale=SCALE, ratio=RATIO, antialias=True)
    normalise = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    transforms = {
        "ImageFolder": [v2.ToImage(), crop, v2.ToDtype(torch.float32, scale=True), normalise],
        "ImageFolder, uint8": [crop, v2.PILToTensor()],
    }

    def epochs(steps: list[Any]) -> Callable[[], object]:
        # The store's folders, named by two digits of the hash, stand for classes.
        folder = ImageFolder(dataset / "store", v2.Compose(steps))
        loader = DataLoader(
            folder, BATCH, shuffle=True, num_workers=workers, persistent_workers=True
        )

        def epoch() -> None:
            seen = sum(len(images) for images, _ in loader)
            assert seen == len(folder)

        return epoch

    yield {name: epochs(steps) for name, steps in transforms.items()}


def _notes(threads: int, encoded: Sequence[bytes]) -> tuple[str, ...]:
    return (
        f"{describe(encoded)} All files are in the page cache.",
        f"decode: simplejpeg alone on bytes in memory, whole images, strict, {threads} threads.",
        f"loader: encoded bytes in memory (training's default), {threads} threads, decode, a "
        f"seeded random-resized crop to {SIDE}×{SIDE} (area {SCALE[0]}..{SCALE[1]}, aspect "
        f"{RATIO[0]}..{RATIO[1]}, bilinear), uint8 batches of {BATCH}; loader, files: reads the "
        "files in each epoch; cache: the same crop from the memory-mapped uint8 images, shorter "
        f"side {CACHED_SIDE}, written before the clock starts.",
        "resize: the crop of the cache alone, windows drawn before; resize, OpenCV: the same by "
        "INTER_LINEAR; copy: the pixels of the same windows copied, which is the memory's part of "
        "it.",
        f"decode and resize: the times of decoding alone and of the crops of {BATCH} decoded "
        "images alone, added up: about what a loader that decodes whole images can reach.",
        "crops: processor time of one thread that decodes and crops, in turns batch by batch; "
        "profiles ignored: without a look at the file's colours; Display P3: the same files with a "
        "profile of Display P3, whose pixels are converted to sRGB.",
        "profile: shares of crops; Huffman codes: a grey decode at 1/8, which reads all codes and "
        "makes hardly a pixel; transforms and colours: the decode that crops call, less the codes.",
        "No turning, no change of colour; the loader leaves normalising to the model's device.",
        f"ImageFolder: torchvision with transforms v2 (ToImage, the same crop with antialias, "
        f"float32, Normalize) in a DataLoader with {threads} persistent workers; ImageFolder, "
        "uint8: the crop in Pillow and no normalising.",
    )
