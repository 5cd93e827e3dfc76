"""All that a scan found, as the outputs take it."""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from skindx.diagnosis.conclusion import LARGEST_SET
from skindx.diagnosis.record import Share, Source, percent
from skindx.diagnosis.scope import NO_URGENT_CLASSES, Scope, urgent_known
from skindx.scan.lesion import ScannedPhoto
from skindx.scan.outputs.missed import RecallBand
from skindx.scan.ranking import RankedLesion, rank
from skindx.taxonomy import SkinClass

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
    """Of the bundle's taxonomy, in the order of the lesions' probabilities."""
    source: Source
    """The bundle."""
    made_at: datetime
    recall: tuple[RecallBand, ...] | None = None
    """Of the detector on validation images, by size; None: unknown for this bundle."""
    miss_rate: float | None = None
    """Of the threshold by which lesions are urgent; None: the bundle has none."""
    sent_on: Share | None = None
    """Share of calibration images of other conditions that the threshold calls urgent."""
    problems: tuple[str, ...] = ()
    """A sentence for what was left out because it ended the processes that worked on it."""

    @cached_property
    def ranked(self) -> tuple[RankedLesion, ...]:
        """The lesions of all photos, the first to look at first."""
        return rank(self.photos)

    @property
    def no_urgent_risk(self) -> str:
        """Why there is no urgent risk, in a sentence; empty where there is."""
        return "" if urgent_known(self.classes) else NO_URGENT_CLASSES

    @property
    def scope(self) -> Scope:
        """What the bundle knows, and what it does not."""
        return Scope.of(self.classes, self.source.limits)

    def name_of(self, key: str) -> str:
        """Return a class's name as shown to a person."""
        return next((one.name for one in self.classes if one.key == key), key)

    def most_likely(self, found: RankedLesion) -> tuple[SkinClass, float]:
        """Return a lesion's most probable class and its probability."""
        place = int(found.lesion.probabilities_C.argmax())
        return self.classes[place], float(found.lesion.probabilities_C[place])

    def may_be(self, found: RankedLesion) -> str:
        """Return what a lesion may be: the classes of its set, or the most probable one."""
        possible = found.lesion.possible
        if 0 < len(possible) <= LARGEST_SET:
            return ", ".join(self.name_of(key) for key in possible)
        first, probability = self.most_likely(found)
        most_likely = f"{first.name} {percent(probability)}"
        return f"any of {len(possible)}; first {most_likely}" if possible else most_likely


def shown_risk(risk: float | None) -> str:
    """Return an urgent risk as a person should read it."""
    return "–" if risk is None else percent(risk)


def shown_size(found: RankedLesion) -> str:
    """Return a lesion's size as a person should read it."""
    if found.diameter_mm is None:
        return f"{found.diameter_px:.0f} px"
    return f"{found.diameter_mm:.1f} mm"


def shown_difference(found: RankedLesion) -> str:
    """Return in words how a lesion differs from the person's others."""
    if found.difference is None:
        return "too few lesions to compare"
    if not found.difference.stands_out:
        return f"{found.difference.score:.1f}"
    if found.difference.mostly == "size":
        what = "larger" if found.difference.size > 0 else "smaller"
    else:
        what = f"in {found.difference.mostly}"
    return f"{found.difference.score:.1f}, mostly {what}"
