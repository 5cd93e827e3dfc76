"""The weighted 7-point checklist of pigmented lesions: what a person answers may raise an urgency.

MacKie, BMJ 301:1005-6 (1990), with the weights of NICE guideline NG12 (2015), recommendation 1.7.1:
refer a suspicious pigmented skin lesion with a score of 3 or more on the pathway for suspected
cancer, for an appointment within 2 weeks. NG12 gives no such score for other cancers of the skin: a
suspected basal cell carcinoma is referred as routine, so bleeding alone raises nothing here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Answer = Literal["yes", "no", "unknown"]
Question = Literal[
    "pigmented",
    "grew",
    "irregular_shape",
    "irregular_colour",
    "large",
    "inflamed",
    "bleeds",
    "itches",
    "hurts",
    "new",
    "changed",
    "raised",
]
QUESTIONS: tuple[Question, ...] = get_args(Question)
"""What dermatologists ask about a lesion, in the order of the form."""

ITEMS: dict[str, tuple[int, tuple[Question, ...]]] = {
    "size": (2, ("grew",)),
    "shape": (2, ("irregular_shape",)),
    "colour": (2, ("irregular_colour",)),
    "diameter": (1, ("large",)),
    "inflammation": (1, ("inflamed",)),
    "oozing": (1, ("bleeds",)),
    "sensation": (1, ("itches", "hurts")),
}
"""Item -> its points and the questions that answer it: one yes is enough. Three are major."""
ITEM_OF = {question: item for item, (_, asked) in ITEMS.items() for question in asked}
REFER_FROM = 3
"""The score from which NG12 asks for referral. A lower one says nothing."""
NO_SKIN = "nail"
"""Place that the items do not fit."""


@dataclass(frozen=True, slots=True)
class SevenPoints:
    """The score of one lesion; what nobody answered counts as nothing."""

    score: int
    known: int
    """Items of the seven of which something is known."""
    fits: bool
    """The checklist is for such a lesion: it is on the skin, and nobody said that it has no
    pigment."""

    @property
    def refers(self) -> bool:
        return self.fits and self.score >= REFER_FROM

    @property
    def is_incomplete(self) -> bool:
        """Whether an item that nobody answered could still raise a score to referral."""
        return self.known < len(ITEMS) and self.score < REFER_FROM


def seven_points(answers: Mapping[str, str | None], site: str | None = "") -> SevenPoints:
    """Return the score of answers by question, for a lesion at a place of the lexicon."""
    said = [(points, [answers.get(one) for one in asked]) for points, asked in ITEMS.values()]
    return SevenPoints(
        score=sum(points for points, given in said if "yes" in given),
        known=sum("yes" in given or "no" in given for _, given in said),
        fits=answers.get("pigmented") != "no" and site != NO_SKIN,
    )


def answered(facts: object) -> bool:
    """Tell whether facts about a person answer one of the questions with yes or no."""
    return any(getattr(facts, one, None) in ("yes", "no") for one in QUESTIONS)


def answers_text(answers: Mapping[str, str | None]) -> str:
    """Return the answers yes and no as the manifest has them: `grew=yes itches=no`."""
    return " ".join(
        f"{question}={answers[question]}"
        for question in QUESTIONS
        if answers.get(question) in ("yes", "no")
    )


def answers_from(text: str) -> dict[str, str]:
    """Return the answers of such a text by question; what is none of them is left out."""
    pairs = (part.partition("=") for part in text.split())
    return {name: value for name, _, value in pairs if name in QUESTIONS and value in ("yes", "no")}
