"""Beside the advice stand both of its errors as it was given, and a set says what was measured."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from painted_answers import jpeg, rich
from pdf_words import words_of
from rich.console import Console
from test_conclusion import RISK, RULE, concluded, of

from skindx.diagnosis import answer_texts, decision_texts
from skindx.diagnosis.advice_figures import (
    STATED_PREVALENCE,
    advice_errors,
    confused_with,
    measured_sets,
)
from skindx.diagnosis.case import Case
from skindx.diagnosis.record import CaseAnswer
from skindx.diagnosis.record_assembly import measured_risk
from skindx.diagnosis.record_figures import AdviceErrors, Promise, UrgentRisk
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import print_diagnosis, report_pdf
from skindx.models.conformal import Conformal, Share, fit_conformal
from skindx.texts import catalogue
from skindx.texts.catalogue import share_text, text
from skindx.ui.page.answer_html import result_html

SENT_ON = Share(value=1, low=0.74, high=1, pictures=12)
RECORD = UrgentRisk(
    risk=0.03, threshold=0.08, miss_rate=0.05, confidence=0.787, bound=0.0805, lesions=57,
    sent_on=Share(value=1, low=0.735, high=1, pictures=12),
)  # fmt: skip
PROMISE = Promise(
    level=0.9, pictures=232, urgent_raised=Share(value=0.5, low=0.2, high=0.8, pictures=12)
)


def rate(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


def served(name: str, n: int, urgent: int, refused: int) -> dict[str, Any]:
    steps = {"urgent": urgent, "soon": n - urgent - refused, "none": refused}
    share = urgent / n
    rates = dict.fromkeys(("soon", "unknown", "routine", "none"), rate(0, 0, 0.1))
    rates["urgent"] = rate(share, max(0, share - 0.1), min(1, share + 0.1))
    whole = {"name": name, "n": n, "groups": n, "steps": steps, "rates": rates}
    return whole | {"abstained": 2, "abstained_rate": rate(0, 0, 0.1)}


def evaluation() -> dict[str, Any]:
    """Return an evaluation whose threshold misses none, and whose advice misses 4 of 20.

    Two urgent images were refused, and two got another advice: the threshold saw neither.
    """

    def row(name: str, value: float, n: int) -> dict[str, Any]:
        return {
            "name": name,
            "n": n,
            "coverage": rate(value, max(0, value - 0.2), min(1, value + 0.2)),
        }

    return {
        "pictures": 100,
        "origin": {"split": "test"},
        "ensemble": {},
        "served": [served("urgent classes", 20, 16, 2), served("other classes", 80, 40, 8)],
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
            "chosen": 0.05,
            "levels": [
                {
                    "miss_rate": 0.05,
                    "misses": {"n": 20, "missed": 0, "rate": rate(0, 0, 0.31)},
                    "false_alarms": {"n": 80, "raised": 80, "rate": rate(1, 1, 1)},
                }
            ],
        },
    }  # fmt: skip


def answered(**changes: Any) -> CaseAnswer:
    answer = rich(Case((jpeg(80, 60),)))
    return replace(answer, diagnosis=answer.diagnosis.model_copy(update=changes))


def test_both_errors_are_of_the_advice_and_not_of_the_threshold() -> None:
    """Refused images and abstentions count: 16 of 20 were called urgent, and 40 of 80."""
    found = advice_errors(evaluation(), 0.05)
    assert found is not None
    assert found.missed.value == pytest.approx(4 / 20)
    assert (found.missed.low, found.missed.high) == pytest.approx((0.1, 0.3))
    assert (found.raised.value, found.refused, found.abstained) == (0.5, 2, 2)
    stated, own = found.values
    assert (stated.prevalence, own.prevalence) == (STATED_PREVALENCE, 0.2)
    assert own.ppv == pytest.approx(16 / 56)  # counted among the images
    assert own.npv == pytest.approx(40 / 44)
    assert stated.ppv == pytest.approx(0.01 * 0.8 / (0.01 * 0.8 + 0.99 * 0.5))
    given = advice_errors(evaluation(), 0.05, 0.5)
    assert given is not None
    assert given.values[0].ppv == pytest.approx(0.8 / 1.3)
    said = decision_texts.errors_of(found)
    assert said[0] == "The model missed 4 of 20 urgent test images, so it may miss up to 30 of 100."
    assert said[1] == "It called 50 of 100 other images urgent."


def test_an_answer_that_is_soon_has_the_errors_of_soon() -> None:
    def row(name: str, **steps: float) -> dict[str, Any]:
        rates = {step: rate(share, share / 2, min(1, share * 2)) for step, share in steps.items()}
        return {"name": name, "n": 40, "rates": rates}

    due = row("urgent and soon classes", urgent=0.6, soon=0.3, unknown=0.075, routine=0.025)
    other = row("other classes", urgent=0.2, soon=0.1, unknown=0.7, routine=0.0)
    soon = {"chosen": 0.05, "steps": [due, other]}
    found = advice_errors(evaluation() | {"soon_risk": soon}, 0.05, soon_miss_rate=0.05)
    assert found is not None
    assert found.soon_missed is not None
    assert found.soon_raised is not None
    assert found.soon_missed.value == pytest.approx(0.1)
    assert (found.soon_missed.low, found.soon_missed.high) == pytest.approx((0.05, 0.2))
    assert found.soon_raised.value == pytest.approx(0.3)
    step = rich(Case((jpeg(80, 60),))).diagnosis.next_step
    said = {
        urgency: decision_texts.errors(
            answered(
                advice_errors=found, next_step=step.model_copy(update={"urgency": urgency})
            ).diagnosis
        )
        for urgency in ("urgent", "soon")
    }
    both = {text("errors_soon", missed=0.1), text("errors_soon_raised", raised=0.3)}
    assert both < {*said["soon"]}
    assert not both & {*said["urgent"]}
    # Of a threshold that is not the one in use it says nothing.
    for rate_used in (None, 0.1):
        other_threshold = advice_errors(
            evaluation() | {"soon_risk": soon}, 0.05, soon_miss_rate=rate_used
        )
        assert other_threshold is not None
        assert other_threshold.soon_missed is None


def test_few_errors_are_a_count_with_its_bound_and_many_a_share() -> None:
    found = advice_errors(evaluation(), 0.05)
    assert found is not None
    none = Share(value=0, low=0, high=0.1058, pictures=33)
    (missed, *_) = decision_texts.errors_of(found.model_copy(update={"missed": none}))
    assert missed == "The model missed 0 of 33 urgent test images, so it may miss up to 11 of 100."
    many = Share(value=0.103, low=0.06, high=0.16, pictures=243)
    worse = found.model_copy(update={"missed": many, "raised": none})
    (missed, *_) = decision_texts.errors_of(worse)
    assert missed == "The model missed 10 of 100 urgent test images."


@pytest.mark.parametrize("miss_rate", [0.02, None])
def test_an_evaluation_with_another_threshold_says_nothing_of_this_one(
    miss_rate: float | None,
) -> None:
    assert advice_errors(evaluation(), miss_rate) is None
    assert decision_texts.errors_of(None) == ["How often this advice is wrong was not measured."]


def test_every_output_says_them_and_none_says_the_thresholds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    advice = advice_errors(evaluation(), 0.05)
    risk = measured_risk(RECORD, advice)
    assert risk is not None
    assert risk.measured_missed is not None
    assert risk.measured_missed.value == pytest.approx(0.2)
    assert risk.prevalence == STATED_PREVALENCE
    answer = answered(urgent_risk=risk, advice_errors=advice)
    console = Console(file=io.StringIO(), width=2000)
    print_diagnosis(answer.diagnosis, console)
    paper = words_of(report_pdf(answer, None, datetime(2026, 1, 1, tzinfo=UTC)))
    outputs = {
        "page": result_html(answer, None),
        "paper": paper.replace("\\(", "(").replace("\\)", ")"),
        "terminal": console.file.getvalue(),  # type: ignore[attr-defined]
    }
    for name, shown in outputs.items():
        text = " ".join(shown.replace("\xa0", " ").split())
        assert all(sentence in text for sentence in decision_texts.errors_of(advice)), name
        missed = "20.0 % (95 % interval 10.0 to 30.0 %, 20 images) of urgent test images"
        table = "or were refused 4 of 20 20.0 % (10.0 % to 30.0 %)"
        assert (table if name == "paper" else missed) in text, name
        assert "73.5" not in text, name  # what the threshold does with calibration images
        assert "31.0" not in text, name


def test_what_was_not_evaluated_says_how_the_threshold_was_fitted() -> None:
    level = RISK.levels[1].model_copy(update={"sent_on": SENT_ON})
    rule = RISK.model_copy(update={"levels": (RISK.levels[0], level)})
    said = concluded(of(0.6, 0.01, 0.35), urgent_risk=rule)
    assert said.urgent_risk is not None
    assert said.urgent_risk.sent_on == Share(**SENT_ON.model_dump())
    of_type = concluded(of(0.6, 0.01, 0.35), urgent_risk=rule, skin_type=5)
    assert of_type.urgent_risk is not None
    assert of_type.urgent_risk.sent_on is None
    text = " ".join(decision_texts.decided(answered(urgent_risk=RECORD).diagnosis))
    assert "chosen on 57 calibration lesions to miss at most 5 of 100." in text
    assert "the threshold may miss up to 8.1 % (95 % confidence)." in text
    assert "It calls 100.0 % (95 % interval 73.5 to 100.0 %, 12 images) of the other" in text
    own = RECORD.model_copy(update={"group": "skin type 5", "lesions": 20, "miss_rate": 0.1})
    text = " ".join(decision_texts.decided(answered(urgent_risk=own, soon_risk=RECORD).diagnosis))
    assert "20 calibration lesions of skin type 5 to miss at most 10 of 100" in text
    assert (
        "The threshold of soon, 8 % for urgent and soon conditions together, was chosen on 57"
        in text
    )


def test_an_abstention_promises_nothing_and_names_both_errors() -> None:
    advice = advice_errors(evaluation(), 0.05)
    unsure = answered(abstained="It cannot tell.", urgent_risk=RECORD, advice_errors=advice)
    text = " ".join(decision_texts.decided(unsure.diagnosis))
    assert "may differ from those by which" in text
    assert "chosen on" not in text
    assert answer_texts.set_sentence(unsure.diagnosis) == ""
    assert decision_texts.errors(unsure.diagnosis)[2] == catalogue.text("errors_unlike")


def test_without_a_threshold_the_sets_have_both_errors() -> None:
    text = " ".join(decision_texts.decided(answered(promise=PROMISE).diagnosis))
    assert "an urgent one in 50.0 % (95 % interval 20.0 to 80.0 %, 12 images)" in text
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
    none = answered(urgent_risk=None, no_urgent_risk="It is old.", promise=None).diagnosis
    assert "It is old." in decision_texts.decided(none)


def test_an_older_rule_is_written_as_before() -> None:
    assert "urgent_raised" not in json.loads(RULE.model_dump_json())
    assert Conformal.model_validate_json(RULE.model_dump_json()) == RULE


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_no_interval_is_without_width(value: float) -> None:
    old = Share(value=value, low=value, high=value, pictures=20).with_width()
    assert old.high - old.low > 0.1
    assert old.low <= value <= old.high


def test_the_digits_show_the_width() -> None:
    many = Share(value=0, low=0, high=0, pictures=90_000).with_width()
    assert share_text(many) == "0.000 % (95 % interval 0.000 to 0.004 %, 90,000 images)"


def test_an_evaluated_bundle_says_what_was_measured_of_its_sets() -> None:
    found = PROMISE.model_copy(update={"measured": measured_sets(evaluation())})
    assert found.measured is not None
    diagnosis = answered(promise=found).diagnosis
    held = catalogue.text("set_held", covered=0.806, split="test")
    assert answer_texts.set_sentence(diagnosis) == held
    text = " ".join(decision_texts.decided(diagnosis))
    assert "80.6 % (95 % interval 71.0 to 88.0 %, 100 images)" in text
    assert "Melanoma least often, in 50.0 %" in text
    assert "the true urgent condition in 60.0 %" in text
    assert "48.2" not in text  # the sets' errors are not those of the advice
    assert held in result_html(answered(promise=found), evaluation())


@pytest.mark.parametrize("metrics", [
    None, {}, {"sets": 3}, {"sets": {"coverage": {"value": "x"}}, "pictures": 3},
    {"sets": {"coverage": rate(7, 0, 1)}, "pictures": 3}, {"urgent_risk": {"levels": [3]}},
    {"urgent_risk": {"chosen": 0.05}, "served": [3, {"name": "urgent classes", "rates": 4}]},
])  # fmt: skip
def test_an_evaluation_without_these_figures_changes_nothing(metrics: Any) -> None:
    assert measured_sets(metrics) is None
    assert advice_errors(metrics, 0.05) is None
    assert measured_risk(RECORD, None) == RECORD
    fitted = "The named conditions are chosen to include the true one in about 90 of 100 photos."
    assert answer_texts.set_sentence(answered(promise=PROMISE).diagnosis) == fitted


def test_a_whole_answer_takes_them_from_its_bundle(tmp_path: Path) -> None:
    from skin_photo import skin_photo
    from tiny_bundle import measured, pack_tiny

    from skindx.diagnosis.diagnose import answer
    from skindx.diagnosis.predictor import Predictor
    from skindx.models.bundle.bundle_changes import add_metrics

    path = pack_tiny(tmp_path / "b", conformal=Conformal(pictures=9, thresholds={"all": 0.1})).path
    figures = evaluation() | {"ensemble": measured(0.5)["ensemble"], "not_useful": ["It is bad."]}
    del figures["urgent_risk"]  # the bundle has no threshold: its sets decide
    add_metrics(path, measured(0.5) | figures)
    answered = answer(Predictor.load(path), Case((skin_photo(),)))
    diagnosis = answered.diagnosis
    assert diagnosis.promise is not None
    assert diagnosis.promise.measured is not None
    assert diagnosis.promise.measured.coverage.value == 0.806
    assert diagnosis.advice_errors is not None
    assert diagnosis.advice_errors.raised.value == 0.5
    first = answer_texts.warnings(diagnosis)[:2]
    assert first == ["This model is not useful yet.", "It is bad."]
    html = result_html(answered, None)
    assert html.index("not useful yet") < html.index("sx-advice")


def test_a_harmless_name_leaves_no_urgent_condition_unsaid() -> None:
    diagnosis = answered().diagnosis
    first, second, *others = diagnosis.candidates
    rest = [one.model_copy(update={"urgency": "routine", "in_set": False}) for one in others]
    harmless = first.model_copy(update={"urgency": "routine", "in_set": True})
    melanoma = second.model_copy(
        update={"name": "Melanoma", "urgency": "urgent", "in_set": False, "probability": 0.02}
    )

    def said(**changes: Any) -> list[str]:
        shown = {"candidates": (harmless, melanoma, *rest), **changes}
        return answer_texts.weak_spots(diagnosis.model_copy(update=shown))

    left = "Melanoma has 2 % and is not excluded."
    assert said() == [left]
    assert said(abstained="It cannot tell.") == []
    seen = melanoma.model_copy(update={"in_set": True})
    assert said(candidates=(harmless, seen)) == []
    assert said(candidates=(harmless.model_copy(update={"in_set": False}), melanoma)) == []
    assert said(candidates=(harmless.model_copy(update={"urgency": "soon"}), melanoma)) == []


def test_an_answer_says_how_often_an_urgent_condition_was_called_by_its_name() -> None:
    rows = [
        {"key": "Melanoma", "name": "Melanoma", "urgency": "urgent", "n": 40},
        {"key": "Nevus", "name": "Nevus (mole)", "urgency": "routine", "n": 60},
        {"key": "Wart", "name": "Wart", "urgency": "routine", "n": 9},
    ]
    metrics = {"classes": rows, "confusion": [[31, 8, 1], [4, 56, 0], [0, 0, 9]]}
    found = confused_with(metrics, "Nevus")
    assert found is not None
    assert (found.called, found.images, found.names) == (8, 40, ("Melanoma",))
    rare = confused_with(metrics, "Wart")  # fewer than 5 % of the images
    assert rare is not None
    assert (rare.called, rare.images, rare.names) == (1, 40, ("Melanoma",))
    assert rare.most == pytest.approx(0.132, abs=1e-3)  # exact interval of 1 of 40
    none = confused_with({"classes": rows, "confusion": [[32, 8, 0], [4, 56, 0], [0] * 3]}, "Wart")
    assert none is not None
    few = answered().diagnosis.model_copy(update={"confused": none})
    rarely = "was likeliest in 0 of 40 test images of Melanoma, but it may be in up to "
    assert answer_texts.weak_spots(few)[-1].endswith(f"{rarely}9 of 100.")
    soon = [rows[0], rows[1], rows[2] | {"urgency": "soon"}]
    assert confused_with(metrics | {"classes": soon}, "Wart") is None
    assert confused_with(metrics, "Melanoma") is None
    assert confused_with(metrics, "Eczema") is None
    assert confused_with({"classes": rows, "confusion": [[1]]}, "Nevus") is None
    assert confused_with(None, "Nevus") is None
    diagnosis = answered().diagnosis.model_copy(update={"confused": found})
    said = answer_texts.weak_spots(diagnosis)[-1]
    assert said.endswith(" was likeliest in 20 of 100 test images of Melanoma.")
    assert said in result_html(replace(answered(), diagnosis=diagnosis), None)
    assert answer_texts.weak_spots(diagnosis.model_copy(update={"abstained": "No."})) == []
    for missed, ending in ((0.1, " of Melanoma, some with urgent advice."), (0.2, " of Melanoma.")):
        share = Share(value=missed, low=0, high=0.5, pictures=40)  # 4 and 8 of which 8 were nevi
        errors = AdviceErrors(
            split="test", only="Melanoma", missed=share, raised=share, refused=0, abstained=0
        )
        counted = diagnosis.model_copy(update={"advice_errors": errors})
        assert answer_texts.weak_spots(counted)[-1].endswith(ending)
