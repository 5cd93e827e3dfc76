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
from skindx.core.untrusted import read_plain
from skindx.data.origin import UNSTATED, ImageOrigin, of_wide_photos
from skindx.diagnosis.conclusion import LARGEST_SET
from skindx.diagnosis.record import Source, unreviewed
from skindx.diagnosis.scope import Scope
from skindx.metrics import Interval
from skindx.metrics.share_intervals import proportion_interval
from skindx.models.conformal import Share
from skindx.models.detector import SizeRecall
from skindx.models.shipped_detector import PlantedRecall
from skindx.scan.scanned_lesions import RankedLesion, ScannedPhoto, rank
from skindx.taxonomy import SkinClass, urgent_conditions, urgent_known
from skindx.texts.catalogue import LANGUAGE, joined, percent, speaking, spoken, text, word


@dataclass(frozen=True)
class Missed:
    """Estimate of how many lesions of a size were missed, beside the `detected` ones."""

    band: SizeRecall
    detected: int
    missed: Interval | None
    """Number of missed lesions; None: nothing bounds it."""

    @property
    def size(self) -> str:
        least, most = round(self.band.least_px), self.band.most_px
        if most is None:
            return text("scan_size_from", least=least)
        return text("scan_size_to", least=least, most=round(most))

    @property
    def shown_recall(self) -> str:
        """Return the recall as a page shows it."""
        if not self.band.lesions:
            return text("scan_recall_none")
        recall, lesions = self.band.recall, self.band.lesions
        shares = {"recall": recall.value, "low": recall.low, "high": recall.high}
        return text("scan_recall", **shares, lesions=lesions)

    @property
    def shown_missed(self) -> str:
        """Return the estimate as a page shows it."""
        if self.missed is None:
            return text("scan_estimate_none")
        about, least = round(self.missed.value), math.floor(self.missed.low)
        if self.missed.high == float("inf"):
            return text("scan_estimate_open", about=about, least=least)
        return text("scan_estimate", about=about, least=least, most=math.ceil(self.missed.high))


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
    """Return in sentences what the scan may have missed; by size it is in a table.

    What was measured on images that may be no photos is said, and promises nothing here. A shipped
    detector promises a bound for photos like those on which lesions were planted.
    """
    if planted:
        return planted.promise
    lesions = sum(band.lesions for band in bands or ())
    if not bands or not lesions:
        return text("scan_missed_unmeasured")
    detected = sum(band.found for band in bands)
    if not measured_on.holds_for_photos:
        key = {"all": "scan_missed_synthetic", "some": "scan_missed_mixed"}
        missed = key.get(measured_on.painted, "scan_missed_unstated")
        unknown = text("scan_missed_unknown")
        return joined(unknown, text(missed, missed=lesions - detected, n=lesions))
    recall = proportion_interval(detected / lesions, lesions)
    by_size = missed_by_size(bands, diameters_px, measured_on)
    estimates = [one.missed.value for one in by_size if one.missed]
    here = text("scan_missed_some")
    if estimates:
        here = text("scan_missed_here", n=round(sum(estimates)))
    shares = {"missed": 1 - recall.value, "low": 1 - recall.high, "high": 1 - recall.low}
    return joined(
        text("scan_missed", **shares, n=lesions),
        text(_MEASURED[measured_on.modality]),
        here,
        text("scan_missed_small", least=round(min(band.least_px for band in bands))),
    )


_MEASURED = {
    "": "scan_missed_photos",
    "dermoscopic": "scan_missed_dermoscopic",
    "clinical": "scan_missed_clinical",
    "mixed": "scan_missed_both",
}


def not_a_diagnosis() -> str:
    """Return what a scan is and is not, in sentences of which the first is a person's to see."""
    return joined(
        text("scan_notice"), text("scan_notice_errs"), text("scan_notice_clinician"), unreviewed()
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
        return ", ".join(map(word, possible))
    if possible:
        return text("scan_any_of", count=len(possible), name=first, share=probability)
    return text("scan_likely", name=first, share=probability)


def shown_risk(risk: float | None) -> str:
    """Return an urgent risk as a person should read it."""
    return "–" if risk is None else percent(risk)


def shown_size(px: float, mm: float | None) -> str:
    """Return a lesion's diameter as a person should read it."""
    return text("scan_px", size=round(px)) if mm is None else text("scan_mm", size=round(mm, 1))


def shown_difference(ranked: RankedLesion) -> str:
    """Return in words how a lesion differs from the person's others."""
    if ranked.difference is None:
        return text("scan_few_lesions")
    key, mostly = "scan_difference", ranked.difference.mostly
    if ranked.difference.stands_out and mostly == "size":
        larger = ranked.difference.size > 0
        key = "scan_difference_larger" if larger else "scan_difference_smaller"
    elif ranked.difference.stands_out:
        in_colour = mostly == "colour"
        key = "scan_difference_colour" if in_colour else "scan_difference_appearance"
    return text(key, score=round(ranked.difference.score, 1))


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
    language: str = Field(LANGUAGE, exclude_if=lambda language: language == LANGUAGE)
    """That of its sentences."""
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
        """What the bundle knows and does not, in the spoken language as far as its parts say it."""
        warning, limits, use = self.warning, self.source.limits, self.source.use
        if self.language != spoken():
            names = [one.name for one in urgent_conditions() if one.decides]
            missing = [name for name in names if name in self.unknown_urgent]
            warning = text("no_wait_unknown", names=missing) if warning and missing else warning
            with speaking(self.language):
                by_use = use is not None and use.sentence == self.source.learned_from
            if use and by_use:
                images = ImageOrigin.model_validate({"modality": self.source.modality})
                limits = joined(use.sentence, of_wide_photos(images.expects))
        return Scope(self.known, self.unknown_urgent, warning, limits)

    @property
    def without_urgent(self) -> str:
        """Why lesions have no urgent risk, in the spoken language."""
        other = self.no_urgent_risk and self.language != spoken()
        return text("no_urgent_classes") if other else self.no_urgent_risk


def summary_of(result: ScanResult, overviews: list[str], threshold: str = "") -> Summary:
    """Return the summary of a result; `overviews` are paths by photo."""
    return Summary(
        language=spoken(),
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
        missing = text("scan_no_folder", folder=str(folder), file=SUMMARY)
        raise UserError(joined(missing, text("scan_no_folder_do"))) from None
    version = raw.get("format") if isinstance(raw, dict) else None
    if version != _FORMAT:
        other = text("scan_format", file=str(path), format=repr(version), reads=_FORMAT)
        raise UserError(joined(other, text("scan_format_do")))
    try:
        return Summary.model_validate(raw)
    except ValidationError as error:
        raise damaged_scan(folder, f"{SUMMARY}, {error.error_count()}") from None


def damaged_scan(folder: Path, reason: str) -> UserError:
    """Return what a person reads of a scan's folder that is damaged."""
    return UserError(text("compared_damaged", folder=str(folder), reason=reason))
