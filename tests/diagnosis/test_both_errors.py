"""Beside "urgent" stand both errors, and a set promises what the evaluation measured."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from painted_answers import jpeg, rich
from pdf_words import words_of
from test_conclusion import RISK, RULE, concluded, of

from skindx.diagnosis import pdf_sheet
from skindx.diagnosis.answer_report import report_pdf
from skindx.diagnosis.case import Case
from skindx.diagnosis.guarantees import (
    guarantee,
    risk_errors,
    risk_guarantee,
    shared,
    shown_share,
    theory,
    with_measured_risk,
    with_measured_sets,
)
from skindx.diagnosis.record import CaseAnswer, Promise, UrgentRisk
from skindx.models.conformal import Conformal, Share, fit_conformal
from skindx.ui.page.answer_html import result_html

SENT_ON = Share(value=1, low=0.74, high=1, pictures=12)
RECORD = UrgentRisk(
    risk=0.3, threshold=0.08, miss_rate=0.05, confidence=0.8, bound=0.08, lesions=57,
    sent_on=Share(value=1, low=0.735, high=1, pictures=12),
)  # fmt: skip
PROMISE = Promise(
    level=0.9, pictures=232, urgent_raised=Share(value=0.5, low=0.2, high=0.8, pictures=12)
)


def rate(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


def evaluation() -> dict[str, Any]:
    """Return an evaluation by which sets for 90 % hold the true class for 80.6 %."""

    def row(name: str, value: float, n: int) -> dict[str, Any]:
        return {
            "name": name,
            "n": n,
            "coverage": rate(value, max(0, value - 0.2), min(1, value + 0.2)),
        }

    return {
        "pictures": 93,
        "origin": {"split": "test"},
        "ensemble": {},
        "sets": {
            "level": 0.9,
            "coverage": rate(0.806, 0.71, 0.88),
            "size": rate(2, 1, 3),
            "by_group": [row("urgent classes", 0.6, 10), row("other classes", 0.83, 83)],
            "by_class": [
                row("Nevus", 0.9, 50), row("Melanoma", 0.5, 6), row("Not there", float("nan"), 0),
            ],
            "urgent_missed": {"n": 10, "missed": 3, "rate": rate(0.3, 0.07, 0.65)},
            "false_alarms": {"n": 83, "raised": 40, "rate": rate(0.482, 0.37, 0.59)},
        },
        "urgent_risk": {
            "levels": [
                {
                    "miss_rate": 0.05,
                    "misses": {"n": 10, "missed": 0, "rate": rate(0, 0, 0.31)},
                    "false_alarms": {"n": 83, "raised": 83, "rate": rate(1, 1, 1)},
                }
            ]
        },
    }  # fmt: skip


def answered(**changes: Any) -> CaseAnswer:
    answer = rich(Case((jpeg(80, 60),)))
    return replace(answer, diagnosis=answer.diagnosis.model_copy(update=changes))


def test_a_bundles_rule_brings_both_errors_into_the_record() -> None:
    level = RISK.levels[1].model_copy(update={"sent_on": SENT_ON})
    rule = RISK.model_copy(update={"levels": (RISK.levels[0], level)})
    said = concluded(of(0.6, 0.01, 0.35), urgent_risk=rule)
    assert said.urgent_risk is not None
    assert said.urgent_risk.sent_on == Share(**SENT_ON.model_dump())
    of_type = concluded(of(0.6, 0.01, 0.35), urgent_risk=rule, skin_type=5)
    assert of_type.urgent_risk is not None
    assert of_type.urgent_risk.sent_on is None
    text = risk_guarantee(answered(urgent_risk=of_type.urgent_risk).diagnosis)
    assert "was not measured for skin type 5 alone" in text


def test_page_and_paper_say_how_many_others_are_called_urgent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    answer = answered(urgent_risk=RECORD)
    words = (
        "it calls 100.0 % (95 % interval 73.5 to 100.0 %, 12 images) of calibration images of "
        "other conditions urgent. On photos by another camera both errors can be much larger."
    )
    paper = words_of(report_pdf(answer, None, datetime(2026, 1, 1, tzinfo=UTC)))
    page = result_html(answer, None)
    for text in (page, paper.replace("\\(", "(").replace("\\)", ")")):
        assert words in text.replace("\xa0", " ")


def test_an_abstention_that_is_urgent_names_both_errors_too() -> None:
    step = rich(Case((jpeg(80, 60),)), "urgent").diagnosis.next_step
    unsure = {"abstained": "It cannot tell.", "next_step": step}
    by_risk = risk_guarantee(answered(urgent_risk=RECORD, **unsure).diagnosis)
    assert "miss at most 5 % of urgent lesions" in by_risk
    assert "100.0 % (95 % interval 73.5 to 100.0 %, 12 images) are called urgent" in by_risk
    short = risk_errors(answered(urgent_risk=RECORD, **unsure).diagnosis)
    assert short.startswith(
        "The threshold is set to miss at most 5 % of urgent conditions; it calls"
    )
    assert short.endswith("as this one may be, both errors can be much larger.")
    (fitted,) = theory(answered(urgent_risk=RECORD, **unsure).diagnosis)
    assert "miss at most 5 % of urgent lesions like the calibration lesions" in fitted
    by_set = risk_guarantee(answered(promise=PROMISE, **unsure).diagnosis)
    assert "Of those of other conditions, 50.0 %" in by_set
    assert risk_guarantee(answered(urgent_risk=RECORD, abstained="It cannot tell.").diagnosis) == ""


def test_without_a_threshold_the_sets_have_both_errors() -> None:
    text = guarantee(answered(promise=PROMISE).diagnosis)
    assert "Of those of other conditions, 50.0 % (95 % interval 20.0 to 80.0 %, 12 images)" in text
    random = np.random.default_rng(0)
    truth_N = random.integers(0, 4, 80)
    fitted = fit_conformal(
        random.dirichlet(np.ones(4), 80), truth_N, urgent_C=np.array([True, False, False, False])
    )
    assert fitted.urgent_raised is not None
    assert fitted.urgent_raised.pictures == (truth_N != 0).sum()
    assert fitted.urgent_raised.low < fitted.urgent_raised.value < fitted.urgent_raised.high
    harmless = fit_conformal(random.dirichlet(np.ones(4), 80), truth_N, urgent_C=np.zeros(4, bool))
    assert harmless.urgent_raised is None


def test_an_older_rule_is_written_as_before() -> None:
    assert "urgent_raised" not in json.loads(RULE.model_dump_json())
    assert Conformal.model_validate_json(RULE.model_dump_json()) == RULE


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_no_interval_is_without_width(value: float) -> None:
    old = shared(Share(value=value, low=value, high=value, pictures=20))
    assert old is not None
    assert old.high - old.low > 0.1
    assert old.low <= value <= old.high


def test_the_digits_show_the_width() -> None:
    many = shared(Share(value=0, low=0, high=0, pictures=90_000))
    assert many is not None
    assert shown_share(many) == "0.000 % (95 % interval 0.000 to 0.004 %, 90,000 images)"


def test_an_evaluated_bundle_promises_what_was_measured() -> None:
    found = with_measured_sets(PROMISE, evaluation())
    assert found is not None
    text = guarantee(answered(promise=found).diagnosis)
    assert "80.6 % (95 % interval 71.0 to 88.0 %, 93 images)" in text
    assert "Melanoma: 50.0 %" in text
    assert "of urgent conditions 60.0 %" in text
    assert "90" not in text.replace("of 90", "")
    assert "with an urgent condition, 30.0 %" in text
    assert "with another condition, 48.2 %" in text
    assert "80.6 %" in result_html(answered(promise=found), evaluation()).replace("\xa0", " ")


def test_an_evaluation_measures_both_errors_of_the_threshold() -> None:
    risk = with_measured_risk(RECORD, evaluation())
    text = risk_guarantee(answered(urgent_risk=risk).diagnosis)
    assert "it misses 0.0 % (95 % interval 0.0 to 31.0 %, 10 images) of urgent conditions" in text
    assert "100.0 % (95 % interval 95.7 to 100.0 %, 83 images) of other conditions urgent" in text
    assert with_measured_risk(None, evaluation()) is None


@pytest.mark.parametrize("metrics", [
    None, {}, {"sets": 3}, {"sets": {"coverage": {"value": "x"}}, "pictures": 3},
    {"sets": {"coverage": rate(7, 0, 1)}, "pictures": 3}, {"urgent_risk": {"levels": [3]}},
])  # fmt: skip
def test_an_evaluation_without_these_figures_changes_nothing(metrics: Any) -> None:
    assert with_measured_sets(PROMISE, metrics) == PROMISE
    assert with_measured_risk(RECORD, metrics) == RECORD
    assert "about 90" in guarantee(answered(promise=PROMISE).diagnosis)


def test_a_whole_answer_takes_them_from_its_bundle(tmp_path: Path) -> None:
    from skin_photo import skin_photo
    from tiny_bundle import measured, pack_tiny

    from skindx.diagnosis.diagnose import answer
    from skindx.diagnosis.predictor import Predictor
    from skindx.models.bundle.bundle_changes import add_metrics

    path = pack_tiny(tmp_path / "b", conformal=Conformal(pictures=9, thresholds={"all": 0.1})).path
    figures = evaluation() | {"ensemble": measured(0.5)["ensemble"]}
    add_metrics(path, measured(0.5) | figures)
    diagnosis = answer(Predictor.load(path), Case((skin_photo(),))).diagnosis
    assert diagnosis.promise is not None
    assert diagnosis.promise.measured is not None
    assert diagnosis.promise.measured.coverage.value == 0.806
