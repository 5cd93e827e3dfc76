"""The table of classes without and with boxes, by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evaluation_fakes import CLASSES, FakePredictor, decode, prediction, records_of, write_dataset

from skindx.evaluation.answers import Answers
from skindx.evaluation.evaluate import METRICS, REPORT, evaluate_served
from skindx.evaluation.input_effects import assisted_table, measure_assistance
from skindx.metrics import Statistic, paired_interval
from skindx.models.ensemble import Prediction

NEVUS, MELANOMA = (0.7, 0.1, 0.1, 0.1), (0.1, 0.7, 0.1, 0.1)

Row = tuple[float, ...]


def _seen(served: Row, whole: Row | None) -> Prediction:
    said = prediction(served)
    return said if whole is None else replace(said, whole_C=np.array(whole))


LABELS = ["nevus", "nevus", "melanoma", "melanoma", "melanoma", "melanoma"]
GROUPS = ["a", "b", "c", "c", "d", "e"]
TABLE = [
    _seen(NEVUS, NEVUS),
    _seen(MELANOMA, NEVUS),  # the crop misleads
    _seen(MELANOMA, NEVUS),  # the crop helps, twice in one group
    _seen(MELANOMA, NEVUS),
    _seen(MELANOMA, None),  # no sure box
    _seen(NEVUS, NEVUS),
]


def test_the_table_by_hand() -> None:
    answers = Answers.join(records_of(LABELS, GROUPS), TABLE, CLASSES, ("alpha",))
    found = measure_assistance(answers, TABLE, draws=200)
    assert found is not None
    assert (found.pictures, found.boxed, found.changed) == (6, 5, 3)
    nevus, melanoma = found.classes
    assert (nevus.name, nevus.n, nevus.boxed) == ("Compound nevus", 2, 2)
    assert (nevus.without.value, nevus.assisted.value, nevus.difference.value) == (1.0, 0.5, -0.5)
    assert (melanoma.n, melanoma.boxed, melanoma.changed) == (4, 3, 2)
    assert (melanoma.without.value, melanoma.assisted.value) == (0.25, 0.75)
    assert melanoma.difference.value == pytest.approx(0.5)
    # Group c weighs two images: its draws reach from no change to all of them, and three groups
    # say little of those that were not seen.
    assert -1 < melanoma.difference.low < 0 < melanoma.difference.high == 1
    assert found.without == pytest.approx((1 + 0.25) / 2)
    assert found.assisted == pytest.approx((0.5 + 0.75) / 2)
    assert found.difference.value == pytest.approx(0)
    assert assisted_table(found).row_count == 3


def test_the_classes_that_gain_are_named_by_intervals_that_hold_together() -> None:
    """Twenty melanomas are named rightly by the crop alone, three of twenty nevi wrongly by it."""
    labels = ["nevus"] * 20 + ["melanoma"] * 20
    table = [_seen(MELANOMA if number < 3 else NEVUS, NEVUS) for number in range(20)]
    table += [_seen(MELANOMA, NEVUS)] * 16 + [_seen(NEVUS, NEVUS)] * 4
    answers = Answers.join(
        records_of(labels, [f"g{number}" for number in range(40)]), table, CLASSES, ("alpha",)
    )
    found = measure_assistance(answers, table, draws=400)
    assert found is not None
    _, melanoma = found.classes
    ours, theirs = (
        Statistic.top_k(np.array([p] * 16 + [NEVUS] * 4), answers.truth_N[20:], 1)
        for p in (MELANOMA, NEVUS)
    )
    groups_N = answers.groups_N[20:]
    alone = paired_interval(ours, theirs, groups_N, draws=800, level=0.95, seed=0)
    both = paired_interval(ours, theirs, groups_N, draws=800, level=0.975, seed=0)
    assert melanoma.difference == both
    assert both.low < alone.low
    assert found.verdict == (
        "The intervals of the 2 classes hold together at 95 %. By the crop gain: Melanoma. "
        "Lose: no class. May do either: Compound nevus."
    )


def test_nothing_is_shown_where_no_box_was_used() -> None:
    plain = [prediction(NEVUS)] * 6
    answers = Answers.join(records_of(LABELS, GROUPS), plain, CLASSES, ("alpha",))
    assert measure_assistance(answers, plain) is None


def test_where_no_answer_changed_nothing_is_claimed() -> None:
    """A bootstrap of equal answers is 0 in every draw, which is no evidence for 0."""
    same = [_seen(NEVUS, NEVUS)] * 6
    answers = Answers.join(records_of(LABELS, GROUPS), same, CLASSES, ("alpha",))
    found = measure_assistance(answers, same, draws=50)
    assert found is not None
    for difference in (*(condition.difference for condition in found.classes), found.difference):
        assert difference.value == 0
        assert np.isnan([difference.low, difference.high]).all()


def test_an_evaluation_carries_it(tmp_path: Path) -> None:
    records = records_of(LABELS, GROUPS)
    dataset = write_dataset(tmp_path / "data", records)
    predictor = FakePredictor(TABLE, ("alpha",))
    evaluation = evaluate_served(
        predictor, records, decode, tmp_path / "out", bundle="b", dataset=dataset, draws=50
    )
    assert evaluation.assisted is not None
    metrics = json.loads((tmp_path / "out" / METRICS).read_text())
    assert metrics["assisted"]["classes"][1]["difference"]["value"] == pytest.approx(0.5)
    report = (tmp_path / "out" / REPORT).read_text()
    assert "With and without boxes" in report
    assert "By the crop gain: no class." in report
