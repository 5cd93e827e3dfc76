"""The driver of a scan: opens photos, queues tasks, waits, joins; a kill loses nothing."""

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import FolderKind, entries, only_writer, sha256_file
from skindx.core.errors import UserError, needs_room
from skindx.core.machine import require_extra
from skindx.core.private_files import make_private, private_output
from skindx.core.progress import Progress
from skindx.imaging.stored_colours import SRGB, Decoding
from skindx.models.shipped_detector import open_shipped
from skindx.models.urgent_risk import check_level
from skindx.scan.patches import blend, create_map
from skindx.scan.photo_store import MAX_PIXELS, photo_store
from skindx.scan.pixel_store import PixelStore
from skindx.scan.scanned_lesions import ScannedLesion, ScannedPhoto, read_lesions
from skindx.scan.tile_search import ScanSettings, TileDetections, fast_precision, join
from skindx.scan.work.scan_worker import (
    DATABASE,
    PLAN,
    WORK,
    ScanPlan,
    ScanTask,
    WorkFolder,
    lesion_tasks,
    tile_tasks,
)
from skindx.scan.work.worker_processes import ScanStages, ScanWorkers
from skindx.texts.catalogue import joined, text
from skindx.workers.lease_queue import DONE

Answers = Mapping[str, Any]
"""What workers answered, by the keys of the tasks."""


class UnscannableError(UserError):
    """A photo that no scan can search, as its tiles show: nothing of it is kept."""


FILLED = 0.5
"""A single lesion whose longer side is this share of the photo's shorter one fills it."""


def joined_boxes(
    folder: WorkFolder,
    plan: ScanPlan,
    photo: int,
    *,
    answers: Answers,
    failed: Sequence[ScanTask],
    labels: Sequence[str],
) -> dict[str, Any]:
    """Return the boxes of a photo's lesions and the counts of its tiles.

    `answers` and the `failed` single tiles have every tile once. Raises UnscannableError for a
    photo without skin, and for one that a lesion fills.
    """
    store = folder.store(photo)
    name = str(store.facts["name"])
    total = sum(len(grid.patches) for grid in folder.grids(plan, photo))
    of_photo = [answer for key, answer in answers.items() if ScanTask.from_key(key).photo == photo]
    lost = [_named(folder, plan, task) for task in failed if task.photo == photo]
    skipped = sum(answer["skipped"] for answer in of_photo)
    if skipped == total:
        raise UnscannableError(text("unscanned_no_skin", name=name, tiles=total))
    if skipped + len(lost) == total:
        raise UnscannableError(
            f"every tile of {name} with skin crashed its worker; check the bundle and the memory "
            "of the machine, and run the same command again with another --out."
        )
    rows = np.array([row for answer in of_photo for row in answer["rows"]], np.float64)
    boxes_K4, scores_K, labels_K = join(TileDetections.from_rows(rows), plan.settings.least_side)
    _refuse_filled(name, store, boxes_K4)
    boxes = [
        [*map(float, box), float(score), labels[int(label)]]
        for box, score, label in zip(boxes_K4, scores_K, labels_K, strict=True)
    ]
    return {"boxes": boxes, "tiles": total, "skipped": skipped, "failed": lost}


def _refuse_filled(name: str, store: PixelStore, boxes_K4: Any) -> None:
    if len(boxes_K4) == 1 and (boxes_K4[0, 2:] - boxes_K4[0, :2]).max() >= FILLED * min(
        store.size()
    ):
        raise UnscannableError(joined(text("unscanned_filled", name=name), text("unscanned_one")))


def _named(folder: WorkFolder, plan: ScanPlan, task: ScanTask) -> dict[str, Any]:
    """Say where a tile that failed lies, in pixels of the whole photo."""
    grid, store = folder.grid(plan, task.photo, task.level), folder.store(task.photo)
    (left, top), (factor, dx, dy) = grid.place(task.first), store.to_full(task.level)
    place = [factor * left + dx, factor * top + dy, factor * grid.tile]
    return {"scale": task.level, "tile": task.first, "left_top_side": place}


def scanned_photos(
    folder: WorkFolder, plan: ScanPlan, lesion_tasks: Sequence[ScanTask]
) -> list[ScannedPhoto]:
    """Return all photos with their lesions, from the files in the work folder alone.

    This is where the results of a scan come from; `lesion_tasks` are those that are done.
    """
    photos: list[ScannedPhoto] = []
    for photo, counted in enumerate(folder.read_boxes()):
        store = folder.store(photo)
        lesions: list[ScannedLesion] = []
        for task in sorted(lesion_tasks, key=lambda task: task.first):
            if task.photo == photo:
                lesions += read_lesions(folder.answer(task.key))
        width, height = store.size()
        photos.append(
            ScannedPhoto(
                name=str(store.facts["name"]),
                sha256=str(store.facts["sha256"]),
                width=width,
                height=height,
                tiles=counted["tiles"],
                tiles_without_skin=counted["skipped"],
                failed_tiles=len(counted["failed"]),
                lesions=tuple(lesions),
            )
        )
    return photos


def problems(folder: WorkFolder, undiagnosed: Sequence[ScanTask]) -> list[str]:
    """Return a sentence for each tile and lesion that the scan had to leave out."""
    sentences: list[str] = []
    for photo, counted in enumerate(folder.read_boxes()):
        name = str(folder.store(photo).facts["name"])
        for failed in counted["failed"]:
            left, top, side = failed["left_top_side"]
            tile = {"tile": failed["tile"], "scale": failed["scale"]}
            place = {"left": round(left), "top": round(top), "side": round(side)}
            left_out = text("scan_tile_failed", name=name, **tile)
            sentences.append(joined(left_out, text("scan_tile_place", **place)))
        for task in undiagnosed:
            if task.photo == photo:
                sides = ("left", "top", "right", "bottom")
                corners = dict(zip(sides, map(round, counted["boxes"][task.first]), strict=False))
                sentences.append(text("scan_lesion_failed", name=name, **corners))
    return sentences


TILES, TILES_AGAIN, LESIONS, LESIONS_AGAIN = "1-tiles", "2-tiles", "3-lesions", "4-lesions"
_STAGES = (TILES, TILES_AGAIN, LESIONS, LESIONS_AGAIN)
"""Stages in order; "again" tries the batches that were set aside, one by one."""

_BLOCK = (512, 512)
"""Cells of a map that are blended and stored together."""

_SCORES = "scores"
_MAP = FolderKind("a map of scores", _SCORES)

MakeWorkers = Callable[[Path | str, str], ScanWorkers]
"""Gets the database and the scan's token."""


@dataclass(frozen=True)
class Scanned:
    """What a scan found."""

    photos: list[ScannedPhoto]
    problems: list[str]
    """A sentence for each tile or lesion that was left out because it ended its workers."""
    maps: list[Path]
    """A Zarr array for each photo, where maps of scores were wanted."""


@dataclass(frozen=True)
class PreparedScan:
    """A scan whose photos, bundle and settings are checked; `run` does the rest."""

    folder: WorkFolder
    plan: ScanPlan
    paths: tuple[Path, ...]
    labels: tuple[str, ...]
    """Names of the detector's classes of boxes."""
    where: Path | str
    lease_s: float
    progress: Progress
    most_pixels: int = MAX_PIXELS
    """Most pixels of one photo."""
    decoding: Decoding = SRGB
    """Colours that the bundle learned from."""

    def run(self, make_workers: MakeWorkers) -> Scanned:
        """Find and diagnose all lesions. Raises UserError, JobError."""
        for photo in range(len(self.paths)):
            self.progress("opening", photo, len(self.paths))
            self.store(photo)
        self.progress("opening", len(self.paths), len(self.paths))
        stages = ScanStages(self.where, self.folder.path, self.plan, self.lease_s, self.progress)
        with make_workers(self.where, self.plan.token) as workers:
            if not self.folder.has_boxes:
                self._find(stages, workers)
            counts = [len(photo["boxes"]) for photo in self.folder.read_boxes()]
            tasks = [task for photo, n in enumerate(counts) for task in lesion_tasks(photo, n)]
            done, left = _twice(stages, (LESIONS, LESIONS_AGAIN), tasks, workers)
        with needs_room(self.folder.path):
            maps = self._maps() if self.plan.settings.score_map else []
        photos = scanned_photos(self.folder, self.plan, [ScanTask.from_key(key) for key in done])
        return Scanned(photos, problems(self.folder, left), maps)

    def store(self, photo: int) -> PixelStore:
        """Return a photo's pixels, written where they are not there. Raises UserError."""
        folder = self.folder.store_folder(photo)
        return photo_store(self.paths[photo], folder, self.most_pixels, self.decoding)

    def _find(self, stages: ScanStages, workers: ScanWorkers) -> None:
        tasks = [
            task
            for photo in range(len(self.paths))
            for task in tile_tasks(photo, self.folder.grids(self.plan, photo))
        ]
        answers, failed = _twice(stages, (TILES, TILES_AGAIN), tasks, workers)
        given: dict[str, Any] = {"answers": answers, "failed": failed, "labels": self.labels}
        self.folder.write_boxes(
            [joined_boxes(self.folder, self.plan, n, **given) for n in range(len(self.paths))]
        )

    def _maps(self) -> list[Path]:
        made: list[Path] = []
        for photo in range(len(self.paths)):
            patches = self.folder.grids(self.plan, photo)[0].patches
            made.append(self.folder.path / f"map-{photo}.zarr")
            with private_output(made[-1], _MAP) as making:
                out = create_map(making / _SCORES, patches.shape, _BLOCK)
                read = partial(self._scores, photo)
                blend(patches, read, out, block=_BLOCK)
        return made

    def _scores(self, photo: int, number: int) -> NDArray[np.float32] | None:
        """Return a tile's scores; none for a tile without skin, and for one that failed."""
        file = self.folder.patch(photo, number)
        return np.load(file) if file.exists() else None


def _twice(
    stages: ScanStages, names: tuple[str, str], tasks: Sequence[ScanTask], workers: ScanWorkers
) -> tuple[dict[str, Any], list[ScanTask]]:
    """Return the answers by the tasks' keys, and the single tiles or lesions that have none."""
    ended = stages.run(names[0], tasks, workers)
    aside = [ScanTask.from_key(key) for key, task in ended.items() if task.state != DONE]
    ended |= stages.run(names[1], [one for task in aside for one in task.singles()], workers)
    answers = {key: task.answer for key, task in ended.items() if task.state == DONE}
    known = {task.key for task in aside if len(task) > 1}
    left = [ScanTask.from_key(key) for key, task in ended.items() if task.state != DONE]
    return answers, [task for task in left if task.key not in known]


@contextmanager
def prepared(
    photos: Sequence[Path],
    bundle: Path,
    out: Path,
    settings: ScanSettings,
    *,
    queue: str | None = None,
    lease_s: float = 60.0,
    expect: str | None = None,
    detector: Path | None = None,
    device: str = "cpu",
    progress: Progress = lambda *_: None,
    most_pixels: int = MAX_PIXELS,
) -> Iterator[PreparedScan]:
    """Check what a scan needs and hold its folder, OUT/_scan, until the block ends.

    The same scan that was interrupted goes on. When the block ends well, the folder and the queues
    are removed: the block writes the results. Raises UserError.
    """
    require_extra("scan", "pyvips", "zarr", purpose="a scan")
    require_extra("detect", "ultralytics", purpose="finding lesions")
    from skindx.models.bundle.bundle import open_bundle

    opened = open_bundle(bundle, expect)
    shipped = open_shipped(detector) if detector else None
    spec = shipped.index.spec if shipped else opened.spec.detector
    if spec is None:
        raise UserError(
            f"bundle {bundle} has no detector, so it cannot find lesions; add --detector "
            "models/lesion-detector, or set `detector:` in the training settings and train again."
        )
    if settings.precision == "auto":
        settings = settings.model_copy(update={"precision": fast_precision(device)})
    if settings.miss_rate is not None:
        rule = opened.spec.whole_urgent_risk or opened.spec.urgent_risk
        check_level(rule, settings.miss_rate, opened.taxonomy.classes)
    hashes = tuple(_sha256(path) for path in photos)
    plan = ScanPlan(
        token=secrets.token_hex(8),  # a name that no other scan has
        bundle=bundle.absolute(),
        digest=opened.digest,
        detector=detector.absolute() if detector else None,
        detector_digest=shipped.digest if shipped else None,
        tile=settings.tile or spec.size,
        photos=hashes,
        settings=settings,
    )
    work = out / WORK
    if out.exists() and not work.is_dir() and entries(out):
        raise UserError(
            f"--out {out} has other files and no scan to continue; give another folder."
        )
    begun = not out.exists()
    make_private(work)
    where: Path | str = queue or work / DATABASE
    stages: ScanStages | None = None
    try:
        with only_writer(work, "scan", wait_s=0.0):
            plan = _resumed(plan, work)
            stages = ScanStages(where, work, plan, lease_s, progress)
            held = WorkFolder(work)
            scan = PreparedScan(
                held,
                plan,
                tuple(photos),
                spec.labels,
                where,
                lease_s,
                progress,
                most_pixels,
                opened.spec.decoding,
            )
            yield scan
            stages.remove(_STAGES)
            shutil.rmtree(work)
    except UserError as error:
        final = isinstance(error, UnscannableError)
        if final and stages:
            stages.remove(_STAGES)
        if final or (begun and not (work / DATABASE).exists()):
            shutil.rmtree(work)  # nothing is there that could be gone on with
            if begun:
                out.rmdir()
        raise


def _resumed(plan: ScanPlan, work: Path) -> ScanPlan:
    """Return the plan that the folder has, or give it this one. Raises UserError for another."""
    if not (work / PLAN).is_file():
        plan.write(work)
        return plan
    known = ScanPlan.read(work)
    if known.fingerprint != plan.fingerprint:
        raise UserError(
            f"{work.parent} has an unfinished scan of other photos, or with another bundle or "
            "other settings; give another --out, or delete that folder."
        )
    known = known.model_copy(update={"bundle": plan.bundle, "detector": plan.detector})
    known.write(work)
    return known


def _sha256(path: Path) -> str:
    try:
        return sha256_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; check the path.") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); give a photo file that you may read."
        ) from None
