"""The record of a diagnosis: plain values for the page, the terminal and files."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from pydantic import Field

from skindx.data.origin import of_wide_photos
from skindx.diagnosis.case import Patient, nouns, use_of_facts
from skindx.diagnosis.record_figures import (
    AdviceErrors,
    Confused,
    ModalitySaid,
    Promise,
    RecordPart,
    UrgentRisk,
    UsedFacts,
)
from skindx.imaging.cut_lesions import Cut
from skindx.models.bundle.use_limits import UseLimits
from skindx.models.conformal import ALL
from skindx.taxonomy import Urgency
from skindx.texts.catalogue import LANGUAGE, joined, speaking, spoken, text, word

LEAST_SHOWN = 0.05
"""A condition of at least this probability is shown with every answer that names any."""


def notice() -> str:
    """Return that skindx is no medical device, and that nobody reviewed a translation."""
    return joined(text("notice_tool"), text("notice_clinician"), unreviewed())


def unreviewed() -> str:
    """Return that no clinician reviewed the translation; "" in English."""
    return "" if spoken() == LANGUAGE else text("notice_translation")


class Candidate(RecordPart):
    """One class that the photos may show."""

    key: str
    name: str
    icd10: str
    """ICD-10-CM code; empty where the taxonomy has none."""
    probability: float = Field(ge=0, le=1)
    description: str
    urgency: Urgency
    in_set: bool = False
    """Whether the conformal set holds it; false for all where the bundle has no such sets."""


class LesionBox(RecordPart):
    """Box of a lesion by the detector, in pixels of the upright photo."""

    x1: float
    y1: float
    x2: float
    y2: float
    label: str
    score: float = Field(ge=0, le=1)


class Photo(RecordPart):
    """One photo of the case; `sha256` is of the file's bytes."""

    width: int
    height: int
    """Pixels of the upright photo, in which boxes are measured."""
    sha256: str
    boxes: tuple[LesionBox, ...] | None = None
    """Highest score first; None: no detector ran, and `no_boxes` says why."""
    no_boxes: str = ""
    square: tuple[float, float, float, float] | None = None
    """Left, top, right and bottom in pixels of what the classifiers see; None in older records."""
    cut_by: Cut = ""
    """What seems to cut its lesion: the `square`, or the `edge` of the photo; "": neither."""
    remarks: tuple[str, ...] = ()
    """Limits of its quality, though it is good enough for an answer; that the model knows it."""
    colours: tuple[str, ...] = ()
    """What came of its colours: `colours-converted`, `profile-ignored`, `images-left-out`."""
    heat_off: bool = Field(False, exclude_if=lambda heat_off: not heat_off)
    """Whether the strongest region of its heat map lies off the lesion, where one was outlined."""
    mm_per_pixel: float | None = Field(None, gt=0, exclude_if=lambda scale: scale is None)
    """Millimetres on the skin in a pixel, as a DICOM header gives them; missing: not known."""
    taken: str = Field("", exclude_if=lambda taken: not taken)
    """Day on which it was taken, in ISO 8601, with the time if its offset from UTC is known."""

    @property
    def width_mm(self) -> float | None:
        """How much of the skin it shows from left to right, in millimetres; None: not known."""
        return self.mm_per_pixel and self.mm_per_pixel * self.width

    @property
    def cut_out(self) -> tuple[float, float, float, float] | None:
        """The square, where there is more of the photo than the classifiers see."""
        return None if self.square == (0, 0, self.width, self.height) else self.square

    @property
    def seen_part(self) -> str:
        """What of the photo the classifiers see, in a sentence; of an older record nothing."""
        if self.square is None:
            return ""
        return text("seen_square") if self.cut_out else text("seen_whole", n=1)

    @property
    def boxes_found(self) -> str:
        """The detector's result, or why it did not run."""
        if self.boxes is None:
            return self.no_boxes
        return text("boxes", n=len(self.boxes)) if self.boxes else text("boxes_none")


class Similar(RecordPart):
    """A training image whose embedding is near that of the photos."""

    key: str
    name: str
    """Its class by the label of its source."""
    confirmed_by: str = ""
    """How the source says that the label was confirmed, such as histopathology; empty: it does not
    say."""
    similarity: float = Field(ge=-1, le=1)
    """Cosine of the two embeddings: it ranks images, and is neither a share nor a probability."""
    sha256: str
    licence: str = ""
    credit: str = ""
    """Creator and attribution, as its licence requires."""
    page_url: str = ""

    @property
    def basis(self) -> str:
        """What its class rests on, as a part of a sentence."""
        if self.confirmed_by:
            return text("similar_confirmed", how=self.confirmed_by)
        return text("similar_labelled")


class Source(RecordPart):
    """The bundle that answered; `version` does not change when the bundle is evaluated."""

    name: str
    created: str
    version: str
    """SHA-256 over everything that decides an answer."""
    digest: str = ""
    """SHA-256 of the bundle's index, as --expect takes it; empty in records of older versions."""
    evaluation: str = ""
    """SHA-256 of the evaluation that lies beside the bundle, with its figures; empty: none does."""
    backend: str = "eager"
    """The runtime of the networks, such as `openvino bf16`; rounding differs between runtimes."""
    calibrated: bool
    """Whether temperatures were fitted; without them probabilities are mostly too high."""
    by_class: bool = Field(False, exclude_if=lambda by_class: not by_class)
    """Whether a bias of each class was fitted as well."""
    taxonomy: str
    review: str
    """Whether a clinician has checked names, codes and urgencies."""
    learned_from: str = ""
    """What the model may be used for and what it is not for, and what an answer is worth of one
    that learned from paintings, in sentences; empty where neither is stated."""
    use: UseLimits | None = Field(None, exclude_if=lambda use: use is None)
    """The same of its use, a field each; missing where the bundle states nothing."""
    modality: str = ""
    """Of the images it learned from: dermoscopic, clinical or mixed; empty: not stated."""
    expects: str = ""
    """Which photos the model is for, in a sentence; empty: not stated."""
    adapted: str = ""
    """To which local images its probabilities and thresholds were fitted, and when; empty: none."""

    @property
    def limits(self) -> str:
        """What the images that it learned from mean for a scan of wide photos, in sentences."""
        return joined(self.learned_from, of_wide_photos(self.expects))


class Vote(RecordPart):
    """The first choice of one member of the ensemble."""

    member: str
    key: str
    probability: float = Field(ge=0, le=1)


class NextStep(RecordPart):
    """The advice, by the urgent risk and by the most urgent class that remains likely."""

    urgency: Urgency
    advice: str
    """What to do; it rules out no disease."""
    because: str
    """Why, in a sentence."""
    more: tuple[str, ...] = ()
    """Further reasons, a sentence each."""
    classes: int = Field(1, ge=1)
    """How many classes it is based on: those of the set, or the leading ones without sets."""
    decided_by: str = ""
    """Key of the condition that decides it, of which heat maps are; empty: none alone does."""
    raised_from: Urgency | None = Field(None, exclude_if=lambda urgency: urgency is None)
    """What the model alone says, where the 7-point checklist raised it; None: it did not."""

    @property
    def parts(self) -> tuple[str, str]:
        """What to do, and when to do it sooner; "" where the advice does not say."""
        first, end, sooner = self.advice.partition(". ")
        return first + end.strip(), sooner


class Diagnosis(RecordPart):
    """One answer about the photos of one case."""

    notice: str = Field(default_factory=notice)
    language: str = Field(LANGUAGE, exclude_if=lambda language: language == LANGUAGE)
    """Language of its sentences; missing where they are English."""
    next_step: NextStep
    not_useful: tuple[str, ...] = ()
    """Why the bundle is not useful yet by its evaluation, in sentences; empty: it may be."""
    advice_errors: AdviceErrors | None = None
    """None: the bundle was not evaluated, or not with these thresholds."""
    confused: Confused | None = Field(None, exclude_if=lambda confused: confused is None)
    """Missing where it was not measured, or where the first condition is urgent itself."""
    modality_said: ModalitySaid | None = Field(None, exclude_if=lambda said: said is None)
    """What a person said against the check of modality; missing: nothing."""
    abstained: str = ""
    """Why no condition is named with confidence, in a sentence; empty where one or a few are."""
    candidates: tuple[Candidate, ...] = Field(min_length=1)
    """Most probable first; they include the whole conformal set, what decides the advice, the
    likeliest urgent condition, and all that have at least 5 %."""
    promise: Promise | None = None
    """None for a bundle without conformal sets."""
    no_promise: str = ""
    """Why there is none, in a sentence."""
    urgent_risk: UrgentRisk | None = None
    """None where the bundle has no threshold: the next step then follows the set of classes."""
    no_urgent_risk: str = ""
    """Why there is none, in a sentence."""
    soon_risk: UrgentRisk | None = None
    """The risk of an urgent or soon condition: from its threshold on the next step is at least
    soon; None where the bundle has no such threshold."""
    votes: tuple[Vote, ...] = Field(min_length=1)
    disagreement: float = Field(0.0, ge=0, le=1)
    """Disagreement of the members: 0: all say the same; 1: each is sure of another class."""
    familiarity: float | None = Field(None, ge=0, le=1)
    """p-value of the out-of-distribution check, the least of all photos; None: no check."""
    photos: tuple[Photo, ...] = Field(min_length=1)
    photos_differ: bool = Field(False, exclude_if=lambda differ: not differ)
    """Whether the page asks, of photos that differ, whether they show one lesion."""
    similar: tuple[Similar, ...] = ()
    """Nearest first."""
    no_similar: str = ""
    """Why there are none, in a sentence."""
    no_heat: str = ""
    """Why there is no heat map, in a sentence."""
    known: tuple[str, ...] = ()
    """Names of all conditions that the model knows; empty in a record of an older version."""
    unknown_urgent: tuple[str, ...] = ()
    """Urgent conditions that it does not know; the list is not complete."""
    prevalence: dict[str, float] | None = None
    """Shares of the conditions, by key, that the shown probabilities hold for; None: not known."""
    mix: str = ""
    """Where that mix of diseases is from, in sentences; empty in a record of an older version."""
    temperature: float = Field(1.0, gt=0)
    """Of the ensemble: below 1 it sharpened the networks' mean, above 1 it softened it."""
    knows_urgent: bool = True
    """Whether any condition that the model knows is urgent; else nothing is said of urgency."""
    patient: Patient = Patient()
    """Facts as they were given; `used_facts` says which of them changed probabilities."""
    used_facts: UsedFacts | None = Field(None, exclude_if=lambda used: used is None)
    """Missing where probabilities are those of the photos alone."""
    source: Source

    def named(self) -> "Diagnosis":
        """Return the same with names and descriptions in the spoken language.

        A record holds those of the taxonomy, by which codes are looked up.
        """
        if spoken() == LANGUAGE:
            return self
        names = {
            "known": sorted(map(word, self.known), key=str.casefold),
            "unknown_urgent": map(word, self.unknown_urgent),
        }
        update: dict[str, object] = {key: tuple(found) for key, found in names.items()}
        for part in ("candidates", "similar"):
            update[part] = tuple(_renamed(one) for one in getattr(self, part))
        if self.promise and (sets := self.promise.measured):
            sets = sets.model_copy(update={"least_name": word(sets.least_name)})
            update["promise"] = self.promise.model_copy(update={"measured": sets})
        return self.model_copy(update=update)

    @property
    def use_of_facts(self) -> str:
        """What the given facts changed, in sentences; empty where none is given."""
        used, first = self.used_facts, self.candidates[0]
        if not self.patient.model_fields_set:
            return ""
        if used is None:
            return use_of_facts(self.patient, chooses=self._by_skin_type)
        return joined(
            text("facts_used", fields=nouns(used.fields)),
            text("facts_changed", name=first.name, given=first.probability, alone=used.without),
            used.first_without and text("facts_first", name=used.first_without),
            use_of_facts(self.patient, used.fields, chooses=self._by_skin_type),
        )

    @property
    def _by_skin_type(self) -> bool:
        """Whether a threshold of the set or of a risk is that of the given skin type."""
        rules = (self.promise, self.urgent_risk, self.soon_risk)
        return any(rule is not None and rule.group != ALL for rule in rules)

    @property
    def deciding(self) -> Candidate:
        """The condition that decides the next step, of which heat maps are; else the likeliest."""
        decided = (one for one in self.candidates if one.key == self.next_step.decided_by)
        return next(decided, self.candidates[0])

    @property
    def listed(self) -> tuple[Candidate, ...]:
        """The conditions as a list has them: likeliest first, and an abstention's by urgency."""
        tiers = {"urgent": 0, "soon": 1} if self.abstained else {}
        return tuple(sorted(self.candidates, key=lambda one: tiers.get(one.urgency, 2)))

    @property
    def heat_words(self) -> str:
        """Whose signs a heat map shows, and what it is worth, in a sentence."""
        return text("heat", name=self.deciding.name)

    @property
    def outside(self) -> tuple[Candidate, ...]:
        """The conditions of at least 5 % that the set does not hold, and what decides the advice.

        None of an abstention.
        """
        if self.abstained or not any(one.in_set for one in self.candidates):
            return ()
        return tuple(
            one
            for one in self.candidates
            if not one.in_set
            and (one.probability >= LEAST_SHOWN or one.key == self.next_step.decided_by)
        )

    @property
    def beyond(self) -> tuple[str, ...]:
        """What the facts about the person describe and the model learned nothing about."""
        facts, use = self.patient, self.source.use
        return use.beyond(facts.age, facts.site, facts.skin_type) if use else ()

    @property
    def learned_images(self) -> str:
        """Which images the model learned from, in a sentence; "" where its scope says it."""
        use = self.source.use
        says = use and use.lacking and self.known
        return text("learned_from", images=use.learned_from) if use and says else ""

    @property
    def agreement(self) -> str:
        """How many members put which class first, in sentences."""
        first, total = self.candidates[0], len(self.votes)
        names = {one.key: one.name for one in self.candidates}
        others = Counter(names.get(vote.key, vote.key) for vote in self.votes)
        same = others.pop(first.name, 0)
        if total == 1:
            return text("agree_single")
        if same == total:
            if total == 2:
                return text("agree_both", name=first.name)
            return text("agree_all", count=total, name=first.name)
        if same:
            votes = {"n": same, "count": total, "others": others.most_common()}
            return text("agree_some", name=first.name, **votes)
        key = "agree_none_facts" if self.used_facts else "agree_none"
        return text(key, count=total, name=first.name)


_N = TypeVar("_N", Candidate, Similar)


def _renamed(one: _N) -> _N:
    update = {"name": word(one.name)}
    if isinstance(one, Candidate):
        update["description"] = word(one.description)
    return one.model_copy(update=update)


@dataclass(frozen=True)
class PhotoView:
    """One photo as it may be shown: upright, at most 1280 pixels, without any metadata."""

    jpeg: bytes
    heat: bytes = b""
    """PNG with transparency, to lie over the whole photo; empty where no heat map was made."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class CaseAnswer:
    """A diagnosis, the photos it is about, and the similar cases that may be shown."""

    diagnosis: Diagnosis
    views: tuple[PhotoView, ...]
    """One a photo, in the order of `diagnosis.photos`."""
    thumbnails: tuple[bytes, ...] = ()
    """JPEG, one for each of `diagnosis.similar`; empty where its licence does not allow showing."""
    given: str = field(default_factory=_now, compare=False)
    """When the answer was given: ISO 8601 in UTC."""
    features: tuple[bytes, ...] = field(default=(), repr=False, compare=False)
    """Embeddings of the photos as float16, for the case book alone."""


def shown_heat(answer: CaseAnswer) -> list[bool]:
    """Return for each photo whether its heat map is shown; one off the lesion misleads."""
    both = zip(answer.diagnosis.photos, answer.views, strict=True)
    return [bool(view.heat) and not photo.heat_off for photo, view in both]


_A = TypeVar("_A", CaseAnswer, Diagnosis)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def in_its_language(
    named: bool,
) -> Callable[[Callable[Concatenate[_A, _P], _R]], Callable[Concatenate[_A, _P], _R]]:
    """Return a decorator of what writes an answer: it speaks the answer's language.

    `named`: it is given the names of that language too, for a reader; codes need those of the
    record.
    """

    def decorated(write: Callable[Concatenate[_A, _P], _R]) -> Callable[Concatenate[_A, _P], _R]:
        @wraps(write)
        def written(answer: _A, /, *more: _P.args, **options: _P.kwargs) -> _R:
            said = answer if isinstance(answer, Diagnosis) else answer.diagnosis
            with speaking(said.language):
                shown: Any = said.named() if named else said
                if isinstance(answer, CaseAnswer):
                    shown = replace(answer, diagnosis=shown)
                return write(shown, *more, **options)

        return written

    return decorated
