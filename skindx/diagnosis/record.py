"""What a diagnosis says: plain values, for a page, a terminal or a file."""

from pydantic import ConfigDict, Field

from skindx.config import Settings
from skindx.diagnosis.case import Patient
from skindx.taxonomy import Urgency

SET_HOLDS = (
    "of 100 photos like the calibration photos, about {level} have their true condition in such "
    "a set"
)
"""Said of every set; `about`, since the share of one bundle varies around the level it was fitted
for with the calibration photos that were drawn (Vovk 2012)."""

NOTICE = (
    "This is no medical device and no diagnosis: it is a research tool and can be wrong. "
    "Never let it keep you from seeing a clinician."
)

CANNOT_RULE_OUT = (
    "skindx cannot rule out any disease: whatever it answers, see a clinician if your skin changes "
    "or worries you."
)
"""Stands before the upload and beside the next step of every answer."""


def percent(probability: float) -> str:
    """Return a probability as a person should read it: whole percent, never 0 or 100.

    No validation split is large enough to tell 99.5 % from certainty.
    """
    if probability > 0.99:
        return "> 99 %"
    if probability < 0.01:
        return "< 1 %"
    return f"{100 * probability:.0f} %"


class _Said(Settings):
    """A part of the record; what stands below a field describes it in the HTTP interface too."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Candidate(_Said):
    """One class that the photo may show."""

    key: str
    name: str
    icd10: str
    """ICD-10-CM code; empty where the taxonomy has none."""
    probability: float = Field(ge=0, le=1)
    description: str
    urgency: Urgency
    in_set: bool = False
    """Whether the conformal set holds it; no candidate is where the bundle has no such sets."""


class LesionBox(_Said):
    """Where the detector sees a lesion, in pixels of the upright photo."""

    x1: float
    y1: float
    x2: float
    y2: float
    label: str
    score: float = Field(ge=0, le=1)


class Photo(_Said):
    """One photo that was looked at; `sha256` is of the file's bytes."""

    width: int
    height: int
    """Pixels of the upright photo, in which boxes are measured."""
    sha256: str
    boxes: tuple[LesionBox, ...] | None = None
    """Best first; None: nobody looked, and `no_boxes` says why."""
    no_boxes: str = ""
    remarks: tuple[str, ...] = ()
    """What is not good about it, though good enough to be judged."""

    @property
    def boxes_found(self) -> str:
        """What the detector found, or why nobody looked."""
        if self.boxes is None:
            return self.no_boxes
        if not self.boxes:
            return "The detector outlined no lesion in this photo."
        count = len(self.boxes)
        return f"The detector outlined {count} lesion{'s' if count > 1 else ''}."


class Similar(_Said):
    """A photo that the bundle learned from and that looks like this one to the networks."""

    key: str
    name: str
    """Its class, as the dataset's label confirms it."""
    similarity: float = Field(ge=-1, le=1)
    """Cosine of the two embeddings."""
    sha256: str
    licence: str = ""
    credit: str = ""
    """Creator and attribution, as its licence asks for."""
    page_url: str = ""


class Share(_Said):
    """A measured share with its 95 % interval."""

    value: float = Field(ge=0, le=1)
    low: float = Field(ge=0, le=1)
    high: float = Field(ge=0, le=1)
    pictures: int = Field(ge=1)
    """Out of so many."""


class Promise(_Said):
    """What the set of classes promises, and what that was found on."""

    level: float = Field(
        gt=0,
        lt=1,
        description=f"The level of the set: {SET_HOLDS.format(level='100 times this')}.",
    )
    urgent_level: float | None = Field(None, gt=0, lt=1)
    """The same share of photos of urgent classes; None: they have no threshold of their own."""
    pictures: int
    """Calibration photos behind it."""
    group: str = "all"
    """Whose photos they were: `all`, or a skin type that the case names."""
    urgent_missed: Share | None = None
    """How often the set of an urgent photo held no urgent class; None: nobody could measure."""

    @property
    def urgent_apart(self) -> bool:
        """Whether urgent classes have a threshold of their own."""
        return self.urgent_level is not None and self.urgent_level != self.level


class UrgentRisk(_Said):
    """The estimated risk that it is an urgent condition, and the threshold it is compared with."""

    risk: float = Field(ge=0, le=1)
    """Summed probability of the urgent classes, the highest of the photos."""
    threshold: float = Field(ge=0, le=1)
    """The next step is urgent from this risk on."""
    miss_rate: float = Field(gt=0, lt=1)
    """The share of urgent lesions below the threshold is at most this, on average."""
    confidence: float = Field(ge=0, le=1)
    """How sure it is that this threshold itself keeps to the miss rate."""
    bound: float = Field(ge=0, le=1)
    """The miss rate of this threshold is at most this, with 95 % confidence."""
    lesions: int = Field(ge=1)
    """Calibration lesions with an urgent condition behind the threshold."""
    group: str = "all"
    """Whose lesions they were: `all`, or a skin type that the case names."""

    @property
    def is_urgent(self) -> bool:
        """Whether the risk reaches the threshold."""
        return self.risk >= self.threshold


class Source(_Said):
    """The bundle that answered; `version` does not change when the bundle is evaluated."""

    name: str
    created: str
    version: str
    """SHA-256 over everything that decides an answer."""
    digest: str = ""
    """SHA-256 of the bundle's index, as --expect takes it; empty in records of older versions."""
    backend: str = "eager"
    """What ran the networks, such as `openvino bf16`: it rounds in its own way."""
    calibrated: bool
    """Whether temperatures were fitted; without them a network is mostly too sure of itself."""
    taxonomy: str
    review: str
    """Whether a clinician has checked names, codes and urgencies."""


class Vote(_Said):
    """What one member of the ensemble puts first."""

    member: str
    key: str
    probability: float = Field(ge=0, le=1)


class NextStep(_Said):
    """What to do, by the urgent risk and by the most urgent class that remains likely."""

    urgency: Urgency
    advice: str = Field(description=f"What to do. {CANNOT_RULE_OUT}")
    because: str
    classes: int = Field(1, ge=1)
    """So many classes were asked: those of the set, or the leading ones without sets."""


class Diagnosis(_Said):
    """One answer about the photos of one case."""

    notice: str = NOTICE
    next_step: NextStep
    abstained: str = ""
    """Why no condition is named with confidence, in a sentence; empty where one or a few are."""
    candidates: tuple[Candidate, ...] = Field(min_length=1)
    """Most probable first; all of the conformal set are among them."""
    promise: Promise | None = None
    """None for a bundle without conformal sets."""
    no_promise: str = ""
    """Why there is none, in a sentence."""
    urgent_risk: UrgentRisk | None = None
    """None where the bundle has no threshold: the next step then follows the set of classes."""
    no_urgent_risk: str = ""
    """Why there is none, in a sentence."""
    votes: tuple[Vote, ...] = Field(min_length=1)
    disagreement: float = Field(0.0, ge=0, le=1)
    """How much the members contradict each other: 0 all say the same, 1 each is sure of another."""
    familiarity: float | None = Field(None, ge=0, le=1)
    """p-value of the out-of-distribution check, the least of all photos; None: no check."""
    photos: tuple[Photo, ...] = Field(min_length=1)
    similar: tuple[Similar, ...] = ()
    """Nearest first."""
    no_similar: str = ""
    """Why there are none, in a sentence."""
    no_heat: str = ""
    """Why there is no heat map, in a sentence."""
    known: tuple[str, ...] = ()
    """Names of all conditions that the model knows; none for a record of an older version."""
    unknown_urgent: tuple[str, ...] = ()
    """Urgent conditions that it does not know; the list is not complete."""
    patient: Patient = Patient()
    source: Source

    @property
    def agreement(self) -> str:
        """How many members put the same class first, in a sentence."""
        first, total = self.candidates[0], len(self.votes)
        same = sum(vote.key == first.key for vote in self.votes)
        if total == 1:
            return "The bundle holds a single network, so nothing could disagree."
        if same == total:
            every = "Both" if total == 2 else f"All {total}"
            return f"{every} networks of the ensemble put {first.name} first."
        if same == 0:
            return f"None of the {total} networks puts {first.name} first: only their mean does."
        return f"The networks disagree: {same} of {total} put {first.name} first."
