"""scan.json: what was scanned and by which bundle, for programs and for a later comparison."""

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_plain
from skindx.diagnosis.record import Source
from skindx.diagnosis.scope import Scope
from skindx.scan.outputs.missed import RecallBand
from skindx.scan.outputs.result import ScanResult

SUMMARY = "scan.json"
_FORMAT = 1
_LARGEST = 256 << 20


class PhotoSummary(Settings):
    """One photo of a scan."""

    name: str
    sha256: str
    """Of the file's bytes."""
    width: int
    height: int
    """Pixels of the upright photo."""
    mm_per_pixel: float | None
    tiles: int
    tiles_without_skin: int
    failed_tiles: int
    overview: str
    """Path in the scan's folder: the whole photo, shrunk."""


class BandSummary(Settings):
    """The detector's recall on validation images, of lesions of a size."""

    least_px: float
    most_px: float | None
    """None: any larger size."""
    found: int
    lesions: int


class Summary(Settings):
    """Contents of a scan's folder."""

    format: Literal[1] = 1
    made_at: datetime
    lesions: int
    photos: tuple[PhotoSummary, ...]
    recall: tuple[BandSummary, ...] | None = None
    """None: unknown for this bundle."""
    threshold: str = ""
    """What the threshold of urgent promises, with both of its errors; empty in older scans."""
    no_urgent_risk: str = ""
    """Why lesions have no urgent risk, in a sentence; empty where they have one."""
    known: tuple[str, ...] = ()
    """Names of the conditions that the bundle knows; empty in a scan of an older version."""
    unknown_urgent: tuple[str, ...] = ()
    """Urgent conditions that it does not know, among others."""
    warning: str = ""
    """Why nothing may be said to wait, in a sentence; empty where it may."""
    source: Source

    @property
    def scope(self) -> Scope:
        """What the bundle knows, and what it does not."""
        return Scope(self.known, self.unknown_urgent, self.warning, self.source.limits)


def summary_of(result: ScanResult, overviews: list[str], threshold: str = "") -> Summary:
    """Return the summary of a result; `overviews` are paths by photo."""
    return Summary(
        made_at=result.made_at,
        lesions=len(result.ranked),
        photos=tuple(
            PhotoSummary(
                name=photo.name,
                sha256=photo.sha256,
                width=photo.width,
                height=photo.height,
                mm_per_pixel=photo.mm_per_pixel,
                tiles=photo.tiles,
                tiles_without_skin=photo.tiles_without_skin,
                failed_tiles=photo.failed_tiles,
                overview=path,
            )
            for photo, path in zip(result.photos, overviews, strict=True)
        ),
        recall=None if result.recall is None else tuple(map(_band, result.recall)),
        threshold=threshold,
        no_urgent_risk=result.no_urgent_risk,
        known=result.scope.known,
        unknown_urgent=result.scope.unknown_urgent,
        warning=result.scope.warning,
        source=result.source,
    )


def _band(band: RecallBand) -> BandSummary:
    most_px = band.most_px if math.isfinite(band.most_px) else None
    return BandSummary(
        least_px=band.least_px, most_px=most_px, found=band.found, lesions=band.lesions
    )


def write_summary(folder: Path, summary: Summary) -> None:
    """Write scan.json."""
    write_json(folder / SUMMARY, summary.model_dump(mode="json"))


def read_summary(folder: Path) -> Summary:
    """Read scan.json of a scan's folder. Raises UserError for what is none."""
    path = folder / SUMMARY
    try:
        raw = json.loads(read_plain(path, _LARGEST))
    except (UserError, ValueError, RecursionError):
        raise UserError(
            f"{folder} holds no scan: {SUMMARY} is not there or cannot be read; give a folder that "
            f"`skindx scan run` wrote."
        ) from None
    version = raw.get("format") if isinstance(raw, dict) else None
    if version != _FORMAT:
        raise UserError(
            f"{path} has format {version!r}, and this version of skindx reads {_FORMAT}; scan the "
            f"photos again, or update skindx."
        )
    try:
        return Summary.model_validate(raw)
    except ValidationError as error:
        raise UserError(
            f"{path} is damaged ({error.error_count()} of its values do not fit); scan the photos "
            f"again."
        ) from None
