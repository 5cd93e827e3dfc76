"""Conditions that a bundle knows, and statements it must not make where an urgent one is missing.

A classifier names one of its classes for every photo. A photo of a melanoma, given to a bundle
without that class, gets the name of a harmless one; so no such bundle may give time to wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from skindx.diagnosis.record import Candidate, Diagnosis, NextStep
from skindx.taxonomy import SkinClass, Urgency, UrgentCondition, unknown_to, urgent_conditions
from skindx.taxonomy.label_matches import without_urgency

WITHOUT_TIME = (
    "See a clinician, within days if it is new, grows, changes, bleeds, hurts or does not heal."
)
"""The advice where an urgent cancer is unknown: it never says that anything may wait."""

NOT_JUDGED = f"This says nothing about the lesion. {WITHOUT_TIME}"
"""Of every photo that is refused: silence must not pass for an all-clear."""


def unjudged(message: str) -> str:
    """Return why a photo is refused, and what that means for the person, once."""
    return message if message.endswith(NOT_JUDGED) else f"{message} {NOT_JUDGED}"


def known_names(classes: Sequence[SkinClass]) -> tuple[str, ...]:
    """Return the names of all conditions that a bundle knows, in alphabetical order."""
    return tuple(sorted((skin_class.name for skin_class in classes), key=str.casefold))


def knows(names: Sequence[str]) -> str:
    """Return how many conditions are known, in a sentence; "" for a record that does not say."""
    if not names:
        return ""
    if len(names) == 1:
        return "The model knows 1 condition and no other."
    return f"The model knows {len(names)} conditions and no others."


def lacks(missing: Sequence[str]) -> str:
    """Return which urgent conditions are not known, in a sentence; "" where none is missing."""
    if not missing:
        return ""
    return f"Urgent conditions that it does not know, among others: {', '.join(missing)}."


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
    def of(cls, classes: Sequence[SkinClass], learned_from: str = "") -> "Scope":
        unknown = tuple(condition.name for condition in unknown_to(classes))
        return cls(known_names(classes), unknown, cannot_reassure(classes), learned_from)

    @property
    def text(self) -> str:
        """All of it in sentences, "" for what an older version wrote."""
        named = f"{knows(self.known)} They are: {', '.join(self.known)}." if self.known else ""
        parts = (self.learned_from, self.warning, named, lacks(self.unknown_urgent))
        return " ".join(part for part in parts if part)


NO_URGENT_CLASSES = (
    "The model knows no urgent condition, so it estimates no urgent risk: that none is shown does "
    "not mean that there is none."
)
"""Instead of a risk that would be zero whatever a photo shows."""


UNSURE = (
    "The answer is too unsure to advise waiting, and the model knows no urgent condition that it "
    "could rule out."
)
"""Of an abstention by a bundle without urgent classes."""


def urgent_known(classes: Sequence[SkinClass]) -> bool:
    """Return whether any class is urgent; without one, nothing can be said of urgency."""
    return any(skin_class.urgency == "urgent" for skin_class in classes)


def deciding(classes: Sequence[SkinClass]) -> tuple[UrgentCondition, ...]:
    """Return the unknown conditions because of which no answer may give time to wait."""
    return tuple(skin_class for skin_class in unknown_to(classes) if skin_class.decides)


def cannot_reassure(classes: Sequence[SkinClass]) -> str:
    """Return why no answer may give time to wait, in a sentence; "" where it may."""
    names = [skin_class.name for skin_class in deciding(classes)]
    tierless = without_urgency(classes)
    undecided = [skin_class.name for skin_class in classes if skin_class.key in tierless]
    sentences = []
    if names:
        sentences.append(
            f"The model does not know {' and '.join(names)}, so it gives a photo of "
            f"{'it' if len(names) == 1 else 'them'} another name; no answer is advice to wait."
        )
    if undecided:  # of an older version, which asked nobody for the urgency
        sentences.append(
            f"The model has no urgency for {' and '.join(undecided)}, so it can call no photo of "
            f"{'it' if len(undecided) == 1 else 'them'} urgent; no answer is advice to wait."
        )
    return " ".join(sentences)


def shown_tier(diagnosis: Diagnosis, candidate: Candidate) -> Urgency | None:
    """Return the urgency of a candidate as it may be shown; None where it would reassure falsely.

    "Routine" beside a condition is read as advice to wait, which an answer must not give where it
    abstains and where the model does not know an urgent cancer.
    """
    unknown = set(diagnosis.unknown_urgent) & {
        one.name for one in urgent_conditions() if one.decides
    }
    waits_not = unknown or diagnosis.next_step.advice == WITHOUT_TIME
    if candidate.urgency == "routine" and (diagnosis.abstained or waits_not):
        return None
    return candidate.urgency


def without_reassurance(step: NextStep, classes: Sequence[SkinClass]) -> NextStep:
    """Return a next step that gives no time to wait where an urgent cancer is unknown.

    An urgent step stays; a routine one becomes one of unknown urgency.
    """
    why = cannot_reassure(classes)
    if not why or step.urgency == "urgent":
        return step
    urgency = "unknown" if step.urgency == "routine" else step.urgency
    because = f"{step.because.replace(' (routine)', '')} {why}"
    return step.model_copy(update={"urgency": urgency, "advice": WITHOUT_TIME, "because": because})
