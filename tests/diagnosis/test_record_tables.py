"""Tables of the printed report: each rate once, with what was counted and its interval."""

from dataclasses import replace

import pytest
from clinical_answers import WHEN, answered
from pdf_words import words_of
from tiny_bundle import measured as figures

from skindx.diagnosis import decision_texts
from skindx.diagnosis.record import CaseAnswer, Diagnosis
from skindx.diagnosis.record_figures import AdviceErrors, MeasuredSets, PredictiveValue
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import report_pdf
from skindx.diagnosis.report.record_tables import (
    advice_table,
    classes_table,
    conditions_table,
    names_table,
    outcomes_table,
    rest_of,
    thresholds_table,
)
from skindx.models.conformal import Share
from skindx.taxonomy import advice_for
from skindx.texts.catalogue import text

MISSED = Share(value=0.1, low=0.05, high=0.175, pictures=200)
ADVICE = AdviceErrors(
    split="test", missed=MISSED, raised=Share(value=0.25, low=0.2, high=0.3, pictures=400),
    refused=8, abstained=30,
    soon_missed=Share(value=0.04, low=0.02, high=0.06, pictures=300),
    soon_raised=Share(value=0.3, low=0.25, high=0.35, pictures=300),
    values=(PredictiveValue(prevalence=0.01, ppv=0.04, npv=0.998),),
)  # fmt: skip


def measured(*, abstained: bool = False) -> CaseAnswer:
    """Return an answer whose advice, sets and conditions an evaluation measured."""
    answer = answered(abstained=abstained)
    promise = answer.diagnosis.promise
    assert promise is not None
    held = Share(value=0.9, low=0.88, high=0.92, pictures=600)
    sets = MeasuredSets(split="test", coverage=held, refused=12, abstained=60)
    update = {"advice_errors": ADVICE, "promise": promise.model_copy(update={"measured": sets})}
    return replace(answer, diagnosis=answer.diagnosis.model_copy(update=update))


def test_each_rate_has_its_count_and_interval() -> None:
    diagnosis = measured().diagnosis
    head, *rows = advice_table(diagnosis)
    assert head == ("Measured on the test images", "Images", "Share (95 % interval)")
    assert [row[1:] for row in rows] == [
        ("20 of 200", "10.0 % (5.0 % to 17.5 %)"),
        ("100 of 400", "25.0 % (20.0 % to 30.0 %)"),
        ("12 of 300", "4.0 % (2.0 % to 6.0 %)"),
        ("90 of 300", "30.0 % (25.0 % to 35.0 %)"),
    ]
    assert outcomes_table(diagnosis) == [
        ("Measured on the test images", "Urgent images", "All images"),
        ("Refused", "8 of 200", "12 of 600"),
        ("Not refused, no condition named", "30 of 200", "60 of 600"),
        ("Conditions named", "162 of 200", "528 of 600"),
    ]
    assert [row[1:] for row in names_table(diagnosis, None)[1:]] == [
        ("540 of 600", "90.0 % (88.0 % to 92.0 %)")
    ]
    assert thresholds_table(diagnosis)[1:] == [
        ("urgent conditions", "5 %", "212 lesions", "5 of 100", "7.1 %")
    ]


def test_an_abstention_has_no_rates_of_names_and_no_thresholds() -> None:
    diagnosis = measured(abstained=True).diagnosis
    assert len(advice_table(diagnosis)) == 5
    assert {len(row) for row in outcomes_table(diagnosis)} == {2}  # of urgent images alone
    assert names_table(diagnosis, None) == []
    assert thresholds_table(diagnosis) == classes_table(diagnosis, figures(0.5)) == []
    bare = diagnosis.model_copy(update={"advice_errors": None, "promise": None})
    assert advice_table(bare) == outcomes_table(bare) == []


def test_the_table_of_conditions_says_which_one_decides() -> None:
    diagnosis = answered().diagnosis
    first, second, third, *_ = diagnosis.candidates
    step = diagnosis.next_step.model_copy(update={"urgency": "urgent", "decided_by": third.key})
    held = (
        first.model_copy(update={"in_set": True}),
        second.model_copy(update={"in_set": False, "probability": 0.05}),
        third.model_copy(update={"in_set": False, "probability": 0.04}),
        third.model_copy(update={"in_set": False, "probability": 0.01, "key": "other"}),
    )
    said = diagnosis.model_copy(update={"candidates": held, "next_step": step})

    def named(diagnosis: Diagnosis) -> list[str]:
        rows, _ = conditions_table(diagnosis, held, says_named=True)
        return [row[-1] for row in rows[1:]]

    assert named(said) == ["yes", "no, but 5 % or more", "no, but decides the urgency", "no"]
    inside = step.model_copy(update={"decided_by": first.key})
    assert named(said.model_copy(update={"next_step": inside}))[0] == "yes, decides the urgency"
    by_answers = step.model_copy(update={"raised_from": "soon"})  # an answer decides, none of them
    assert named(said.model_copy(update={"next_step": by_answers}))[2] == "no"
    rows, _ = conditions_table(said, held, says_named=False)
    assert {len(row) for row in rows} == {4}


def test_conditions_have_their_share_and_nothing_where_none_was_measured() -> None:
    metrics = figures(0.5)
    coverage = {"value": 0.8, "low": 0.6, "high": 0.9}
    metrics["sets"] = {"by_class": [{"name": "A", "n": 20, "coverage": coverage}]}
    (row,) = classes_table(measured().diagnosis, metrics)[1:]
    assert row[:3] == ("A", "20", "80.0 % (60.0 % to 90.0 %)")
    assert classes_table(measured().diagnosis, figures(0.5))[1][2] == "–"
    assert classes_table(measured().diagnosis, None) == []


def test_what_stands_in_a_table_stands_in_no_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = measured().diagnosis
    every = decision_texts.decided(diagnosis)
    rest = rest_of(diagnosis, every)
    assert any("was not urgent for" in one for one in every)
    assert not any(word in " ".join(rest) for word in ("was not urgent", "called urgent in"))
    assert any(one.startswith("Where 1 % of lesions") for one in rest)
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    words = words_of(report_pdf(measured(), None, WHEN)).replace("\xa0", " ")
    assert words.count("10.0 %") == 1
    assert words.count("The thresholds missed ") == 1  # page 1 of an answer that is soon


def test_a_condition_is_possible_at_both_places_or_at_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = answered()
    first, second, *others = answer.diagnosis.candidates
    apart = (first, second.model_copy(update={"in_set": False}), *others)
    said = replace(answer, diagnosis=answer.diagnosis.model_copy(update={"candidates": apart}))
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    words = words_of(report_pdf(said, None, WHEN))
    page, _, technical = words.partition("Technical basis")
    shown = [one.name for one in said.diagnosis.outside]
    assert second.name in shown
    for words in (page, technical):
        unnamed = words.count(text("record_also")) + words.count(text("record_also_decides"))
        assert unnamed == len(shown)
    assert "A condition that the model does not name is still possible." in page


@pytest.mark.parametrize(("urgency", "stands"), [("soon", True), ("urgent", False)])
def test_an_unknown_cancer_stands_on_page_1_unless_it_is_urgent(
    urgency: str, stands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = answered()
    advice = advice_for("urgent" if urgency == "urgent" else "soon_without_time")
    step = answer.diagnosis.next_step.model_copy(update={"urgency": urgency, "advice": advice})
    unknown = ("invasive squamous cell carcinoma",)
    update = {"next_step": step, "unknown_urgent": unknown}
    said = replace(answer, diagnosis=answer.diagnosis.model_copy(update=update))
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    page, *_ = words_of(report_pdf(said, None, WHEN)).partition("For the patient")
    assert (text("no_wait_unknown", names=unknown) in page) == stands
