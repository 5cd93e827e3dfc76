"""The result of a scan: its lesions by rank, how many it may have missed, and scan.json.

scan.json says what was scanned and by which bundle, for programs and for a later comparison.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.text import counted
from skindx.core.untrusted import read_plain
from skindx.data.origin import UNSTATED, ImageOrigin
from skindx.diagnosis.conclusion import LARGEST_SET
from skindx.diagnosis.record import Source
from skindx.diagnosis.scope import Scope
from skindx.metrics import Interval
from skindx.metrics.share_intervals import proportion_interval
from skindx.models.conformal import Share
from skindx.models.detector import SizeRecall
from skindx.models.shipped_detector import PlantedRecall
from skindx.scan.scanned_lesions import RankedLesion, ScannedPhoto, rank
from skindx.taxonomy import SkinClass, urgent_known
from skindx.texts.catalogue import percent, text

UNKNOWN = (
    "How many lesions were missed is unknown: the detector's recall by size was not measured for "
    "this bundle."
)


@dataclass(frozen=True)
class Missed:
    """Estimate of how many lesions of a size were missed, beside the `detected` ones."""

    band: SizeRecall
    detected: int
    missed: Interval | None
    """Number of missed lesions; None: nothing bounds it."""

    @property
    def size(self) -> str:
        if self.band.most_px is None:
            return f"from {self.band.least_px:.0f} px"
        return f"{self.band.least_px:.0f} to {self.band.most_px:.0f} px"

    @property
    def shown_recall(self) -> str:
        """Return the recall as a page shows it."""
        if not self.band.lesions:
            return "not measured"
        recall = self.band.recall
        bounds = f"{percent(recall.low)} to {percent(recall.high)}"
        return f"{percent(recall.value)} ({bounds}) of {self.band.lesions}"

    @property
    def shown_missed(self) -> str:
        """Return the estimate as a page shows it."""
        if self.missed is None:
            return "cannot be said"
        low, high = math.floor(self.missed.low), self.missed.high
        most = f"{math.ceil(high)}" if high != float("inf") else "any number"
        return f"about {round(self.missed.value)} ({low} to {most})"


def missed_by_size(
    bands: Sequence[SizeRecall], diameters_px: Sequence[float], measured_on: ImageOrigin
) -> tuple[Missed, ...]:
    """Estimate for each band how many lesions are there that the scan did not find.

    Where a share r is found, n found lesions stand for n (1 - r) / r missed ones. A size of which
    the scan found none has no estimate, and a share of paintings is none of photos.
    """
    answers = []
    for band in bands:
        detected = sum(map(band.holds, diameters_px))
        recall = band.recall
        missed = None
        if detected and band.found and measured_on.holds_for_photos:
            missed = Interval(*(detected * (1 / share - 1) if share else float("inf")
                                for share in (recall.value, recall.high, recall.low)))  # fmt: skip
        answers.append(Missed(band, detected, missed))
    return tuple(answers)


def missed_sentence(
    bands: Sequence[SizeRecall] | None,
    diameters_px: Sequence[float],
    measured_on: ImageOrigin,
    planted: PlantedRecall | None = None,
) -> str:
    """Return in a sentence what the scan may have missed; by size it is in a table.

    What was measured on images that may be no photos is said, and promises nothing here. A shipped
    detector promises a bound for photos like those on which lesions were planted.
    """
    if planted:
        return planted.promise
    if not bands:
        return UNKNOWN
    detected, lesions = sum(band.found for band in bands), sum(band.lesions for band in bands)
    recall = proportion_interval(detected / lesions if lesions else 0, lesions)
    if not lesions:
        return UNKNOWN
    if not measured_on.holds_for_photos:
        return (
            f"How many lesions of these photos are not in this list is unknown: the detector was "
            f"measured on {measured_on.measured_on}, where it missed {lesions - detected} of "
            f"{counted(lesions, 'lesion')}; that says nothing about photos of people."
        )
    by_size = missed_by_size(bands, diameters_px, measured_on)
    estimates = [one.missed for one in by_size if one.missed]
    least = min(band.least_px for band in bands)
    about, are = "some", "are"
    if estimates:
        more = round(sum(one.value for one in estimates))
        about, are = f"about {counted(more, 'lesion')}", "is" if more == 1 else "are"
    return (
        f"The detector missed {percent(1 - recall.value)} ({percent(1 - recall.high)} to "
        f"{percent(1 - recall.low)}) of {counted(lesions, 'lesion')} of its validation images, "
        f"{measured_on.measured_on}; at that rate, which holds for photos like those, {about} of "
        f"these photos {are} not in this list. Small and faint lesions are missed more often; "
        f"below {least:.0f} pixels nothing was measured."
    )


NOT_A_DIAGNOSIS = (
    "This is a search for what to look at, no diagnosis and no medical device. It misses lesions, "
    "outlines what is none, and cannot rule out any disease: a clinician must look at the whole "
    "skin, also where nothing is outlined."
)


@dataclass(frozen=True)
class ScanResult:
    """The photos of one person, and what a bundle says of the lesions on them."""

    photos: tuple[ScannedPhoto, ...]
    classes: tuple[SkinClass, ...]
    """Classes of the bundle's taxonomy, in the order of the lesions' probabilities."""
    source: Source
    """The bundle that made the result."""
    made_at: datetime
    recall: tuple[SizeRecall, ...] | None = None
    """The detector's recall on validation images, by lesion size; None: unknown for this bundle."""
    measured_on: ImageOrigin = UNSTATED
    """Origin of these validation images."""
    planted: PlantedRecall | None = None
    """What a shipped detector promises, where one took the place of the bundle's."""
    miss_rate: float | None = None
    """Miss rate of the threshold that calls lesions urgent; None: the bundle has no threshold."""
    sent_on: Share | None = None
    """Share of calibration images of other conditions that the threshold calls urgent."""
    problems: tuple[str, ...] = ()
    """A sentence for what was left out because it ended the processes that worked on it."""

    @cached_property
    def ranked(self) -> tuple[RankedLesion, ...]:
        """The lesions of all photos, the first to look at first."""
        return rank(self.photos)

    @property
    def missed(self) -> str:
        """What the scan may have missed, in a sentence."""
        sizes_px = [ranked.diameter_px for ranked in self.ranked]
        return missed_sentence(self.recall, sizes_px, self.measured_on, self.planted)

    @property
    def no_urgent_risk(self) -> str:
        """Why there is no urgent risk, in a sentence; empty where there is."""
        return "" if urgent_known(self.classes) else text("no_urgent_classes")

    @property
    def scope(self) -> Scope:
        """What the bundle knows, and what it does not."""
        return Scope.of_classes(self.classes, self.source.limits)

    def name_of(self, key: str) -> str:
        """Return a class's name as shown to a person."""
        return next((one.name for one in self.classes if one.key == key), key)

    def most_likely(self, ranked: RankedLesion) -> tuple[SkinClass, float]:
        """Return a lesion's most probable class and its probability."""
        place = int(ranked.lesion.probabilities_C.argmax())
        return self.classes[place], float(ranked.lesion.probabilities_C[place])

    def may_be(self, ranked: RankedLesion) -> str:
        """Return what a lesion may be: the classes of its set, or the most probable one."""
        first, probability = self.most_likely(ranked)
        return may_be(
            [self.name_of(key) for key in ranked.lesion.possible], first.name, probability
        )


def may_be(possible: Sequence[str], first: str, probability: float) -> str:
    """Return what a lesion may be, by the names of its set and of the most probable class."""
    if 0 < len(possible) <= LARGEST_SET:
        return ", ".join(possible)
    most_likely = f"{first} {percent(probability)}"
    return f"any of {len(possible)}; first {most_likely}" if possible else most_likely


def shown_risk(risk: float | None) -> str:
    """Return an urgent risk as a person should read it."""
    return "–" if risk is None else percent(risk)


def shown_size(ranked: RankedLesion) -> str:
    """Return a lesion's size as a person should read it."""
    if ranked.diameter_mm is None:
        return f"{ranked.diameter_px:.0f} px"
    return f"{ranked.diameter_mm:.1f} mm"


def shown_difference(ranked: RankedLesion) -> str:
    """Return in words how a lesion differs from the person's others."""
    if ranked.difference is None:
        return "too few lesions to compare"
    if not ranked.difference.stands_out:
        return f"{ranked.difference.score:.1f}"
    if ranked.difference.mostly == "size":
        what = "larger" if ranked.difference.size > 0 else "smaller"
    else:
        what = f"in {ranked.difference.mostly}"
    return f"{ranked.difference.score:.1f}, mostly {what}"


SUMMARY = "scan.json"
_FORMAT = 1
_LARGEST = 256 << 20


class PhotoSummary(Settings):
    """One photo of a scan."""

    name: str
    sha256: str
    """SHA-256 of the file's bytes."""
    width: int
    height: int
    """Pixels of the upright photo."""
    mm_per_pixel: float | None
    tiles: int
    tiles_without_skin: int
    failed_tiles: int
    overview: str
    """Path in the scan's folder: the whole photo, shrunk."""


class Summary(Settings):
    """Contents of a scan's folder."""

    format: Literal[1] = 1
    made_at: datetime
    lesions: int
    photos: tuple[PhotoSummary, ...]
    recall: tuple[SizeRecall, ...] | None = None
    """The detector's recall; None: unknown for this bundle."""
    measured_on: ImageOrigin = UNSTATED
    """Origin of its images; not stated in a scan of an older version."""
    planted: PlantedRecall | None = Field(None, exclude_if=lambda planted: planted is None)
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
            PhotoSummary(**photo.facts, mm_per_pixel=photo.mm_per_pixel, overview=path)
            for photo, path in zip(result.photos, overviews, strict=True)
        ),
        recall=result.recall,
        measured_on=result.measured_on,
        planted=result.planted,
        threshold=threshold,
        no_urgent_risk=result.no_urgent_risk,
        known=result.scope.known,
        unknown_urgent=result.scope.unknown_urgent,
        warning=result.scope.warning,
        source=result.source,
    )


def read_summary(folder: Path) -> Summary:
    """Read scan.json of a scan's folder. Raises UserError for what is none."""
    path = folder / SUMMARY
    try:
        raw = json.loads(read_plain(path, _LARGEST))
    except (UserError, ValueError, RecursionError):
        raise UserError(
            f"{folder} is not the folder of a scan, because {SUMMARY} is missing or unreadable; "
            "give a folder that `skindx scan run` wrote."
        ) from None
    version = raw.get("format") if isinstance(raw, dict) else None
    if version != _FORMAT:
        raise UserError(
            f"{path} has format {version!r}, but this version of skindx reads {_FORMAT}; scan the "
            "photos again, or update skindx."
        )
    try:
        return Summary.model_validate(raw)
    except ValidationError as error:
        raise UserError(
            f"{path} is damaged ({error.error_count()} invalid values); run `skindx scan` on the "
            "photos again."
        ) from None
