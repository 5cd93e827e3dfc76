"""Conformal sets against MAPIE, by their promise, and in a bundle."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mapie.classification import SplitConformalClassifier
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from tiny_bundle import pack_tiny

from skindx.errors import UserError
from skindx.models.bundle import add_metrics, open_bundle
from skindx.models.conformal import Conformal
from skindx.models.conformal_fit import fit_conformal

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def simulate(n: int, classes: int = 5, seed: int = 0) -> tuple[Floats, Ints]:
    random = np.random.default_rng(seed)
    probabilities_NC = random.dirichlet(np.full(classes, 0.5), size=n)
    truth_N = (probabilities_NC.cumsum(axis=1) < random.random((n, 1))).sum(axis=1)
    return probabilities_NC, truth_N.clip(max=classes - 1)


class Told(ClassifierMixin, BaseEstimator):
    """A classifier whose input is its probabilities."""

    def __init__(self, classes: int = 5) -> None:
        self.classes = classes

    def fit(self, rows: Floats, truth: Ints) -> "Told":
        self.classes_ = np.arange(self.classes)
        self.n_features_in_ = self.classes
        self.is_fitted_ = True
        return self

    def predict_proba(self, rows: Floats) -> Floats:
        return rows

    def predict(self, rows: Floats) -> Ints:
        return rows.argmax(axis=1)


@pytest.mark.parametrize(("n", "level"), [(50, 0.9), (199, 0.9), (200, 0.95), (333, 0.8)])
def test_threshold_and_sets_are_those_of_mapie(n: int, level: float) -> None:
    calibration_NC, truth_N = simulate(n)
    new_NC, _ = simulate(400, seed=1)
    peer = SplitConformalClassifier(
        Told().fit(calibration_NC, truth_N), confidence_level=level, conformity_score="lac"
    )
    peer.conformalize(calibration_NC, truth_N)
    _, theirs = peer.predict_set(new_NC)
    ours = fit_conformal(calibration_NC, truth_N, level)
    sets_NC = ours.sets(new_NC)
    theirs_NC = theirs[:, :, 0].copy()
    # Where no class reaches the threshold theirs is empty; ours names the likeliest.
    empty_N = ~theirs_NC.any(axis=1)
    theirs_NC[empty_N, new_NC[empty_N].argmax(axis=1)] = True
    np.testing.assert_array_equal(sets_NC, theirs_NC)


def test_the_promise_holds_over_many_draws() -> None:
    """With 39 pictures at 90 % the mean coverage is 36 / 40 by theory, more with full sets."""
    covered = []
    for seed in range(1000):
        calibration_NC, truth_N = simulate(39, seed=seed)
        new_NC, new_N = simulate(200, seed=100_000 + seed)
        sets_NC = fit_conformal(calibration_NC, truth_N).sets(new_NC)
        covered.append(sets_NC[np.arange(200), new_N].mean())
    assert 0.895 <= np.mean(covered) <= 0.915


@given(st.integers(0, 60), st.floats(0.5, 0.95), st.integers(0, 2**32))
def test_invariants(n: int, level: float, seed: int) -> None:
    probabilities_NC, truth_N = simulate(n, seed=seed)
    fitted = fit_conformal(probabilities_NC, truth_N, level)
    sets_NC = fitted.sets(probabilities_NC)
    assert fitted.pictures == n
    assert sets_NC.any(axis=1).all()
    if n:
        # On the pictures it was fitted on it holds more than it promises: the correction.
        assert sets_NC[np.arange(n), truth_N].mean() >= level
        wider = fit_conformal(probabilities_NC, truth_N, min(0.99, level + 0.04))
        assert wider.least_probability <= fitted.least_probability
    assert (sets_NC >= (probabilities_NC >= fitted.least_probability)).all()


def test_too_few_pictures_promise_nothing_but_all_classes() -> None:
    probabilities_NC, truth_N = simulate(9)
    enough, few = (
        fit_conformal(probabilities_NC, truth_N),
        fit_conformal(probabilities_NC[:8], truth_N[:8]),
    )
    assert enough.least_probability == probabilities_NC[np.arange(9), truth_N].min()
    assert few.least_probability == 0
    assert few.sets(probabilities_NC).all()


def test_what_does_not_fit_is_refused() -> None:
    probabilities_NC, truth_N = simulate(9)
    with pytest.raises(ValueError, match="need probabilities"):
        fit_conformal(probabilities_NC, truth_N[1:])
    with pytest.raises(ValueError, match="finite"):
        fit_conformal(probabilities_NC * np.nan, truth_N)
    for raw, said in (
        ({"thresholds": {"dark": 0.2}}, "must hold 'all'"),
        ({"thresholds": {"all": 1.2}}, r"must be in 0\.\.1"),
        ({"thresholds": {"all": 0.2}, "level": 1.0}, "level"),
    ):
        with pytest.raises(UserError, match=said):
            Conformal.parse({"pictures": 9, **raw})


def test_a_bundle_carries_its_sets_and_an_older_one_has_none(tmp_path: Path) -> None:
    old = pack_tiny(tmp_path / "old")
    raw = json.loads((old.path / "bundle.json").read_text())
    del raw["conformal"]
    (old.path / "bundle.json").write_text(json.dumps(raw))
    assert open_bundle(old.path).spec.conformal is None
    assert "conformal sets: none" in (old.path / "MODEL_CARD.md").read_text()

    fitted = fit_conformal(*simulate(200))
    new = pack_tiny(tmp_path / "new", conformal=fitted)
    assert new.spec.conformal == fitted
    assert "coverage of 90%; fitted on 200 pictures" in (new.path / "MODEL_CARD.md").read_text()
    from tiny_bundle import measured

    add_metrics(new.path, measured(0.5))
    assert open_bundle(new.path).spec.conformal == fitted
