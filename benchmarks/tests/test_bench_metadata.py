"""The gain of age, sex and place on kept predictions: planted, and judged by other groups."""

from pathlib import Path

import numpy as np
import pytest

from skindx.core.errors import UserError
from skindx.models.metadata_head import Facts
from skindx_bench.train import metadata_gain
from skindx_bench.train.kept_predictions import TEST, VALIDATION, Kept
from skindx_bench.train.metadata_gain import Pooled, answered, gains

N = 400


def pooled(*, single: bool) -> Pooled:
    """Networks that do not see that the old have the second class."""
    rng = np.random.default_rng(1)
    ages = rng.integers(20, 81, N)
    score_NC = rng.normal(size=(N, 2))
    own_NC = np.exp(score_NC) / np.exp(score_NC).sum(axis=1, keepdims=True)
    told_NC = score_NC + np.outer((ages - 50) / 15, [-1, 1])
    truth_N = (told_NC + rng.gumbel(size=(N, 2))).argmax(axis=1)
    groups_N = np.arange(N) // 2
    fold_N = groups_N % 3
    kept = Kept(
        "one",
        ("a", "b"),
        np.array([f"image-{n:03d}" for n in range(N)]),
        groups_N.astype(str),
        truth_N.astype(np.intp),
        np.where(fold_N == 0, TEST, VALIDATION) if single else fold_N,
        {1: own_NC},
    )
    known = {f"image-{n:03d}": Facts(float(age)) for n, age in enumerate(ages)}
    return Pooled.of("one", [kept, kept], known).calibrated()


@pytest.mark.parametrize("single", [False, True])
def test_a_planted_gain_is_measured_on_images_that_did_not_teach_it(single: bool) -> None:
    whole = pooled(single=single)
    judged, with_NC = answered(whole)
    assert len(judged.truth_N) == ((whole.fold_N == TEST).sum() if single else N)
    right = [(p.argmax(axis=1) == judged.truth_N).mean() for p in (with_NC, judged.answers_NC)]
    assert right[0] > right[1] + 0.05
    figures, note = gains(whole, 1, 20)
    assert figures["log_loss_gain"].value > 0
    assert figures["age_log_loss_gain"] == figures["log_loss_gain"]
    assert figures["site_balanced_gain"].value == 0
    assert figures["largest_shift_by_sex"].value == 0
    assert "more than 0.0 points" in note
    judged, same_NC = answered(whole.only(["sex"]))
    assert same_NC.tobytes() == judged.answers_NC.tobytes()


def test_predictions_of_another_dataset_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    names, zeros = np.array(["0"]), np.array([0])
    kept = Kept("one", ("a",), names, names, zeros, zeros, {1: np.ones((1, 1))})
    with pytest.raises(UserError, match="none of the images of the kept predictions"):
        Pooled.of("one", [kept], {"other": Facts()})
    monkeypatch.setattr(metadata_gain, "read_manifest", lambda _: [])
    with pytest.raises(UserError, match="train the networks first"):
        metadata_gain.run(metadata_gain.Config(kept=Path("none")))
