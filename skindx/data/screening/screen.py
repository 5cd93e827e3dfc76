"""Screening: each stored image is decoded once, judged, measured and hashed.

Images are hostile until proven sound: `screen_files` decodes them in processes of their own,
which have a limit of memory and of time; what breaks there becomes a reason. Many images are
screened in shards: a finished shard is a Parquet file, and is never screened again.
"""

import dataclasses
import gc
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file, read_parquet
from skindx.data.layout import stored_file
from skindx.data.screening.image_measures import (
    ImageMeasures,
    ScreenSettings,
    effective_pixels,
    judge_content,
    judge_shape,
    measure,
)
from skindx.imaging.decode import decode_noted, import_decoders
from skindx.imaging.hashes import (
    HashKind,
    grey,
    hash_thumbnails,
    thumbnail,
    thumbnail_kernel,
)
from skindx.imaging.image_formats import refusal
from skindx.imaging.photo_gates import skin_mask
from skindx.imaging.skin_content import SKIN, content_of
from skindx.workers.sandbox import Failure, Work, run_sandboxed, sandboxed
from skindx.workers.task_runner import TaskRunner

# N = images, K = kinds of hash, O = orientations, S = thumbnail side


__all__ = ["ImageMeasures", "ScreenSettings", "Screened", "screen_bytes", "screen_files"]


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
    """Hash of the upright image, hexadecimal, whichever hashes are compared."""
    sha256: str = ""
    """SHA-256 of the judged bytes; "" where they could not be read or ended their decoder."""
    luminance: float = 0.0
    """This and the next two as `Measured` has them; 0 where nothing was measured."""
    contrast: float = 0.0
    sharpness: float = 0.0
    effective_pixels: float = 0.0
    """How many pixels an image of the same detail needs; 0 where it was not measured."""
    not_skin: float = 0.0
    """Score 0..1, from 0.5 on it looks like no skin; 0 where it was not checked."""
    shows: str = ""
    """Appearance instead of skin: grey, colours, flat, text or noise; "" for skin."""
    colours: str = ""
    """What came of its colour profile and of further images in its file, as `ColourNote` has it,
    with spaces between; "" for a plain file."""


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
    for position, answer in run_sandboxed(screening_work, job, paths, settings.limits, workers):
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
    thumbnail_kernel()
    # OpenCV computes its tables of colours in the first call, which takes longer than an image.
    skin_mask(np.zeros((1, 1, 3), np.uint8))


@sandboxed(_prepare)
def screening_work(job: dict[str, Any]) -> Work:
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
        pixels_HWC, notes = decode_noted(data, max_pixels=settings.max_pixels)
        height, width = pixels_HWC.shape[:2]
        refused, measured, thumb_SS = (
            judge_shape(width, height, settings),
            ImageMeasures(0, 0, 0),
            None,
        )
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
        colours=" ".join(sorted(notes)),
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
    codes = plain["codes_KO"]
    codes_KO = np.array(codes, np.uint64) if codes else _NO_CODES
    return Screened(**{**plain, "codes_KO": codes_KO})


SHARDS = ".shards"
"""Folder in the dataset folder; it goes when the dataset is whole."""

SHARD_PICTURES = 4000

_MEASURES = 4
"""Counts up when verdicts gain a measure: shards of a killed build of before are made again."""


@dataclass(frozen=True, slots=True)
class ScreeningShard:
    """Images that are screened together. `paths` are relative to the dataset folder."""

    dataset: Path
    paths: tuple[str, ...]
    settings: ScreenSettings
    hashes: tuple[HashKind, ...]

    @property
    def file(self) -> Path:
        """The Parquet file of the verdicts, named by all that decides them."""
        what = [_MEASURES, self.paths, self.settings.model_dump(mode="json"), self.hashes]
        name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]
        return self.dataset / SHARDS / f"screened-{name}.parquet"

    def halves(self) -> "tuple[ScreeningShard, ScreeningShard]":
        middle = len(self.paths) // 2
        first, second = self.paths[:middle], self.paths[middle:]
        return dataclasses.replace(self, paths=first), dataclasses.replace(self, paths=second)


def screen(
    dataset: Path,
    paths: Sequence[str],
    settings: ScreenSettings,
    hashes: Sequence[HashKind],
    *,
    runner: TaskRunner,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Screened]:
    """Screen stored images; the order is that of `paths`, which are relative to `dataset`.

    Killed at any moment, the same call goes on after its last finished shard. An image that ends
    its worker every time costs itself alone.
    """
    report = on_progress or (lambda done, total: None)
    if len(paths) <= SHARD_PICTURES:  # no shard would be finished before all is
        files = [stored_file(dataset, path) for path in paths]
        workers = runner.driver_workers
        return screen_files(files, settings, hashes, workers=workers, on_progress=on_progress)
    cuts = range(0, len(paths), SHARD_PICTURES)
    parts = [tuple(paths[start : start + SHARD_PICTURES]) for start in cuts]
    shards = [ScreeningShard(dataset.absolute(), part, settings, tuple(hashes)) for part in parts]
    done = sum(len(shard.paths) for shard in shards if shard.file.exists())
    report(done, len(paths))

    def on_shard(count: int) -> None:
        nonlocal done
        done += count
        report(done, len(paths))

    _screen_missing(shards, runner, on_shard)
    return [verdict for shard in shards for verdict in read_shard(shard.file)]


def _screen_missing(
    shards: Sequence[ScreeningShard], runner: TaskRunner, on_shard: Callable[[int], None]
) -> None:
    workers = runner.screen_workers
    missing = [(shard, workers) for shard in shards if not shard.file.exists()]
    lost = runner.run(screen_shard, missing, lambda task: on_shard(len(task[0].paths)))
    cut: list[tuple[ScreeningShard, tuple[ScreeningShard, ScreeningShard]]] = []
    for shard, _ in lost:
        if len(shard.paths) == 1:
            detail = "it ends the process that decodes it"
            write_shard(shard.file, [_unscreened("decode-crash", detail)])
            on_shard(1)
        else:
            cut.append((shard, shard.halves()))
    if cut:
        _screen_missing([half for _, halves in cut for half in halves], runner, on_shard)
    for shard, (first, second) in cut:
        write_shard(shard.file, read_shard(first.file) + read_shard(second.file))


def screen_shard(shard: ScreeningShard, workers: int) -> None:
    """Screen one shard and write its file; a task of the runner."""
    files = [stored_file(shard.dataset, path) for path in shard.paths]
    write_shard(shard.file, screen_files(files, shard.settings, shard.hashes, workers=workers))


def write_shard(file: Path, verdicts: Sequence[Screened]) -> None:
    """Write verdicts, atomically, one row an image."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [to_plain(verdict) for verdict in verdicts]
    codes = pa.list_(pa.list_(pa.uint64()))
    columns = {
        name: pa.array([row[name] for row in rows], codes if name == "codes_KO" else None)
        for name in rows[0]
    }
    with atomic_file(file) as temporary:
        pq.write_table(pa.table(columns), temporary)


def read_shard(file: Path) -> list[Screened]:
    return [from_plain(row) for row in read_parquet(file).to_pylist()]


def remove_shards(dataset: Path) -> None:
    """Remove what only serves to resume, once the dataset is whole."""
    shutil.rmtree(dataset / SHARDS, ignore_errors=True)
