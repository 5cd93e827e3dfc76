"""How many lesions a scan may have missed, by the detector's recall on validation images."""

from collections.abc import Sequence
from dataclasses import dataclass

from skindx.core.text import counted
from skindx.diagnosis.record import percent
from skindx.metrics.share_intervals import Interval, proportion_interval

UNKNOWN = (
    "How many lesions were missed is unknown: the detector's recall by size was not measured for "
    "this bundle."
)


@dataclass(frozen=True)
class RecallBand:
    """How many of the validation images' lesions of a size the detector found."""

    least_px: float
    """Geometric mean of the box's sides, from here on and below `most_px`."""
    most_px: float
    found: int
    lesions: int

    @property
    def recall(self) -> Interval:
        """Return the share that was found, with its exact 95 % interval."""
        return proportion_interval(self.found / self.lesions if self.lesions else 0, self.lesions)


@dataclass(frozen=True)
class Missed:
    """What that means for a scan: of `found` lesions of a size, so many more are there."""

    band: RecallBand
    found: int
    missed: Interval | None
    """None: nothing bounds it."""

    @property
    def size(self) -> str:
        """Return the sizes of the band in words."""
        if self.band.most_px == float("inf"):
            return f"from {self.band.least_px:.0f} px"
        return f"{self.band.least_px:.0f} to {self.band.most_px:.0f} px"

    @property
    def shown_recall(self) -> str:
        """Return the recall as a page shows it."""
        if not self.band.lesions:
            return "not measured"
        recall = self.band.recall
        return f"{percent(recall.value)} ({percent(recall.low)} to {percent(recall.high)})"

    @property
    def shown_missed(self) -> str:
        """Return the estimate as a page shows it."""
        if self.missed is None:
            return "cannot be said"
        low, high = round(self.missed.low), self.missed.high
        most = f"{round(high)}" if high != float("inf") else "any number"
        return f"about {round(self.missed.value)} ({low} to {most})"


def missed_by_size(
    bands: Sequence[RecallBand], diameters_px: Sequence[float]
) -> tuple[Missed, ...]:
    """Estimate for each band how many lesions are there that the scan did not find.

    Where a share r is found, n found lesions stand for n (1 - r) / r missed ones. A size of which
    the scan found none has no estimate.
    """
    answers = []
    for band in bands:
        found = sum(band.least_px <= size < band.most_px for size in diameters_px)
        recall = band.recall
        missed = None
        if found and band.found:
            missed = Interval(*(found * (1 / share - 1) if share else float("inf")
                                for share in (recall.value, recall.high, recall.low)))  # fmt: skip
        answers.append(Missed(band, found, missed))
    return tuple(answers)


def missed_sentence(bands: Sequence[RecallBand] | None, diameters_px: Sequence[float]) -> str:
    """Return in a sentence what the scan may have missed; by size it is in a table."""
    if not bands:
        return UNKNOWN
    found, lesions = sum(band.found for band in bands), sum(band.lesions for band in bands)
    recall = proportion_interval(found / lesions if lesions else 0, lesions)
    if not lesions:
        return UNKNOWN
    estimates = [one.missed for one in missed_by_size(bands, diameters_px) if one.missed]
    least = min(band.least_px for band in bands)
    about, are = "some", "are"
    if estimates:
        more = round(sum(one.value for one in estimates))
        about, are = f"about {counted(more, 'lesion')}", "is" if more == 1 else "are"
    return (
        f"The detector missed {percent(1 - recall.value)} ({percent(1 - recall.high)} to "
        f"{percent(1 - recall.low)}) of {counted(lesions, 'lesion')} of its validation images; at "
        f"that rate {about} of these photos {are} not in this list. Small and faint lesions are "
        f"missed more often; below {least:.0f} pixels nothing was measured."
    )
