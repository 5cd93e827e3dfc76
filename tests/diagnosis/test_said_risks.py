"""Of several photos the sentence and the captions say the risk of the same conditions."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from clinical_answers import answered as clinical_answer
from hypothesis import given
from hypothesis import strategies as st

from skindx.diagnosis import answer_texts
from skindx.diagnosis.conclusion import conclude
from skindx.diagnosis.record import Diagnosis
from skindx.models.conformal import Conformal
from skindx.models.urgent_risk import RiskLevel, UrgentRiskRule
from skindx.taxonomy import SkinClass

CLASSES = [
    SkinClass(key=name, name=name, urgency=urgency)  # type: ignore[arg-type]
    for name, urgency in (("Mole", "routine"), ("Basalioma", "soon"), ("Melanoma", "urgent"))
]


def rule(columns: tuple[int, ...], threshold: float) -> UrgentRiskRule:
    level = RiskLevel(miss_rate=0.05, thresholds={"all": threshold})
    return UrgentRiskRule(urgent_columns=columns, lesions={"all": 57}, levels=(level,))


RULES = SimpleNamespace(
    taxonomy=SimpleNamespace(classes=CLASSES),
    conformal=Conformal(level=0.9, thresholds={"all": 0.5}, pictures=99),
    urgent_risk=rule((2,), 0.04),
    soon_risk=rule((1, 2), 0.3),
    miss_rate=None,
    weights=None,
)


def answered(*photos: tuple[float, float]) -> Diagnosis:
    """Return an answer to photos with these shares of soon and urgent conditions."""
    shares_PC = np.array([(1 - soon - urgent, soon, urgent) for soon, urgent in photos])
    drawn = conclude(RULES, shares_PC, shares_PC[None])  # type: ignore[arg-type]
    whole = clinical_answer(photos=len(photos)).diagnosis
    shown = {
        "next_step": drawn.next_step,
        "abstained": drawn.abstained,
        "urgent_risk": drawn.urgent_risk,
        "soon_risk": drawn.soon_risk,
    }
    return whole.model_copy(update=shown)


def risk_in(sentence: str) -> float:
    found = re.search(r"is (less than |more than )?([\d.]+).%", sentence)
    assert found, sentence
    return float(found[2]) - 0.5 * (found[1] == "less than ") + 0.5 * (found[1] == "more than ")


SHARE = st.floats(0.001, 0.499)


@given(st.lists(st.tuples(SHARE, SHARE), min_size=2, max_size=3))
def test_the_highest_of_the_captions_is_the_risk_in_the_sentence(
    photos: list[tuple[float, float]],
) -> None:
    diagnosis = answered(*photos)
    said = answer_texts.written(diagnosis, None).photo_risks
    if not diagnosis.next_step.because.startswith("The estimated risk"):
        return
    assert len(said) == len(photos)
    assert max(map(risk_in, said)) == risk_in(diagnosis.next_step.because)


def test_three_views_of_a_soon_answer_say_the_risk_that_decided_it() -> None:
    diagnosis = answered((0.9, 0.004), (0.6, 0.004), (0.7, 0.004))
    said = answer_texts.written(diagnosis, None)
    assert diagnosis.next_step.urgency == "soon"
    assert "risk of an urgent or soon condition is 90 %" in diagnosis.next_step.because
    assert said.photo_risks == tuple(
        f"Its risk of an urgent or soon condition is {risk} %." for risk in (90, 60, 70)
    )
    assert said.combined == (
        "The highest risk of a single photo is 90 % (photo 1). "
        "The probabilities of the conditions are means over all photos."
    )
    assert said.decided["decided_photo"][0] == (
        "This 90 % is the sum of all urgent and soon conditions, and the advice is at least soon "
        "from 30 %."
    )
    assert diagnosis.soon_risk
    assert diagnosis.soon_risk.by_photo == pytest.approx((0.904, 0.604, 0.704))
    urgent = answer_texts.written(answered((0.1, 0.3), (0.1, 0.2)), None)
    assert urgent.photo_risks[0] == "Its risk of an urgent condition is 30 %."


@pytest.mark.parametrize(
    ("photos", "said"),
    [
        (((0.01, 0.97), (0.01, 0.01)), "photo 1 alone is urgent."),
        (((0.01, 0.97), (0.01, 0.01), (0.01, 0.9)), "photos 1 and 3 are urgent."),
    ],
)
def test_photos_of_two_lesions_say_which_is_urgent(
    photos: tuple[tuple[float, float], ...], said: str
) -> None:
    diagnosis = answered(*photos)
    assert "different conditions" in diagnosis.abstained
    words = answer_texts.written(diagnosis, None).combined
    assert words.startswith(f"The model names no condition, but {said}")
