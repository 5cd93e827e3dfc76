"""What answers to questions do to an advice: they may shorten its time, and never lengthen it.

The weighted 7-point checklist may raise its urgency too.

What a person answered counts beside the model, whatever the model says, also where it abstains or
refuses the photo. The errors of the advice were measured without these answers.
"""

from dataclasses import dataclass
from typing import Any, Literal

from skindx.core.seven_points import ITEMS, NO_SKIN, REFER_FROM, Question, answered
from skindx.diagnosis.case import Patient, nouns
from skindx.diagnosis.intake import YES
from skindx.diagnosis.record import Diagnosis, NextStep
from skindx.taxonomy import Urgency, advice_for
from skindx.texts.catalogue import joined, speaking, text

Tier = Urgency | Literal["met", "beyond"]
"""The urgency of an advice as a reader is given it, a key of `tier_…`."""

_ALONE: dict[Urgency, str] = {
    "soon": "model_alone_soon",
    "routine": "model_alone_routine",
}


_CONDITIONS: tuple[Question, ...] = ("new", "grew", "changed", "bleeds", "hurts")
"""Questions whose yes meets a condition of an advice."""
_ASKED: dict[str, tuple[Question, ...]] = {
    "soon_without_time": _CONDITIONS,
    "soon_now": _CONDITIONS,
    "without_time": _CONDITIONS,
    "now": _CONDITIONS,
    "unknown": _CONDITIONS,
    "soon": ("grew", "changed"),
    "soon_cancer": ("grew", "changed", "bleeds", "hurts"),
    "routine": ("grew", "changed", "bleeds", "hurts"),
}
"""Key of an advice -> the questions whose yes leaves no longer time than days."""


def with_checklist(step: NextStep, patient: Patient) -> NextStep:
    """Return a next step that is urgent where the checklist asks for referral, its reason first.

    Where it does not, an answer shortens the time of an advice that has it as a condition. What
    was answered with yes stands in the advice or in its reason.
    """
    if not answered(patient):
        return step
    if step.urgency == "urgent" or not patient.seven_points.refers:
        return _sooner(step, patient)
    alone = text(_ALONE[step.urgency]) if step.urgency in _ALONE else ""
    update = {
        "urgency": "urgent",
        "advice": advice_for("urgent_cancer"),  # it asks for signs of melanoma
        "because": joined(_yes(patient), _score(patient), text("checklist_decides"), alone),
        "more": (step.because, *step.more),
        "raised_from": step.urgency,
    }
    return step.model_copy(update=update)


def advice_met(patient: Patient) -> str:
    """Return the advice that names what was answered with yes; "" for none of its conditions."""
    said = met_by(patient)
    return text("advice_met", conditions=said) if said else ""


def met_by(patient: Patient) -> list[str]:
    """Return the conditions of an advice that were answered with yes, as verbs of a sentence."""
    return [YES[one] for one in _CONDITIONS if patient.answers.get(one) == "yes"]


def _yes(patient: Patient) -> str:
    """Return what was answered with yes, in a sentence; "" for nothing."""
    said = [YES[one] for one, given in patient.answers.items() if given == "yes" and one in YES]
    return text("answered_yes", conditions=said) if said else ""


def is_met(diagnosis: Diagnosis) -> bool:
    """Tell whether an answer to a question shortened the time of the advice."""
    with speaking(diagnosis.language):
        return diagnosis.next_step.advice == advice_met(diagnosis.patient)


def tier_of_advice(diagnosis: Diagnosis) -> Tier:
    """Return the urgency of the advice as it was given; `met`: an answer left days at most."""
    urgency = diagnosis.next_step.urgency
    if diagnosis.patient.model_fields_set and is_met(diagnosis):
        return "met"
    return "beyond" if diagnosis.beyond and urgency == "unknown" else urgency


def urgency_given(diagnosis: Diagnosis) -> Urgency:
    """Return an urgency that is never less than the advice: one that leaves days is urgent."""
    met = tier_of_advice(diagnosis) == "met"
    return "urgent" if met else diagnosis.next_step.urgency


def _sooner(step: NextStep, patient: Patient) -> NextStep:
    asked = next((asked for key, asked in _ASKED.items() if advice_for(key) == step.advice), ())
    if not any(patient.answers.get(one) == "yes" for one in asked):
        return step.model_copy(update={"because": joined(step.because, _yes(patient))})
    return step.model_copy(update={"advice": advice_met(patient)})


@dataclass(frozen=True)
class UnansweredStep:
    """The next step where the model gives no answer."""

    advice: str
    sooner: str
    because: str = ""
    """The reason, in sentences; "" where the advice has it."""
    asks: bool = True
    """Whether the answers ask for it."""

    @property
    def urgency(self) -> Urgency:
        return "urgent" if self.asks else "unknown"

    @property
    def tier(self) -> str:
        return text("tier_urgent" if self.asks else "tier_beyond")

    @property
    def text(self) -> str:
        """It in sentences; "": what every refusal advises is enough."""
        return joined(self.advice, self.because) if self.asks else ""


def unanswered_step(patient: Patient) -> UnansweredStep:
    """Return the next step of a case whose photos were refused."""
    if patient.seven_points.refers:
        return UnansweredStep(
            advice_for("urgent_cancer"), "", joined(_yes(patient), _score(patient))
        )
    if met := advice_met(patient):
        return UnansweredStep(met, text("advice_urgent_sooner"))
    return UnansweredStep(text("advice_now"), text("advice_now_sooner"), asks=False)


def referred(patient: Patient) -> str:
    """Return what the answers ask for without any model, in sentences; "": nothing."""
    return unanswered_step(patient).text


def checklist_columns(patient: Patient) -> dict[str, Any]:
    """Return what a table says of the checklist alone, whether the photo has an answer or not."""
    points = patient.seven_points
    score = None if points.is_incomplete else points.score
    columns = {"checklist_score": score, "checklist_items": points.known}
    said = advice_for("urgent_cancer") if points.refers else advice_met(patient)
    urgent = {"urgency": "urgent", "advice": said} if said else {}
    return columns | urgent if patient.answers else {}


def checklist_words(diagnosis: Diagnosis) -> list[str]:
    """Return what the answers mean by the checklist, where no reason says it; [] without any."""
    return [] if diagnosis.next_step.raised_from else checklist_of(diagnosis.patient)


def checklist_of(patient: Patient) -> list[str]:
    """Return what answers mean by the checklist, whatever the photo shows; [] without any.

    A low score of a few answers would reassure, so that none is given.
    """
    if not patient.answers:
        return []
    points = patient.seven_points
    if patient.site == NO_SKIN:
        return [text("checklist_nail")]
    if not points.fits:
        return [text("checklist_no_pigment")]
    if points.is_incomplete:
        return [text("checklist_unscored", questions=nouns(_open_items(patient)))]
    low = () if points.refers else (text("checklist_low", least=REFER_FROM),)
    return [_score(patient), *low]


_MOST_NAMED = 2
"""Open items that a short sentence names; with more of them the fold alone says it."""


def _open_items(patient: Patient) -> list[Question]:
    """Return of each item that has no answer its first question."""
    known = patient.answers
    return [asked[0] for _, asked in ITEMS.values() if not any(one in known for one in asked)]


def checklist_short(diagnosis: Diagnosis) -> str:
    """Return the same in a short sentence, for where the advice stands; "" without any."""
    patient, points = diagnosis.patient, diagnosis.patient.seven_points
    if not patient.answers or diagnosis.next_step.raised_from:
        return ""
    if patient.site == NO_SKIN:
        return text("checklist_short_nail")
    if not points.fits:
        return text("checklist_short_no_pigment")
    if points.is_incomplete:
        open_ = nouns(_open_items(patient))
        few = len(open_) <= _MOST_NAMED
        return text("checklist_short_unscored", questions=open_) if few else ""
    key = "checklist_short" if points.refers else "checklist_short_low"
    return text(key, score=points.score, least=REFER_FROM)


def _score(patient: Patient) -> str:
    return text("checklist_score", score=patient.seven_points.score, least=REFER_FROM)
