"""Figures in the record of a diagnosis: what rules promise, and what an evaluation measured."""

from pydantic import ConfigDict, Field

from skindx.core.settings_base import Settings
from skindx.imaging.photo_gates import Kind
from skindx.models.conformal import Share
from skindx.models.metadata_head import MetadataField


class RecordPart(Settings):
    """A part of the record; the docstring of a field is its description in the HTTP interface."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class MeasuredSets(RecordPart):
    """What an evaluation found of the sets, on images that nothing was fitted on."""

    split: str
    """The split of the dataset that was evaluated."""
    coverage: Share
    """Share of images whose set holds their class."""
    urgent: Share | None = None
    """The same of urgent classes; None: there was no such image."""
    least_name: str = ""
    """The class whose images had it in their set least often."""
    least: Share | None = None
    """How often they had."""
    refused: int | None = Field(None, exclude_if=lambda count: count is None)
    """Images that got no answer; missing: not counted."""
    abstained: int | None = Field(None, exclude_if=lambda count: count is None)
    """Images whose answer names no condition; missing: not counted."""
    urgent_missed: Share | None = None
    """Share of images of urgent classes whose set holds no urgent class."""
    urgent_raised: Share | None = None
    """Share of images of other classes whose set holds an urgent one."""


class Promise(RecordPart):
    """Guarantee of the set of classes, and the images it was fitted on."""

    level: float = Field(
        gt=0,
        lt=1,
        description="The share of true conditions that the sets were fitted to hold. Where "
        "`measured` is not null, what was measured holds instead.",
    )
    measured: MeasuredSets | None = None
    """What holds instead of the level; None: the bundle was not evaluated."""
    urgent_level: float | None = Field(None, gt=0, lt=1)
    """The same share for urgent classes; None: they have no threshold of their own."""
    pictures: int
    """Calibration images it was fitted on."""
    group: str = "all"
    """Which of them: `all`, or those of the skin type that the case names."""
    urgent_missed: Share | None = None
    """Share of urgent calibration images whose set holds no urgent class; None: not measured."""
    urgent_raised: Share | None = None
    """Share of the other calibration images whose set holds an urgent class; None: not measured."""

    @property
    def urgent_apart(self) -> bool:
        """Whether urgent classes have a threshold of their own."""
        return self.urgent_level is not None and self.urgent_level != self.level


class UrgentRisk(RecordPart):
    """The estimated risk that it is an urgent condition, and the threshold it is compared with.

    `soon_risk` of a diagnosis reads the same with "urgent or soon" in the place of "urgent".
    """

    risk: float = Field(ge=0, le=1)
    """Summed probability of the urgent classes, the highest of the photos."""
    by_photo: tuple[float, ...] = Field((), exclude_if=lambda risks: not risks)
    """The same by each of several photos, in their order; missing for one."""
    threshold: float = Field(ge=0, le=1)
    """The next step is urgent from this risk on."""
    miss_rate: float = Field(gt=0, lt=1)
    """The share of urgent lesions below the threshold is at most this, on average."""
    confidence: float = Field(ge=0, le=1)
    """Confidence that this threshold keeps to the miss rate."""
    bound: float = Field(ge=0, le=1)
    """The miss rate of this threshold is at most this, with 95 % confidence."""
    lesions: int = Field(ge=1)
    """Calibration lesions with an urgent condition behind the threshold."""
    group: str = "all"
    """Which of them: `all`, or those of the skin type that the case names."""
    sent_on: Share | None = None
    """Share of calibration images of other conditions at or above it; None: not measured."""
    measured_on: str = ""
    """The split of the evaluation that measured both errors of the advice; empty: none did."""
    measured_missed: Share | None = None
    """Share of its images of urgent conditions whose advice was not urgent, or that were refused;
    None of `soon_risk`, of whose advice no evaluation counts both errors."""
    measured_sent_on: Share | None = None
    """Share of its images of other conditions whose advice was urgent."""
    prevalence: float | None = Field(None, ge=0, le=1)
    """Share of lesions with an urgent condition that both predictive values hold for: the one that
    the operator gave, or else 1 %."""
    ppv: float | None = Field(None, ge=0, le=1)
    """Share of the photos called urgent that show an urgent condition; None: not known."""
    npv: float | None = Field(None, ge=0, le=1)
    """Share of the other photos that show none; None: not known."""

    @property
    def is_reached(self) -> bool:
        return self.risk >= self.threshold


class PredictiveValue(RecordPart):
    """What the advice is worth where so many lesions are urgent."""

    prevalence: float = Field(ge=0, le=1)
    ppv: float | None = Field(None, ge=0, le=1)
    """Share of the photos called urgent that show an urgent condition; None: there are none."""
    npv: float | None = Field(None, ge=0, le=1)
    """Share of the other photos that show none."""


class AdviceErrors(RecordPart):
    """How often the advice was wrong in the bundle's evaluation, refused images counted in."""

    split: str
    """The split of the dataset that was evaluated."""
    missed: Share
    """Share of images of urgent conditions whose advice was not urgent, or that were refused."""
    raised: Share
    """Share of images of other conditions whose advice was urgent."""
    refused: int = Field(ge=0)
    """Images of urgent conditions that were refused."""
    abstained: int = Field(ge=0)
    """Images of urgent conditions without a condition that is named."""
    only: str = ""
    """The one condition that all urgent images show; "": several, or it was not counted."""
    soon_missed: Share | None = None
    """Share of images of urgent and soon conditions that the thresholds call neither, with
    refused images judged like the others; None: not measured."""
    soon_raised: Share | None = None
    """Share of the other images that they call urgent or soon."""
    values: tuple[PredictiveValue, ...] = ()
    """At the prevalence that the operator gave, or else at 1 %, and at that of the images."""

    @property
    def named(self) -> int:
        """Images of urgent conditions for which conditions were named, rightly or not."""
        return max(0, self.missed.pictures - self.refused - self.abstained)


class ModalitySaid(RecordPart):
    """That a person said how photos were taken which the model's check took for others.

    The errors of the advice are of photos that the check accepted; these are of photos like them.
    """

    kind: Kind
    """What the person said: dermoscopic or clinical."""
    photos: tuple[int, ...] = ()
    """Numbers of the photos, from 1."""
    split: str = ""
    """The split of the dataset that was evaluated."""
    called: Share | None = None
    """Share of its images of urgent conditions, refused by that check alone, that the model would
    call urgent; None: not measured."""
    raised: Share | None = None
    """Share of its other images, refused by that check alone, that it would call urgent."""


class Confused(RecordPart):
    """How often an evaluation's images of urgent conditions got the answer's first condition."""

    split: str
    """The split of the dataset that was evaluated."""
    names: tuple[str, ...] = Field(min_length=1)
    """The urgent conditions that were most often confused with it, the most frequent first."""
    called: int = Field(ge=0)
    """Images of these that got it as their likeliest condition."""
    most: float | None = Field(None, ge=0, le=1, exclude_if=lambda most: most is None)
    """The share may be this high (95 % interval over lesions); missing in older records."""
    images: int = Field(ge=1)
    """All images of these."""


class UsedFacts(RecordPart):
    """What of the person changed the probabilities, and the answer without it."""

    fields: tuple[MetadataField, ...] = Field(min_length=1)
    """Some of age, sex and site."""
    without: float = Field(ge=0, le=1)
    """Probability of the first candidate by the photos alone."""
    first_without: str = ""
    """Name of the condition that would then be first; empty: the same."""
