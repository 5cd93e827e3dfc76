"""Both questions of urgency in an evaluation: on disk, in the report, and against the steps."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from evaluation_fakes import (
    FakePredictor,
    decode,
    fake_class,
    prediction,
    records_of,
    write_dataset,
)
from rich.console import Console
from sklearn.metrics import roc_auc_score

from skindx.evaluation.answers import Answers, read_predictions
from skindx.evaluation.evaluate import evaluate_served
from skindx.evaluation.evaluation_report import print_table
from skindx.evaluation.figures import bounds, decimal
from skindx.evaluation.guarantee_scores import urgent_scores
from skindx.evaluation.questions import QuestionScore, question_scores, target_text, useful_range
from skindx.evaluation.report_plots import decision_plot, roc_plot
from skindx.evaluation.score import Evaluation
from skindx.metrics import share_interval
from skindx.models.conformal import Conformal
from skindx.models.urgent_risk import RiskLevel, UrgentRiskRule
from skindx.taxonomy import Taxonomy

CLASSES = (
    fake_class("nevus", "Nevus"),
    fake_class("melanoma", "Melanoma", "urgent"),
    fake_class("bcc", "Basal cell carcinoma", "soon"),
)


def rule(columns: tuple[int, ...], threshold: float) -> UrgentRiskRule:
    level = RiskLevel(miss_rate=0.05, thresholds={"all": threshold})
    return UrgentRiskRule(urgent_columns=columns, lesions={"all": 60}, levels=(level,))


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Evaluation]:
    random = np.random.default_rng(5)
    truth_N = np.arange(120) % 3
    shares_NC = random.dirichlet(np.ones(3), 120) + 0.8 * np.eye(3)[truth_N]
    shares_NC /= shares_NC.sum(axis=1, keepdims=True)
    table = [prediction(tuple(shares_C), tuple(shares_C)) for shares_C in shares_NC]
    records = records_of([CLASSES[n].key for n in truth_N], [f"g {n // 2}" for n in range(120)])
    records = [replace(one, confirmed_by=("histology", "")[n % 2]) for n, one in enumerate(records)]
    folder = tmp_path_factory.mktemp("questions")
    predictor = FakePredictor(
        table,
        taxonomy=Taxonomy(name="three", title="Three", classes=CLASSES),
        conformal=Conformal(pictures=99, thresholds={"all": 0.4}, urgent_columns=(1,)),
        urgent_risk=rule((1,), 0.3),
        soon_risk=rule((1, 2), 0.2),
    )
    dataset = write_dataset(folder / "dataset", records)
    out = folder / "evaluation"
    return out, evaluate_served(
        predictor, records, decode, out, bundle="b", dataset=dataset, draws=60
    )


def test_each_question_has_its_thresholds_and_its_misses(
    evaluated: tuple[Path, Evaluation],
) -> None:
    out, evaluation = evaluated
    answers = read_predictions(out)
    soon = urgent_scores(answers, "soon_risk")
    assert soon == evaluation.soon_risk
    assert soon is not None
    risk_N, of_N = answers.ensemble_NC[:, 1:].sum(axis=1), answers.truth_N > 0
    (level,) = soon.levels
    assert level.misses is not None
    assert level.false_alarms is not None
    assert (level.misses.n, level.false_alarms.n) == (80, 40)
    assert level.misses.missed == int((risk_N[of_N] < 0.2).sum())
    assert level.false_alarms.raised == int((risk_N[~of_N] >= 0.2).sum())
    # Whatever the second question reaches is served as soon at least.
    assert answers.steps is not None
    steps_N = np.array(answers.steps)
    assert np.isin(steps_N[risk_N >= 0.2], ("urgent", "soon")).all()
    missed, others = soon.steps
    assert (missed.name, missed.n) == ("urgent and soon classes", 80)
    assert missed.unknown + missed.routine <= level.misses.missed
    assert others.urgent + others.soon >= level.false_alarms.raised


def test_the_report_has_both_questions(evaluated: tuple[Path, Evaluation]) -> None:
    out, evaluation = evaluated
    report = (out / "report.html").read_text()
    ET.fromstring(report.replace("<!DOCTYPE html>", ""))
    assert "<h2>Urgent risk: missed images against false alarms</h2>" in report
    assert "<h2>Urgent or soon risk: missed images against false alarms</h2>" in report
    console = Console(file=io.StringIO(), width=200)
    print_table(evaluation, console)
    assert "Urgent or soon risk, level 5.0 %" in console.file.getvalue()  # type: ignore[attr-defined]


def test_every_question_is_measured_without_thresholds_too(
    evaluated: tuple[Path, Evaluation],
) -> None:
    out, evaluation = evaluated
    answers = read_predictions(out)
    urgent, soon = question_scores(replace(answers, urgent_risk=None, soon_risk=None), draws=60)
    for question, served in zip((urgent, soon), evaluation.questions, strict=True):
        # Only where photos are called positive differs: by the likeliest class.
        assert question.operating.threshold is None
        assert served.operating.threshold in (0.3, 0.2)
        assert replace(question, operating=served.operating) == served
    # The only urgent class is melanoma, so that has no question of its own.
    assert [(one.name, one.classes, one.n, one.others) for one in (urgent, soon)] == [
        ("urgent", ("melanoma",), 40, 80),
        ("urgent or soon", ("melanoma", "bcc"), 80, 40),
    ]
    of_N, risk_N = answers.truth_N > 0, answers.ensemble_NC[:, 1:].sum(axis=1)
    assert soon.auroc.value == pytest.approx(roc_auc_score(of_N, risk_N))
    row = next(row for row in soon.at_threshold if row.threshold == 0.2)
    assert row.missed == evaluation.soon_risk.levels[0].misses.rate  # type: ignore[union-attr]
    at_60 = soon.sensitivity_at_specificity[0].figure
    assert at_60 == next(point.figure for point in soon.roc if point.at == 0.4)
    assert [point.threshold for point in soon.decision][:2] == [0.01, 0.02]
    metrics = json.loads((out / "metrics.json").read_text())
    assert [row["key"] for row in metrics["questions"]] == ["urgent_risk", "soon_risk"]
    assert metrics["questions"][1]["auroc"]["value"] == soon.auroc.value
    others = answers.some(answers.truth_N != 1)  # no melanoma: one question is left
    assert [one.key for one in question_scores(others, draws=5)] == ["soon_risk"]


def test_predictive_values_follow_from_both_errors(evaluated: tuple[Path, Evaluation]) -> None:
    _, evaluation = evaluated
    assert evaluation.urgent_risk is not None
    (level,) = evaluation.urgent_risk.levels
    assert level.misses is not None
    assert level.false_alarms is not None
    found, alarms = 1 - level.misses.rate.value, level.false_alarms.rate.value
    assert [row.prevalence for row in level.predictive] == [0.01, 0.05, 0.2]
    for row in level.predictive:
        true, false = row.prevalence * found, (1 - row.prevalence) * alarms
        assert row.ppv.value == pytest.approx(true / (true + false))
        assert row.ppv.low < row.ppv.value < row.ppv.high


def test_the_report_holds_the_risk_against_the_target(evaluated: tuple[Path, Evaluation]) -> None:
    out, evaluation = evaluated
    report = (out / "report.html").read_text().replace("\u00a0", " ")
    for question in evaluation.questions:
        text = target_text(question, evaluation.risk(question.key))  # type: ignore[arg-type]
        assert text in report
        assert text.startswith(f"Target: at most 5.0 % of {question.name} images missed with at ")
        assert useful_range(question) in report
        assert f"What the {question.name} risk is worth" in report
    question, risk = evaluation.questions[0], evaluation.urgent_risk
    assert "At the level 5.0 % it is" in target_text(question, risk)
    assert "At the level" not in target_text(question, None)
    for plot in (roc_plot(question), decision_plot(question)):
        ET.fromstring(str(plot.svg()))
    assert roc_plot(question).axes.get_xlim() == (0, 1)


def by_hand(called: str, positive: str, groups: str, **changes: object) -> QuestionScore:
    """Score images that are called nevus or melanoma (n, m), which they are or are not."""
    shares = {"m": (0.1, 0.8, 0.1), "n": (0.8, 0.1, 0.1)}
    records = records_of([CLASSES["nm".index(one)].key for one in positive], list(groups))
    table = [prediction(shares[one]) for one in called]
    answers = replace(Answers.join(records, table, CLASSES, ["only"]), **changes)
    return question_scores(answers, draws=20)[0]


def test_the_operating_point_is_counted_by_hand() -> None:
    # 3 of 4 melanomas and 4 of 6 nevi are called rightly; two melanomas are of one lesion.
    called, positive, groups = "mmmnmmnnnn", "mmmmnnnnnn", "aabcdefghi"
    at = by_hand(called, positive, groups).operating
    assert at.threshold is None  # no thresholds: the likeliest class decides
    assert at.sensitivity == share_interval([1, 1, 1, 0], list("aabc"))
    assert at.specificity == share_interval([0, 0, 1, 1, 1, 1], list("defghi"))
    # A threshold below all risks calls everybody; the intervals still have a width.
    one = by_hand(called, positive, groups, urgent_risk=rule((1,), 0.05))
    at = one.operating
    assert (at.threshold, at.sensitivity.value, at.specificity.value) == (0.05, 1, 0)
    assert at.sensitivity.low < 1
    assert at.specificity.high > 0
    plot = roc_plot(one)
    assert f"sensitivity is 100.0 % {bounds(at.sensitivity)}" in plot.label
    assert (dot := plot.axes.lines[-1]).get_xdata()[0] == dot.get_ydata()[0] == 1


def test_predictive_values_are_counted_by_hand() -> None:
    at = by_hand("mmmnmmnnnn", "mmmmnnnnnn", "aabcdefghi").operating
    assert at.here.prevalence == 0.4
    assert at.here.ppv == share_interval([1, 1, 1, 0, 0], list("aabde"))
    assert at.here.npv == share_interval([0, 1, 1, 1, 1], list("cfghi"))
    # Bayes: 0.05 * 0.75 / (0.05 * 0.75 + 0.95 * 1 / 3), and the same of those who are not called.
    low, middle, high = at.stated
    assert (low.prevalence, middle.prevalence, high.prevalence) == (0.01, 0.05, 0.2)
    assert middle.ppv.value == pytest.approx(0.0375 / (0.0375 + 0.95 / 3))
    assert middle.npv.value == pytest.approx(0.95 * 2 / 3 / (0.95 * 2 / 3 + 0.05 / 4))


@pytest.mark.parametrize(
    ("called", "undefined"),
    [("mmmmnnnnnn", ()), ("nnnnmmmmmm", ()), ("mmmmmmmmmm", ("npv",)), ("nnnnnnnnnn", ("ppv",))],
)
def test_no_predictive_value_is_certain(called: str, undefined: tuple[str, ...]) -> None:
    """All right, all wrong, everybody called, nobody called."""
    at = by_hand(called, "mmmmnnnnnn", "abcdefghij").operating
    for row in (at.here, *at.stated):
        for name in ("ppv", "npv"):
            figure = getattr(row, name)
            if name in undefined:
                assert math.isnan(figure.value)
                assert bounds(figure) == "[–]"
            else:
                assert 0 <= figure.low <= figure.value <= figure.high <= 1
                assert figure.high - figure.low > 1e-3


def test_net_benefit_is_counted_by_hand() -> None:
    """From 10 % on all ten are called at a risk of 10 % and of 80 %; from 20 % on three are."""
    one = by_hand("mmmnnnnnnn", "mmmmnnnnnn", "abcdefghij")
    at = {point.threshold: point for point in one.decision}
    assert at[0.1].net_benefit.value == pytest.approx(0.4 - 0.6 / 9)
    assert at[0.1].refer_all.value == pytest.approx(0.4 - 0.6 / 9)
    assert at[0.1].gain.value == pytest.approx(0)
    assert at[0.2].net_benefit.value == pytest.approx(0.3)  # nobody wrongly
    assert at[0.2].refer_all.value == pytest.approx(0.4 - 0.6 / 4)
    assert at[0.5].gain.value == pytest.approx(0.3)  # referring none is the better one there
    for point in one.decision:
        for figure in (point.net_benefit, point.refer_all, point.gain):
            assert figure.low < figure.value < figure.high
    plot = decision_plot(one)
    assert decimal(at[0.1].net_benefit) in plot.label
    least, _ = plot.axes.get_ylim()
    assert all(min(line.get_ydata()) >= least for line in plot.axes.lines)


def test_one_group_has_plots_without_a_band() -> None:
    one = by_hand("mmn", "mnn", "aaa")
    for plot in (roc_plot(one), decision_plot(one)):
        assert not plot.axes.patches
        ET.fromstring(str(plot.svg()))
