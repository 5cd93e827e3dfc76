"""Internal and external figures side by side, at unchanged thresholds."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evaluation_fakes import (
    CLASSES,
    FakePredictor,
    decode,
    fake_class,
    records_of,
    simulate,
    write_dataset,
)

from skindx.core.errors import UserError
from skindx.evaluation.answers import Answers, read_predictions
from skindx.evaluation.elsewhere import Internal, compare_elsewhere, read_internal
from skindx.evaluation.evaluate import evaluate_served
from skindx.metrics import Interval, difference_of
from skindx.models.ensemble import OodResult


def answers_of(n: int, seed: int) -> Answers:
    labels, table = simulate(n, seed)
    answers = Answers.join(records_of(labels), table, CLASSES, ("alpha", "beta"))
    return replace(answers, ood_N=np.linspace(0, 1, n), ood_rate=0.01)


def test_the_difference_of_independent_figures_adds_squares() -> None:
    found = difference_of(Interval(0.8, 0.7, 0.84), Interval(0.5, 0.47, 0.8))
    assert (found.value, found.low, found.high) == pytest.approx((0.3, 0.3 - 0.1**0.5, 0.35))


def test_a_set_compared_with_itself_has_not_changed() -> None:
    answers = answers_of(90, 0)
    table = compare_elsewhere(Internal(answers, {}), answers, draws=40)
    keys = [change.key for change in table.changes]
    assert keys == ["auroc", "balanced_accuracy", "calibration_error", "log_loss", "refused"]
    for change in table.changes:
        assert change.change.value == 0
        assert change.change.low < 0 < change.change.high
    assert [one.name for one in table.classes] == [condition.name for condition in CLASSES[:3]]
    assert (table.few, table.absent) == ({}, ("Common wart",))


def test_few_images_and_classes_that_are_not_there_are_named() -> None:
    internal, external = answers_of(150, 0), answers_of(90, 1)
    external = external.some(
        np.flatnonzero((external.truth_N == 0) | (np.cumsum(external.truth_N == 1) <= 7))
    )
    external = external.some(external.truth_N < 2)
    table = compare_elsewhere(Internal(internal, {}), external, draws=40)
    n_C = np.bincount(internal.truth_N)
    assert table.internal_images == n_C[0] + n_C[1]
    assert table.few == {"Melanoma": (n_C[1], 7)}
    assert table.absent == ("Squamous cell carcinoma", "Common wart")
    (nevus,) = table.classes
    assert (nevus.internal_images, nevus.external_images) == (n_C[0], (external.truth_N == 0).sum())
    right_N = external.right_N[external.truth_N == 0]
    assert nevus.sensitivity.external.value == pytest.approx(right_N.mean())
    balanced = next(change for change in table.changes if change.key == "balanced_accuracy")
    assert balanced.external.value == pytest.approx(right_N.mean())


@pytest.fixture
def two(tmp_path: Path) -> tuple[FakePredictor, Path, Path]:
    """Return a predictor, its dataset and another one with two of its classes."""
    labels, table = simulate(80)
    table = [replace(answer, ood=OodResult((n + 1) / 81, 0.05)) for n, answer in enumerate(table)]
    names = {"nevus": "Compound nevus", "melanoma": "Melanoma", "scc": "lupus"}
    mine = write_dataset(tmp_path / "mine", records_of(labels))
    other = write_dataset(tmp_path / "other", records_of([names[label] for label in labels]))
    return FakePredictor(table), mine, other


def test_a_report_says_what_changes(two: tuple[FakePredictor, Path, Path], tmp_path: Path) -> None:
    predictor, mine, other = two
    labels = simulate(80)[0]
    home = tmp_path / "evaluation"
    evaluate_served(
        *(predictor, records_of(labels), decode, home),
        bundle="b", dataset=mine, draws=20,
    )  # fmt: skip
    internal = read_internal(tmp_path / "bundle", None, None, CLASSES, None)
    kept = read_predictions(home)
    assert kept.ood_rate == 0.05
    assert kept.abstained_N is not None
    names = {"nevus": "Compound nevus", "melanoma": "Melanoma", "scc": "lupus"}
    found = evaluate_served(
        *(predictor, records_of([names[label] for label in labels]), decode, tmp_path / "out"),
        bundle="b", dataset=other, split="all", draws=20, internal=internal,
    )  # fmt: skip
    assert found.elsewhere is not None
    by_key = {change.key: change for change in found.elsewhere.changes}
    assert by_key["refused"].change.value == 0
    assert not found.elsewhere.stored
    page = (tmp_path / "out/report.html").read_text()
    assert "What changes elsewhere" in page
    figures = json.loads((tmp_path / "out/metrics.json").read_text())
    assert figures["elsewhere"]["changes"][0]["key"] == "auroc"

    # Only the figures that the bundle holds: no AUROC, which is of other classes there.
    stored = json.loads((home / "metrics.json").read_text())
    held = read_internal(tmp_path / "apart/bundle", None, stored, CLASSES, None)
    table = compare_elsewhere(held, read_predictions(tmp_path / "out"), draws=20)
    one = {change.key: change for change in table.changes}
    assert table.stored
    assert np.isnan(one["auroc"].internal.value)
    for key in ("balanced_accuracy", "calibration_error", "refused"):
        assert np.isfinite(one[key].change.low)


def test_nothing_to_compare_with_is_one_sentence(
    two: tuple[FakePredictor, Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"has no evaluation on its own dataset.*skindx evaluate"):
        read_internal(tmp_path / "bundle", None, None, CLASSES, None)
    predictor, mine, _ = two
    records = records_of(simulate(80)[0])
    out = tmp_path / "evaluation"
    evaluate_served(
        *(predictor, records, decode, out), bundle="b", dataset=mine, split="all", draws=20
    )
    with pytest.raises(UserError, match="on an external dataset"):
        read_internal(tmp_path / "bundle", out, None, CLASSES, None)
    others = (*CLASSES[:3], fake_class("other", "Other"))
    with pytest.raises(UserError, match="another bundle"):
        read_internal(tmp_path / "bundle", out, None, others, None)
