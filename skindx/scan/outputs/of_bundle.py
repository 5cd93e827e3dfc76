"""A bundle's findings on a person's photos, as the outputs take them."""

from collections.abc import Sequence
from datetime import datetime

from skindx.diagnosis.guarantees import shared
from skindx.diagnosis.record_assembly import source_of
from skindx.models.bundle.bundle import Bundle
from skindx.models.detector import DetectorRecall
from skindx.scan.lesion import ScannedPhoto
from skindx.scan.outputs.missed import RecallBand
from skindx.scan.outputs.result import ScanResult


def recall_bands(recall: DetectorRecall | None) -> tuple[RecallBand, ...] | None:
    """Return the detector's recall by size as the outputs take it; None: it was not measured."""
    if recall is None:
        return None
    return tuple(
        RecallBand(band.least_px, band.most_px or float("inf"), band.found, band.lesions)
        for band in recall.bands
    )


def result_of(
    bundle: Bundle,
    photos: Sequence[ScannedPhoto],
    made_at: datetime,
    *,
    backend: str = "eager",
    miss_rate: float | None = None,
    problems: Sequence[str] = (),
) -> ScanResult:
    """Return the result of a scan.

    `miss_rate` chooses the level of the urgent risk, as it did for the lesions; `problems` are
    sentences on what was left out.
    """
    # Crops are diagnosed as whole images are: the detector has looked already.
    rule = bundle.spec.whole_urgent_risk or bundle.spec.urgent_risk
    level = rule.level(miss_rate) if rule else None
    return ScanResult(
        photos=tuple(photos),
        classes=bundle.taxonomy.classes,
        source=source_of(bundle, backend),
        made_at=made_at,
        recall=recall_bands(bundle.spec.detector_recall),
        miss_rate=level.miss_rate if level else None,
        sent_on=shared(level.sent_on) if level else None,
        problems=tuple(problems),
    )
