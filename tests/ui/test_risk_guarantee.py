"""The guarantee of the urgent risk, with its confidence: on the page and in the terminal."""

import io
from dataclasses import replace

import pytest
from painted_answers import jpeg, rich
from rich.console import Console

from skindx.diagnosis.answer_report import print_diagnosis
from skindx.diagnosis.case import Case
from skindx.diagnosis.guarantees import risk_guarantee
from skindx.diagnosis.record import CaseAnswer, UrgentRisk
from skindx.ui.page.answer_html import result_html

RISK = UrgentRisk(
    risk=0.03, threshold=0.08, miss_rate=0.05, confidence=0.787, bound=0.0805, lesions=57
)
GUARANTEE = (
    "The threshold was set on 57 calibration lesions with an urgent condition: of 100 such "
    "lesions, at most 5 are expected below it (confidence that it keeps to this rate: 79 %; with "
    "95 % confidence at most 8.1 are below it)."
)
ELSEWHERE = "On photos by another camera both errors can be much larger."


def answered(risk: UrgentRisk | None = RISK, **changes: object) -> CaseAnswer:
    answer = rich(Case((jpeg(80, 60),)))
    changes = {"urgent_risk": risk, "abstained": ""} | changes
    return replace(answer, diagnosis=answer.diagnosis.model_copy(update=changes))


def test_the_guarantee_names_its_confidence() -> None:
    assert risk_guarantee(answered().diagnosis) == f"{GUARANTEE} {ELSEWHERE}"
    own = RISK.model_copy(update={"group": "skin type 5", "lesions": 20, "miss_rate": 0.1})
    said = risk_guarantee(answered(own).diagnosis)
    assert "20 calibration lesions of skin type 5 with" in said
    assert "at most 10 are expected" in said


def test_an_answer_that_abstains_guarantees_nothing() -> None:
    assert risk_guarantee(answered(abstained="It cannot tell.").diagnosis) == ""


def test_without_a_threshold_it_says_why() -> None:
    assert risk_guarantee(answered(None, no_urgent_risk="It is old.").diagnosis) == "It is old."
    # A record of an older version does not say.
    assert risk_guarantee(answered(None).diagnosis) == ""


def test_the_second_question_has_a_guarantee_of_its_own() -> None:
    soon = RISK.model_copy(update={"threshold": 0.1, "lesions": 120})
    own = GUARANTEE.replace("threshold was", "threshold of at least soon was").replace(
        "57 calibration lesions with an urgent", "120 calibration lesions with an urgent or soon"
    )
    said = risk_guarantee(answered(soon_risk=soon).diagnosis)
    assert said.startswith(f"{GUARANTEE} {own[: own.index(' (confidence')]}")
    alone = risk_guarantee(answered(None, no_urgent_risk="It is old.", soon_risk=soon).diagnosis)
    assert alone == f"It is old. {said.removeprefix(GUARANTEE).removesuffix(ELSEWHERE).strip()}"
    assert risk_guarantee(answered(soon_risk=soon, abstained="It cannot tell.").diagnosis) == ""


@pytest.mark.parametrize("risk", [RISK, None])
def test_the_same_sentence_stands_everywhere(risk: UrgentRisk | None) -> None:
    answer = answered(risk)
    assert (GUARANTEE in result_html(answer, None).replace("\u00a0", " ")) == (risk is not None)
    console = Console(file=io.StringIO(), width=400)
    print_diagnosis(answer.diagnosis, console)
    assert (GUARANTEE in console.file.getvalue()) == (risk is not None)  # type: ignore[attr-defined]
