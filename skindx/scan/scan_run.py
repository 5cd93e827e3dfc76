"""A scan from photos to files, as the command line runs it."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from skindx.core.errors import UserError, needs_room
from skindx.core.machine import cpu_count, keep_freed_memory
from skindx.core.progress import Progress
from skindx.core.text import without_password
from skindx.diagnosis.bundle_statement import source_of
from skindx.imaging.dicom import spacing_of
from skindx.models.bundle.bundle import TAXONOMY, Bundle, open_bundle
from skindx.models.bundle.bundle_index import origin_of_detector
from skindx.models.shipped_detector import ShippedIndex, open_shipped
from skindx.scan.outputs.scan_files import write_lesion_list, write_scan
from skindx.scan.outputs.scan_result import ScanResult
from skindx.scan.photo_store import MAX_PIXELS
from skindx.scan.pixel_store import LevelledPhoto
from skindx.scan.ruler import Confirm, Scale, given_scale, scale_from_ruler
from skindx.scan.scanned_lesions import ScannedPhoto
from skindx.scan.tile_search import ScanSettings
from skindx.scan.work.scan_driver import MakeWorkers, PreparedScan, Scanned, prepared
from skindx.scan.work.scan_worker import DATABASE, WORK, ScanTaskRunner, work
from skindx.scan.work.worker_processes import LocalWorkers, RemoteWorkers, ScanWorkers
from skindx.taxonomy import Taxonomy
from skindx.workers.worker_process import exit_with_parent

MOST_WORKERS = 4
"""Default limit of workers: each holds the bundle in memory."""


def run_scan(
    photos: Sequence[Path],
    bundle: Path,
    out: Path,
    settings: ScanSettings,
    *,
    workers: int | None = None,
    queue: str | None = None,
    lease_s: float = 60.0,
    expect: str | None = None,
    detector: Path | None = None,
    device: str = "cpu",
    progress: Progress = lambda *_: None,
    make_workers: MakeWorkers | None = None,
    mm_per_pixel: float | Sequence[float | None] | None = None,
    confirm: Confirm | None = None,
    most_pixels: int = MAX_PIXELS,
) -> Scanned:
    """Scan photos and write the results into `out`. Raises UserError, JobError.

    `progress` hears of photos, then of tiles, then of lesions.

    `detector` is the folder of one that takes the place of the bundle's.

    `mm_per_pixel` is of all photos, or of each (None: unknown); with `confirm` each shows a ruler
    that a person confirms before the search begins.
    """
    given = _given(mm_per_pixel, len(photos))
    if workers == 0 and queue is None:
        raise UserError(
            "--workers 0 leaves the work to other machines, which need a common database; add "
            "--queue URL, or give --workers 1."
        )
    count = min(cpu_count(), MOST_WORKERS) if workers is None else workers
    with prepared(
        photos,
        bundle,
        out,
        settings,
        queue=queue,
        lease_s=lease_s,
        expect=expect,
        detector=detector,
        device=device,
        progress=progress,
        most_pixels=most_pixels,
    ) as scan:
        scales = [given[n] or _read_scale(scan, n, confirm) for n in range(len(photos))]
        scanned = scan.run(make_workers or partial(_workers, count, device))
        scanned = replace(scanned, photos=_measured(scanned.photos, scales))
        with needs_room(out):
            result = result_of(
                open_bundle(bundle, expect),
                scanned.photos,
                datetime.now(UTC),
                miss_rate=settings.miss_rate,
                problems=scanned.problems,
                shipped=open_shipped(detector).index if detector else None,
            )
            reads = [LevelledPhoto(scan.folder.store(n)) for n in range(len(photos))]
            write_scan(out, result, reads)
            classes = Taxonomy.load(bundle / TAXONOMY).classes
            write_lesion_list(out, scanned.photos, scanned.problems, classes)
            for made in scanned.maps:
                shutil.rmtree(out / made.name, ignore_errors=True)
                made.replace(out / made.name)
    return scanned


def result_of(
    bundle: Bundle,
    photos: Sequence[ScannedPhoto],
    made_at: datetime,
    *,
    backend: str = "eager",
    miss_rate: float | None = None,
    problems: Sequence[str] = (),
    shipped: ShippedIndex | None = None,
) -> ScanResult:
    """Return the result of a scan.

    `miss_rate` chooses the level of the urgent risk, as it did for the lesions; `problems` are
    sentences on what was left out; `shipped` is the detector that took the bundle's place.
    """
    # Crops are diagnosed as whole images are: the detector has looked already.
    rule = bundle.spec.whole_urgent_risk or bundle.spec.urgent_risk
    level = rule.level(miss_rate) if rule else None
    measured = None if shipped else bundle.spec.detector_recall
    return ScanResult(
        photos=tuple(photos),
        classes=bundle.taxonomy.classes,
        source=source_of(bundle, backend),
        made_at=made_at,
        recall=measured.bands if measured else None,
        measured_on=origin_of_detector(bundle.spec),
        miss_rate=level.miss_rate if level else None,
        sent_on=level.sent_on.with_width() if level and level.sent_on else None,
        problems=tuple(problems),
        planted=shipped.planted if shipped else None,
    )


def _given(mm_per_pixel: float | Sequence[float | None] | None, photos: int) -> list[Scale | None]:
    """Return the given scale of each photo. Raises UserError for one that no photo has."""
    if not isinstance(mm_per_pixel, Sequence):
        mm_per_pixel = [mm_per_pixel] * photos
    if len(mm_per_pixel) != photos:
        raise UserError(
            f"{photos} photos were given with {len(mm_per_pixel)} scales; give one --scale for "
            "all photos, or one for each photo."
        )
    return [None if value is None else given_scale(value) for value in mm_per_pixel]


def _read_scale(scan: PreparedScan, photo: int, confirm: Confirm | None) -> Scale | None:
    """Return a photo's scale by the ruler on it, if that is asked for, else by a DICOM header."""
    path = scan.paths[photo]
    if confirm is None:
        spacing = spacing_of(path)
        return Scale(spacing, "header") if spacing else None
    store = scan.store(photo)
    return scale_from_ruler(LevelledPhoto(store), *store.size(), name=path.name, confirm=confirm)


def _measured(photos: Sequence[ScannedPhoto], scales: Sequence[Scale | None]) -> list[ScannedPhoto]:
    return [
        replace(photo, mm_per_pixel=scale.mm_per_pixel if scale else None)
        for photo, scale in zip(photos, scales, strict=True)
    ]


def _workers(count: int, device: str, where: Path | str, token: str) -> ScanWorkers:
    return LocalWorkers.for_scan(where, token, count, device) if count else RemoteWorkers()


def run_worker(
    queue: str, token: str, patience_s: float, device: str, *, with_parent: bool = False
) -> int:
    """Do tasks of the scans of a database, a SQLite file, or a scan's folder; return how many.

    Raises UserError.
    """
    where: Path | str = queue
    if "://" not in queue:
        path = Path(queue)
        where = path / WORK / DATABASE if path.is_dir() else path
        if not where.is_file():
            raise UserError(
                f"{without_password(queue)} has no running scan; give the folder of a running "
                "scan, or the URL of its database."
            )
    keep_freed_memory()
    if with_parent:
        exit_with_parent()
        patience_s = math.inf
    return work(
        where,
        token=token,
        patience_s=patience_s,
        make_runner=partial(ScanTaskRunner, device=device),
    )
