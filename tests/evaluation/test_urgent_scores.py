"""The urgent risk in an evaluation: counted by hand, in the report, on disk, and compared."""

import dataclasses
import io
import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from evaluation_fakes import (
    CLASSES,
    TAXONOMY,
    FakePredictor,
    decode,
    prediction,
    records_of,
    simulate,
    write_dataset,
)
from rich.console import Console

from skindx.data.manifest import Record
from skindx.evaluation.answers import Answers, read_predictions
from skindx.evaluation.evaluate import evaluate_served, served_conclusions
from skindx.evaluation.evaluation_report import print_table
from skindx.evaluation.guarantee_scores import UrgentRiskScores, urgent_scores
from skindx.evaluation.predictor_comparison import compare
from skindx.evaluation.report_plots import urgent_plot
from skindx.evaluation.score import Evaluation
from skindx.metrics import share_interval
from skindx.models.bundle.model_card import measured_risk_lines
from skindx.models.conformal import Conformal
from skindx.models.ensemble import Prediction
from skindx.models.urgent_risk import RiskLevel, UrgentRiskRule
from skindx.taxonomy import SkinClass

RISK = UrgentRiskRule(
    urgent_columns=(1, 2),
    lesions={"all": 57, "skin type 6": 20},
    levels=(
        RiskLevel(miss_rate=0.02, thresholds={"all": 0.1}),
        RiskLevel(miss_rate=0.05, thresholds={"all": 0.4, "skin type 6": 0.2}),
    ),
)


def said(*risks: float) -> list[Prediction]:
    """Return predictions whose risk, half of it melanoma, is given; the rest is nevus."""
    return [prediction((1 - risk, risk / 2, risk / 2, 0.0)) for risk in risks]


def hand_counted(**changes: object) -> Answers:
    labels = ["melanoma", "melanoma", "scc", "scc", "nevus", "wart", "nevus"]
    table = said(0.9, 0.3, 0.3, 0.05, 0.5, 0.3, 0.02)
    groups = ["a", "a", "b", "c", "d", "e", "f"]
    found = Answers.join(records_of(labels, groups), table, CLASSES, ["one"])
    facts = {"urgent_risk": RISK, "skin_types": (6, 1, 6, None, None, 6, None)} | changes
    return dataclasses.replace(found, **facts)


def test_misses_and_over_triage_are_counted_by_hand() -> None:
    assert urgent_scores(hand_counted(urgent_risk=None)) is None
    scores = urgent_scores(hand_counted(steps=("urgent", "soon", "urgent", *["routine"] * 4)))
    assert scores is not None
    assert (scores.default, scores.lesions) == (0.05, 57)
    strict, level = scores.levels
    assert (strict.misses.missed, strict.false_alarms.raised) == (1, 2)
    # From 0.4, of skin type VI from 0.2: of the second group one image is found, of the others
    # the risks 0.3 (type I) and 0.05 are missed; 0.5 and the wart of type VI are sent on.
    assert (level.misses.n, level.misses.missed, level.unwarned) == (4, 2, 2)
    assert (level.false_alarms.n, level.false_alarms.raised) == (3, 2)
    assert level.misses.rate == share_interval(np.array([0, 1, 0, 1]), ["a", "a", "b", "c"])
    types = {part.name: (part.misses, part.false_alarms) for part in level.by_skin_type}
    assert {name: misses.missed for name, (misses, _) in types.items()} == {"I": 1, "VI": 0}
    assert types["VI"][1].raised == 1
    assert types["I"][1] is None
    assert (level.confidence, level.bound) == pytest.approx((0.785, 0.081), abs=1e-3)
    counts = {step.name: dataclasses.astuple(step)[1:6] for step in scores.steps}
    assert counts == {"urgent classes": (4, 2, 1, 0, 1), "other classes": (3, 0, 0, 0, 3)}
    # One group is half "urgent", so its two images count for one; no share of all is certain.
    assert scores.steps[0].rates["urgent"] == share_interval(np.array([1, 0, 1, 0]), list("aabc"))
    assert scores.steps[1].rates["routine"].low < 0.5


@pytest.mark.parametrize(("classes", "step"), [(CLASSES, "routine"), (CLASSES[:2], "unknown")])
def test_the_next_steps_of_a_report_follow_the_rule_of_the_page(
    classes: tuple[SkinClass, ...], step: str
) -> None:
    """Without squamous cell carcinoma among the classes nothing may wait."""
    table = [prediction((0.97, *[0.01] * (len(classes) - 1)))]
    predictor = FakePredictor(table, taxonomy=TAXONOMY.model_copy(update={"classes": classes}))
    [served] = served_conclusions(predictor, records_of(["nevus"]), table)
    assert served.next_step.urgency == step


def test_a_missed_image_whose_set_names_an_urgent_class_is_warned() -> None:
    held = np.zeros((7, 4), dtype=bool)
    held[1, 1] = True
    scores = urgent_scores(hand_counted(sets_NC=held, level=0.9))
    assert scores is not None
    assert (scores.levels[1].misses.missed, scores.levels[1].unwarned) == (2, 1)


def test_the_curve_goes_down_as_misses_go_up() -> None:
    scores = urgent_scores(hand_counted())
    assert scores is not None
    points = [(p.threshold, p.missed, p.sent_on) for p in scores.curve]
    assert points == [
        (0.05, 0, pytest.approx(2 / 3)),
        (0.3, 0.25, pytest.approx(2 / 3)),
        (0.9, 0.75, 0),
    ]
    labels, table = simulate(900)
    many = Answers.join(records_of(labels), table, CLASSES, ["alpha", "beta"])
    curve = urgent_scores(dataclasses.replace(many, urgent_risk=RISK)).curve
    assert len(curve) == 200
    assert all(a.missed < b.missed and a.sent_on >= b.sent_on for a, b in pairwise(curve))
    only = hand_counted().some(np.arange(4))
    assert urgent_scores(only).curve == ()
    assert urgent_scores(only).levels[0].false_alarms is None


def test_the_intervals_are_honest_at_the_borders() -> None:
    sure = urgent_scores(
        hand_counted(ensemble_NC=np.array([[0, 1, 0, 0.0]] * 4 + [[1, 0, 0, 0]] * 3))
    )
    assert sure is not None
    misses, alarms = sure.levels[1].misses, sure.levels[1].false_alarms
    assert (misses.missed, misses.rate.low) == (0, 0)
    assert misses.rate.high > 0.5
    assert (alarms.raised, alarms.rate.low) == (0, 0)
    assert alarms.rate.high > 0.5


def test_the_plot_holds_every_interval() -> None:
    assert urgent_plot(None) is None
    plot = urgent_plot(urgent_scores(hand_counted()))
    assert plot is not None
    assert plot.axes.get_xlim() == (0, 1)
    curve, *marks = plot.axes.lines
    for whiskers in plot.axes.collections:
        for ends in whiskers.get_segments():
            assert np.all((ends >= -1e-9) & (ends <= 1 + 1e-9))
    assert len(plot.axes.collections) == 4  # two levels, each in both directions
    sizes = [mark.get_markersize() for mark in marks if mark.get_marker() == "o"]
    assert len(sizes) == 2
    assert sizes[0] < sizes[1]  # the chosen one is the second
    assert curve.get_drawstyle() == "steps-post"
    points = [tuple(point) for point in curve.get_xydata()]
    assert points[:3] == [(0, 1), (0, pytest.approx(2 / 3)), (0.25, pytest.approx(2 / 3))]
    assert points[-1] == (0.75, 0)


@pytest.fixture
def evaluated(tmp_path: Path) -> tuple[Path, Evaluation]:
    labels, table = agreeing(60)
    return _evaluate(tmp_path / "with", labels, table, RISK)


def agreeing(n: int) -> tuple[list[str], list[Prediction]]:
    """Return labels and predictions of two members that are one."""
    labels, table = simulate(n)
    said_NC = [answer.probabilities_C for answer in table]
    return labels, [Prediction(said_C, np.stack([said_C] * 2)) for said_C in said_NC]


def _evaluate(
    folder: Path,
    labels: list[str],
    table: list[Prediction],
    rule: UrgentRiskRule | None,
    miss_rate: float | None = None,
) -> tuple[Path, Evaluation]:
    records: list[Record] = records_of(labels)
    dataset = write_dataset(folder / "dataset", records)
    sets = Conformal(pictures=99, thresholds={"all": 0.1}, urgent_columns=(1, 2))
    predictor = FakePredictor(table, conformal=sets, urgent_risk=rule, miss_rate=miss_rate)
    out = folder / "evaluation"
    arguments = (predictor, records, decode, out)
    return out, evaluate_served(*arguments, bundle="b", dataset=dataset, draws=10)


def test_the_evaluation_tells_what_is_served(evaluated: tuple[Path, Evaluation]) -> None:
    out, evaluation = evaluated
    scores = evaluation.urgent_risk
    assert isinstance(scores, UrgentRiskScores)
    level = scores.levels[1]
    urgent, other = scores.steps
    # No member contradicts another here: urgent is what the risk says is urgent, and no more.
    assert urgent.urgent == urgent.n - level.misses.missed
    assert other.urgent == level.false_alarms.raised
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["urgent_risk"]["levels"][1]["misses"]["missed"] == level.misses.missed
    answers = read_predictions(out)
    assert answers.urgent_risk == RISK
    assert urgent_scores(answers) == scores
    report = (out / "report.html").read_text()
    ET.fromstring(report.replace("<!DOCTYPE html>", ""))
    assert "Urgent risk: missed images against false alarms" in report
    assert "would be wrongly sent on as urgent" not in report
    console = Console(file=io.StringIO(), width=200)
    print_table(evaluation, console)
    line = f"5.0 % (default): {level.misses.missed} of {level.misses.n} images of urgent classes"
    assert line in console.file.getvalue()
    (_, card) = measured_risk_lines(metrics["urgent_risk"])
    assert card.startswith(f"- at a miss rate of 5%: {level.misses.missed} of {level.misses.n} ")


def test_the_chosen_level_leads_the_report(tmp_path: Path) -> None:
    labels, table = agreeing(60)
    chosen, other = RISK.levels[0].miss_rate, RISK.default
    assert chosen != other
    out, evaluation = _evaluate(tmp_path, labels, table, RISK, chosen)
    scores = evaluation.urgent_risk
    assert scores is not None
    assert (scores.chosen, scores.default) == (chosen, other)
    misses, false_alarms = scores.levels[0].misses, scores.levels[0].false_alarms
    assert misses is not None
    assert false_alarms is not None
    urgent, rest = scores.steps
    assert urgent.urgent == urgent.n - misses.missed
    assert rest.urgent == false_alarms.raised
    report = (out / "report.html").read_text().replace("\u00a0", " ")
    ET.fromstring(report.replace("<!DOCTYPE html>", ""))
    name = f"{100 * chosen:.1f} %"
    assert f"<strong>At the level {name}: {misses.missed} of {misses.n}" in report
    assert f"{name} (chosen)" in report
    assert f"which was done here: {name}." in report
    assert f"The next step at the level {name}." in report
    console = Console(file=io.StringIO(), width=200)
    print_table(evaluation, console)
    said = console.file.getvalue()
    assert said.index(f"level {name} (chosen)") < said.index("(default)")
    assert urgent_scores(read_predictions(out)) == scores


def test_without_a_threshold_the_report_says_what_decides(tmp_path: Path) -> None:
    labels, table = simulate(12)
    out, evaluation = _evaluate(tmp_path, labels, table, None)
    assert evaluation.urgent_risk is None
    report = (out / "report.html").read_text()
    assert "The next step follows the most urgent class of the set." in report
    assert "would be wrongly sent on as urgent" in report
    assert read_predictions(out).urgent_risk is None


def test_two_evaluations_are_compared_by_their_next_steps(
    evaluated: tuple[Path, Evaluation], tmp_path: Path
) -> None:
    labels, table = agreeing(60)
    other, _ = _evaluate(tmp_path / "without", labels, table, None)
    first, second = read_predictions(evaluated[0]), read_predictions(other)
    found = compare(first, second, ("a", "b"), draws=10)
    parts = {part.value: part for part in found.parts if part.attribute == "next step"}
    assert list(parts) == [
        "urgent classes, sent on as urgent",
        "other classes, not sent on as urgent",
    ]
    urgent = np.array([label != "nevus" for label in labels])
    for part, among in zip(parts.values(), (urgent, ~urgent), strict=True):
        ours, theirs = (np.array(side.steps) == "urgent" for side in (first, second))
        assert part.first == (ours == urgent)[among].mean()
        assert part.second == (theirs == urgent)[among].mean()
    # An evaluation of an older version does not say which next steps it gave.
    older = dataclasses.replace(second, steps=None)
    assert not [
        part
        for part in compare(first, older, ("a", "b"), draws=10).parts
        if part.attribute == "next step"
    ]
