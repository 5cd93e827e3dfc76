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

from skindx.core.errors import UserError
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_changes import add_metrics
from skindx.models.conformal import Conformal, fit_conformal

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
    """With 39 images at 90 % the mean coverage is 36 / 40 by theory, more with full sets."""
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
        # On the images it was fitted on it holds more than it promises: the correction.
        assert sets_NC[np.arange(n), truth_N].mean() >= level
        wider = fit_conformal(probabilities_NC, truth_N, min(0.99, level + 0.04))
        assert wider.least_probability <= fitted.least_probability
    assert (sets_NC >= (probabilities_NC >= fitted.least_probability)).all()


def test_too_few_images_promise_nothing_but_all_classes() -> None:
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
    with pytest.raises(ValueError, match="must have the shape"):
        fit_conformal(probabilities_NC, truth_N[1:])
    with pytest.raises(ValueError, match="finite"):
        fit_conformal(probabilities_NC * np.nan, truth_N)
    for raw, said in (
        ({"thresholds": {"dark": 0.2}}, "must have an entry 'all'"),
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
    assert "coverage of 90%; fitted on 200 images" in (new.path / "MODEL_CARD.md").read_text()
    from tiny_bundle import measured

    add_metrics(new.path, measured(0.5))
    assert open_bundle(new.path).spec.conformal == fitted


URGENT_C = np.array([True, False, False, True, False])


@pytest.mark.filterwarnings("ignore:WARNING. your conformalization dataset has less:UserWarning")
def test_urgent_classes_have_the_threshold_of_their_own_images() -> None:
    """MAPIE, fitted on the images of each kind by themselves, gives the same columns."""
    calibration_NC, truth_N = simulate(500)
    new_NC, _ = simulate(300, seed=1)
    fitted = fit_conformal(calibration_NC, truth_N, urgent_C=URGENT_C)
    assert fitted.urgent_level == 0.95
    for kind_C, level in ((URGENT_C, 0.95), (~URGENT_C, 0.9)):
        of_N = kind_C[truth_N]
        peer = SplitConformalClassifier(
            Told().fit(calibration_NC, truth_N), confidence_level=level, conformity_score="lac"
        )
        peer.conformalize(calibration_NC[of_N], truth_N[of_N])
        _, theirs = peer.predict_set(new_NC)
        ours_NC = fitted.sets(new_NC)
        ours_NC[np.arange(300), new_NC.argmax(axis=1)] = False
        theirs_NC = theirs[:, :, 0].copy()
        theirs_NC[np.arange(300), new_NC.argmax(axis=1)] = False
        np.testing.assert_array_equal(ours_NC[:, kind_C], theirs_NC[:, kind_C])


def by_hand(urgent: int, other: int) -> tuple[Floats, Ints]:
    """Return two classes, the first urgent; true ones have 0.01, 0.02, .. of each kind."""
    own = [n / 100 for count in (urgent, other) for n in range(1, count + 1)]
    truth = [0] * urgent + [1] * other
    rows = [(p, 1 - p) if t == 0 else (1 - p, p) for p, t in zip(own, truth, strict=True)]
    return np.array(rows).reshape(-1, 2), np.array(truth, dtype=np.intp)


@pytest.mark.parametrize(
    ("urgent", "other", "expected"),
    [
        # ceil(20 * 0.95) = 19: the 19th greatest of 19; ceil(20 * 0.9) = 18: the second least.
        (19, 19, (0.02, 0.01, 0.95)),
        # ceil(40 * 0.95) = 38 of 39; ceil(10 * 0.9) = 9 of 9.
        (39, 9, (0.01, 0.02, 0.95)),
        # Ten bear out no more than 10 / 11: the least of them.
        (10, 19, (0.02, 0.01, 10 / 11)),
        # Too few of a kind: the others are judged as all are, ceil(23 * 0.9) = 21st of 22.
        (3, 19, (0.01, 0.01, 3 / 4)),
        (19, 3, (0.01, 0.01, 0.95)),
    ],
)
def test_thresholds_by_hand(urgent: int, other: int, expected: tuple[float, float, float]) -> None:
    fitted = fit_conformal(*by_hand(urgent, other), urgent_C=np.array([True, False]))
    found = (fitted.least_probability, fitted.urgent["all"], fitted.urgent_level)
    assert found == pytest.approx(expected)


def test_without_urgent_images_nothing_is_promised_of_them() -> None:
    fitted = fit_conformal(*by_hand(0, 19), urgent_C=np.array([True, False]))
    assert (fitted.urgent, fitted.urgent_level, fitted.urgent_missed) == ({}, None, None)
    assert fitted.sets(np.array([[0.3, 0.7], [0.01, 0.99]])).tolist() == [
        [True, True],
        [False, True],
    ]


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_urgent_images_are_seldom_missed_on_calibration(n: int, seed: int) -> None:
    probabilities_NC, truth_N = simulate(n, seed=seed)
    fitted = fit_conformal(probabilities_NC, truth_N, urgent_C=URGENT_C)
    sets_NC = fitted.sets(probabilities_NC)
    assert sets_NC[np.arange(n), truth_N].mean() >= fitted.level
    if fitted.urgent_missed:
        pressing_N = URGENT_C[truth_N]
        assert fitted.urgent_missed.pictures == pressing_N.sum()
        assert fitted.urgent_missed.value <= 0.05
        assert fitted.urgent_missed.low <= fitted.urgent_missed.value <= fitted.urgent_missed.high
        assert sets_NC[np.arange(n), truth_N][pressing_N].mean() >= 0.95
        # What so few images do not bear out is no promise.
        assert fitted.urgent_level <= pressing_N.sum() / (pressing_N.sum() + 1)


def test_the_urgent_promise_holds_over_many_draws() -> None:
    covered, missed = [], []
    for seed in range(400):
        probabilities_NC, truth_N = simulate(150, seed=seed)
        new_NC, new_N = simulate(200, seed=100_000 + seed)
        sets_NC = fit_conformal(probabilities_NC, truth_N, urgent_C=URGENT_C).sets(new_NC)
        pressing_N = URGENT_C[new_N]
        covered.append(sets_NC[np.arange(200), new_N][pressing_N].mean())
        missed.append((~sets_NC[pressing_N][:, URGENT_C].any(axis=1)).mean())
    assert 0.945 <= np.mean(covered) <= 0.975
    assert np.mean(missed) <= 0.05


def test_a_share_is_worth_as_many_images_as_it_has_groups() -> None:
    probabilities_NC, truth_N = simulate(200)
    alone = fit_conformal(probabilities_NC, truth_N, urgent_C=URGENT_C)
    paired = fit_conformal(
        probabilities_NC, truth_N, urgent_C=URGENT_C, groups=np.arange(200) // 10
    )
    assert alone.urgent_missed is not None
    assert paired.urgent_missed is not None
    assert alone.urgent_missed.value == paired.urgent_missed.value
    assert paired.urgent_missed.high > alone.urgent_missed.high


def test_skin_types_with_images_enough_have_their_own_thresholds() -> None:
    probabilities_NC, truth_N = simulate(400)
    # The darker skin is, the less sure this network is of the truth.
    probabilities_NC[200:] = 0.5 * probabilities_NC[200:] + 0.1
    types = [1] * 195 + [None] * 5 + [6] * 190 + [3] * 10
    fitted = fit_conformal(probabilities_NC, truth_N, urgent_C=URGENT_C, skin_types=types)
    assert fitted.group_pictures == {"skin type 1": 195, "skin type 6": 190}
    assert set(fitted.thresholds) == set(fitted.urgent) == {"all", *fitted.group_pictures}
    assert [fitted.group(skin_type) for skin_type in (1, 3, 6, None)] == [
        "skin type 1", "all", "skin type 6", "all",
    ]  # fmt: skip
    assert (fitted.images_of("skin type 6"), fitted.images_of("all")) == (190, 400)
    alone = fit_conformal(probabilities_NC[200:390], truth_N[200:390], urgent_C=URGENT_C)
    assert fitted.thresholds["skin type 6"] == alone.least_probability
    assert fitted.urgent["skin type 6"] == alone.urgent["all"]
    np.testing.assert_array_equal(
        fitted.sets(probabilities_NC[:3], [6, 6, 6]), alone.sets(probabilities_NC[:3])
    )
    mixed = fitted.sets(probabilities_NC[:2], [None, 6])
    np.testing.assert_array_equal(mixed[0], fitted.sets(probabilities_NC[:1])[0])
    for kind in (1, 6):
        of_N = np.array([skin_type == kind for skin_type in types])
        sets_NC = fitted.sets(probabilities_NC[of_N], [kind] * int(of_N.sum()))
        assert sets_NC[np.arange(of_N.sum()), truth_N[of_N]].mean() >= 0.9


def test_rules_that_do_not_fit_are_refused() -> None:
    urgent = {"pictures": 9, "thresholds": {"all": 0.2}, "urgent": {"dark": 0.1}}
    with pytest.raises(UserError, match="same groups"):
        Conformal.parse(urgent)
    rule = Conformal(pictures=9, thresholds={"all": 0.2}, urgent={"all": 0.1}, urgent_columns=(5,))
    with pytest.raises(ValueError, match="do not fit 5 classes"):
        rule.sets(simulate(3)[0])
    with pytest.raises(ValueError, match="1 skin types were given for 3"):
        fit_conformal(*simulate(9)).sets(simulate(3)[0], [None])


def test_the_rule_of_an_older_bundle_is_read_as_it_was() -> None:
    old = Conformal.parse({"level": 0.9, "pictures": 60, "thresholds": {"all": 0.3}})
    sets_NC = old.sets(np.array([[0.3, 0.29, 0.41], [0.2, 0.2, 0.6]]), [2, None])
    assert sets_NC.tolist() == [[True, False, True], [False, False, True]]
    assert (old.urgent_level, old.urgent_missed, old.group(2)) == (None, None, "all")
