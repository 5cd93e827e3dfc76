"""The result of a scan as the interface and the page give it, read from the files of the scan."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from skindx.core.atomic_files import read_parquet
from skindx.core.untrusted import read_json
from skindx.diagnosis.conclusion import LEAST_OOD_P_VALUE
from skindx.diagnosis.record import Source
from skindx.diagnosis.scope import knows, lacks
from skindx.imaging.decode import decode
from skindx.imaging.resize import small_jpeg
from skindx.scan.outputs.scan_files import CLASSES, LESIONS, PARQUET
from skindx.scan.outputs.scan_result import (
    PhotoSummary,
    Summary,
    may_be,
    missed_by_size,
    missed_sentence,
    not_a_diagnosis,
    read_summary,
    shown_risk,
    shown_size,
)
from skindx.scan.scanned_lesions import STANDS_OUT, cut_by
from skindx.taxonomy import Taxonomy
from skindx.texts.catalogue import word
from skindx.ui.page_basics import data_url, render

_LONGEST_LESIONS = 512 << 20


class ScanPhoto(BaseModel):
    """One photo of a scan."""

    width: int
    height: int
    """Pixels of the upright photo."""
    sha256: str
    mm_per_pixel: float | None
    tiles: int = Field(description="Tiles of all scales.")
    tiles_without_skin: int = Field(description="How many were skipped: they show no skin.")
    failed_tiles: int = Field(description="How many could not be searched.")


class ScanDifference(BaseModel):
    """How far a lesion is from the same person's others, in robust standard deviations."""

    score: float = Field(description="Root mean square of the other three.")
    stands_out: bool = Field(description=f"The score is {STANDS_OUT:g} or more: an ugly duckling.")
    appearance: float
    size: float
    colour: float
    compared_with: int = Field(description="How many other lesions there are.")


class ScanLesion(BaseModel):
    """One lesion; the first to look at has rank 1."""

    rank: int
    photo: int = Field(description="Index of the photo, from 0.")
    box: tuple[float, float, float, float] = Field(
        description="x1, y1, x2, y2 in pixels of the upright photo."
    )
    detector_score: float | None
    cut_by: str = Field(
        "", description="`edge`: the photo's edge cuts it, so that part of it was not seen."
    )
    diameter_px: float
    diameter_mm: float | None = Field(description="null: the photo has no scale.")
    urgent_risk: float | None = Field(
        description="Probability of all urgent conditions together; null: the model knows none."
    )
    urgent: bool | None = Field(
        description="Whether the risk reaches the bundle's threshold; null: it has none."
    )
    most_likely: str = Field(description="Key of the most probable condition.")
    probabilities: dict[str, float] = Field(description="Calibrated, by the conditions' keys.")
    possible: tuple[str, ...] = Field(
        description="Keys of the conformal set; empty where the bundle has no such sets."
    )
    ood_p_value: float | None = Field(
        description="Of the out-of-distribution check; null: the bundle has none."
    )
    unusual: bool = Field(description="The crop is unlike what the networks were trained on.")
    difference: ScanDifference | None = Field(
        description="null: there are too few lesions to compare."
    )


class ScanRecall(BaseModel):
    """The detector's recall on validation images, of lesions of a size."""

    least_px: float
    most_px: float | None = Field(description="null: any larger size.")
    found: int
    lesions: int
    recall: float | None = Field(description="null: no lesion of this size was there.")
    low: float | None = Field(description="Lower end of the exact 95 % interval.")
    high: float | None
    found_here: int = Field(description="Lesions of this size in this scan.")
    missed_here: float | None = Field(
        description="About so many more are on these photos; null: that cannot be said."
    )


class ScanAnswer(BaseModel):
    """What a scan found. It is a search for what to look at, and no diagnosis."""

    notice: str
    made_at: datetime
    photos: tuple[ScanPhoto, ...]
    lesions: tuple[ScanLesion, ...] = Field(description="The first to look at first.")
    names: dict[str, str] = Field(description="Names of the conditions, by key.")
    threshold: str = Field(
        "", description="What the threshold of urgent promises, with both errors, in sentences."
    )
    no_urgent_risk: str = Field(
        "", description="Why lesions have no urgent risk, in a sentence; empty where they have."
    )
    known: tuple[str, ...] = Field((), description="Names of all conditions that the model knows.")
    unknown_urgent: tuple[str, ...] = Field(
        (), description="Urgent conditions that it does not know; the list is not complete."
    )
    warning: str = Field(
        "", description="Why the scan must not advise that anything may wait; empty where it may."
    )
    learned_from: str = Field(
        "",
        description="What the images that the model learned from mean for the scan; may be empty.",
    )
    missed: str = Field(description="What the scan may have missed, in a sentence.")
    recall: tuple[ScanRecall, ...] | None = Field(
        description="By size; null: it was not measured for this bundle."
    )
    measured_on: str = Field(
        "", description="What the images are that `recall` was measured on; it holds for no others."
    )
    problems: tuple[str, ...] = Field(description="What could not be searched, in sentences.")
    source: Source


def answer_of(results: Path, taxonomy: Taxonomy) -> ScanAnswer:
    """Return the answer of a folder that `run_scan` wrote. Raises UserError for what is none."""
    summary = read_summary(results)
    table = read_parquet(results / PARQUET)
    keys = (table.schema.metadata or {}).get(CLASSES, b"").decode().split(",")
    lesions = tuple(_lesion(row, keys, summary.photos) for row in table.to_pylist())
    sizes_px = [lesion.diameter_px for lesion in lesions]
    return ScanAnswer(
        notice=not_a_diagnosis(),
        made_at=summary.made_at,
        photos=tuple(_photo(photo) for photo in summary.photos),
        lesions=lesions,
        names={one.key: word(one.name) for one in taxonomy.classes},
        threshold=summary.threshold,
        no_urgent_risk=summary.no_urgent_risk,
        known=tuple(map(word, summary.known)),
        unknown_urgent=tuple(map(word, summary.unknown_urgent)),
        warning=summary.warning,
        learned_from=summary.source.limits,
        missed=missed_sentence(summary.recall, sizes_px, summary.measured_on, summary.planted),
        recall=None if summary.recall is None else _recall(summary, sizes_px),
        measured_on=summary.measured_on.measured_on,
        problems=tuple(read_json(results / LESIONS, _LONGEST_LESIONS)["problems"]),
        source=summary.source,
    )


def _photo(photo: PhotoSummary) -> ScanPhoto:
    return ScanPhoto(**photo.model_dump(exclude={"name", "overview"}))


def _lesion(row: Mapping[str, Any], keys: list[str], photos: Sequence[PhotoSummary]) -> ScanLesion:
    difference, p_value = row["difference"], row["ood_p_value"]
    photo, box = photos[row["photo_number"] - 1], (row["x1"], row["y1"], row["x2"], row["y2"])
    return ScanLesion(
        rank=row["rank"],
        photo=row["photo_number"] - 1,
        box=box,
        detector_score=row["detector_score"],
        cut_by=cut_by(box, photo.width, photo.height),
        diameter_px=row["diameter_px"],
        diameter_mm=row["diameter_mm"],
        urgent_risk=row["urgent_risk"],
        urgent=row["urgent"],
        most_likely=row["most_likely"],
        probabilities=dict(zip(keys, row["probabilities"], strict=True)),
        possible=tuple(row["possible"]),
        ood_p_value=p_value,
        unusual=p_value is not None and p_value < LEAST_OOD_P_VALUE,
        difference=None
        if difference is None
        else ScanDifference(
            score=difference,
            stands_out=difference >= STANDS_OUT,
            appearance=row["difference_appearance"],
            size=row["difference_size"],
            colour=row["difference_colour"],
            compared_with=row["compared_with"],
        ),
    )


def _recall(summary: Summary, sizes_px: list[float]) -> tuple[ScanRecall, ...]:
    return tuple(
        ScanRecall(
            **one.band.model_dump(),
            recall=one.band.recall.value if one.band.lesions else None,
            low=one.band.recall.low if one.band.lesions else None,
            high=one.band.recall.high if one.band.lesions else None,
            found_here=one.detected,
            missed_here=one.missed.value if one.missed else None,
        )
        for one in missed_by_size(summary.recall or (), sizes_px, summary.measured_on)
    )


SHOWN = 12
"""Lesions in the page; the whole list is in the page of the scan itself."""
_OVERVIEW_PX, _CROP_PX = 1100, 200
_LABELS_ACROSS = 45


def list_html(results: Path, answer: ScanAnswer) -> str:
    """Return the part of the page; images are in the HTML itself."""
    table = read_parquet(results / PARQUET, ("rank", "crop"))
    crops = {row["rank"]: row["crop"] for row in table.to_pylist()}
    summary = read_summary(results)
    rows = [_row(answer, lesion) for lesion in answer.lesions]
    for row in rows[:SHOWN]:
        row["jpeg"] = _small(results / crops[row["rank"]], _CROP_PX)
    views = [
        {
            "width": photo.width,
            "height": photo.height,
            "label": round(max(photo.width, photo.height) / _LABELS_ACROSS, 1),
            "jpeg": _small(results / photo.overview, _OVERVIEW_PX),
            "rows": [row for row in rows if row["photo"] == number],
            "searched": photo.tiles - photo.tiles_without_skin - photo.failed_tiles,
            "skipped": photo.tiles_without_skin,
        }
        for number, photo in enumerate(summary.photos)
    ]
    return render(
        "scan_list.html.jinja",
        answer=answer,
        views=views,
        rows=rows[:SHOWN],
        total=len(rows),
        urgent=sum(bool(lesion.urgent) for lesion in answer.lesions),
        made_at=summary.made_at,
        source=summary.source,
        scope=summary.scope,
        names=[word(name) for name in summary.known],
        knows=knows(summary.known),
        lacks=lacks(summary.unknown_urgent),
        odd=sum(bool(x.difference and x.difference.stands_out) for x in answer.lesions),
    )


def _row(answer: ScanAnswer, lesion: ScanLesion) -> dict[str, Any]:
    x1, y1, x2, y2 = lesion.box
    name = answer.names.get
    likely = lesion.most_likely, lesion.probabilities[lesion.most_likely]
    return {
        "rank": lesion.rank,
        "photo": lesion.photo,
        "x": round(x1, 1),
        "y": round(y1, 1),
        "w": round(x2 - x1, 1),
        "h": round(y2 - y1, 1),
        "may_be": may_be(
            [name(key, key) for key in lesion.possible], name(likely[0], likely[0]), likely[1]
        ),
        "risk": shown_risk(lesion.urgent_risk),
        "urgent": bool(lesion.urgent),
        "stands_out": bool(lesion.difference and lesion.difference.stands_out),
        "unusual": lesion.unusual,
        "size": shown_size(lesion.diameter_px, lesion.diameter_mm),
    }


def _small(path: Path, longest_side: int) -> str:
    return data_url(small_jpeg(decode(path.read_bytes()), longest_side), "image/jpeg")
