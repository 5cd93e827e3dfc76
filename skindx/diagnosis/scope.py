"""Conditions that a bundle knows, and statements it must not make where an urgent one is missing.

A classifier names one of its classes for every photo. A photo of a melanoma, given to a bundle
without that class, gets the name of a harmless one; so no such bundle may give time to wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from skindx.diagnosis.checklist_advice import is_met
from skindx.diagnosis.record import Candidate, Diagnosis, NextStep
from skindx.taxonomy import (
    SkinClass,
    Urgency,
    UrgentCondition,
    advice_for,
    unknown_to,
    urgent_conditions,
)
from skindx.taxonomy.label_matches import without_urgency
from skindx.texts.catalogue import joined, languages, speaking, text, word


def not_judged() -> str:
    """Return what stands after every refusal: silence must not pass for an all-clear."""
    return joined(text("not_judged"), advice_for("now"))


def unjudged(message: str) -> str:
    """Return why a photo is refused, and what that means for the person, once.

    A refusal that another process wrote has it in the language of its case.
    """
    for language in languages():
        with speaking(language):
            # After the stronger advice, which answers ask for, the weaker one is not said.
            if message.endswith((not_judged(), text("not_judged"))):
                return message
    return f"{message} {not_judged()}"


def advised(step: str, message: str) -> str:
    """Return a refusal that begins with its case's next step; "": with what each one advises."""
    # The weaker advice of other refusals is not said beside a stronger one.
    return joined(step, message, text("not_judged")) if step else unjudged(message)


def shared_reason(reasons: Sequence[str], photos: int) -> str:
    """Return the one reason of all of several photos, once; "" where they have several or one."""
    if photos < 2 or len(reasons) < photos or len(set(reasons)) > 1:
        return ""
    return joined(text("refused_photos", last=photos), reasons[0])


def known_names(classes: Sequence[SkinClass]) -> tuple[str, ...]:
    """Return the names of all conditions that a bundle knows, in alphabetical order."""
    return tuple(sorted((skin_class.name for skin_class in classes), key=str.casefold))


def knows(names: Sequence[str]) -> str:
    """Return how many conditions are known, in a sentence; "" for a record that does not say."""
    return text("knows", n=len(names)) if names else ""


def knows_only(classes: Sequence[SkinClass], not_for: Sequence[str] = ()) -> str:
    """Return how many conditions are known, and which cancers and people (`not_for`) are not."""
    lacking = [condition.name for condition in deciding(classes)] + [*not_for]
    names = known_names(classes)
    return text("knows_only", n=len(names), lacking=lacking) if lacking else knows(names)


def lacks(missing: Sequence[str]) -> str:
    """Return which urgent conditions are not known, in a sentence; "" where none is missing."""
    return text("lacks", names=missing) if missing else ""


@dataclass(frozen=True)
class Scope:
    """What a bundle knows and what it does not, as every output of a scan has it."""

    known: tuple[str, ...] = ()
    """Names of all conditions; empty in what an older version wrote."""
    unknown_urgent: tuple[str, ...] = ()
    """Urgent conditions that it does not know; the list is not complete."""
    warning: str = ""
    """Why nothing may be said to wait, in a sentence; empty where it may."""
    learned_from: str = ""
    """What the images that the model learned from mean for its answers; may be empty."""

    @classmethod
    def of_classes(cls, classes: Sequence[SkinClass], learned_from: str = "") -> "Scope":
        """Return the scope of a bundle with these classes."""
        unknown = tuple(condition.name for condition in unknown_to(classes))
        return cls(known_names(classes), unknown, cannot_reassure(classes), learned_from)

    @property
    def text(self) -> str:
        """All of it in sentences, "" for what an older version wrote."""
        named = text("known_names", names=self.known) if self.known else ""
        missing = lacks(self.unknown_urgent)
        return joined(self.learned_from, self.warning, knows(self.known), named, missing)


def deciding(classes: Sequence[SkinClass]) -> tuple[UrgentCondition, ...]:
    """Return the unknown conditions because of which no answer may give time to wait."""
    return tuple(skin_class for skin_class in unknown_to(classes) if skin_class.decides)


def cannot_reassure(classes: Sequence[SkinClass]) -> str:
    """Return why no answer may give time to wait, in sentences; "" where it may."""
    names = [skin_class.name for skin_class in deciding(classes)]
    tierless = without_urgency(classes)  # of an older version, which asked nobody for the urgency
    undecided = [skin_class.name for skin_class in classes if skin_class.key in tierless]
    return joined(
        text("no_wait_unknown", names=names) if names else "",
        text("no_wait_tierless", names=undecided) if undecided else "",
    )


def missing_cancers(diagnosis: Diagnosis) -> list[str]:
    """Return the names of the unknown conditions because of which an answer gives no time to wait.

    An answer of an older version may call one of them by another of its labels.
    """
    deciding = [one for one in urgent_conditions() if one.decides]
    names = [name for one in deciding for name in (one.name, *one.labels)]
    return [one for one in diagnosis.unknown_urgent if one in {*names, *map(word, names)}]


def shown_tier(diagnosis: Diagnosis, candidate: Candidate) -> Urgency | None:
    """Return the urgency of a candidate as it may be shown; None where it would reassure falsely.

    "Routine" beside a condition is read as advice to wait, which an answer must not give where it
    abstains or gives no urgency, and where the model does not know an urgent cancer.
    """
    waits_not = missing_cancers(diagnosis) or diagnosis.next_step.urgency == "unknown"
    waits_not = waits_not or diagnosis.modality_said is not None
    waits_not = waits_not or (bool(diagnosis.patient.model_fields_set) and is_met(diagnosis))
    if candidate.urgency == "routine" and (diagnosis.abstained or waits_not):
        return None
    return candidate.urgency


def tier_of(diagnosis: Diagnosis, candidate: Candidate) -> str:
    """Return the urgency of a condition as a table shows it."""
    tier = shown_tier(diagnosis, candidate) or "unknown"
    return text("tier_not_stated") if tier == "unknown" else word(tier)


def as_on_the_page(diagnosis: Diagnosis) -> tuple[Candidate, ...]:
    """Return the conditions in the order of the page: named ones first, then by probability."""
    if diagnosis.abstained:
        return diagnosis.listed
    return tuple(sorted(diagnosis.candidates, key=lambda one: not one.in_set))


def without_reassurance(step: NextStep, classes: Sequence[SkinClass]) -> NextStep:
    """Return a next step that gives no time to wait where an urgent cancer is unknown.

    An urgent step stays; a routine one becomes one of unknown urgency, for this reason first.
    """
    return giving_no_time(step, cannot_reassure(classes))


def giving_no_time(step: NextStep, why: str, *, now: bool = False) -> NextStep:
    """Return a next step that gives no time to wait for this reason; "": it may give time.

    `now`: it is never weaker than the next step after a refusal.
    """
    if not why or step.urgency == "urgent":
        return step
    if step.urgency == "soon":
        key = "soon_now" if now else "soon_without_time"
        soon = {"advice": advice_for(key), "more": (*step.more, why)}
        return step.model_copy(update=soon)
    waits_not = {"urgency": "unknown", "advice": advice_for("now" if now else "without_time")}
    if step.urgency == "routine":
        first = {"because": why, "more": (step.because, *step.more)}
        return step.model_copy(update=waits_not | first)
    return step.model_copy(update=waits_not | {"more": (*step.more, why)})
