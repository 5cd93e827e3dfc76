"""Each detector's formula, and that it tells the far from the near."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.neighbors import NearestNeighbors
from some_features import HEAD, Singles, features, learned, points

from skindx.models.ood.ood_features import Features, OodDetector, TrainingFeatures
from skindx_bench.honesty.ood_candidates import KINDS, LayeredFeatures


def layered(n: int, seed: int, far: float = 0.0) -> LayeredFeatures:
    """Return features with those of one layer."""
    layer = np.abs(points(n, seed + 20_000, far))
    return LayeredFeatures(**vars(features(n, seed, far)), layers_LNK=(layer,))


def layered_learned(n: int = 400) -> TrainingFeatures:
    return replace(learned(n), features=layered(n, 0))


def fitted(
    kind: str, learned_from: TrainingFeatures | None = None, **settings: float
) -> OodDetector:
    chosen = type(KINDS[kind]).model_validate({"kind": kind, **settings})
    found = chosen.detector.fit(chosen, learned_from or layered_learned())
    assert found is not None
    return found


def test_energy_and_react_are_their_formulas() -> None:
    asked = features(20, 5)
    expected_N = np.mean([-logsumexp(part, axis=1) for part in asked.logits_MNC], axis=0)
    np.testing.assert_allclose(fitted("energy").scores(asked), expected_N, rtol=1e-5)
    uncut_N = np.mean(
        [-logsumexp(part @ HEAD[0].T + HEAD[1], axis=1) for part in asked.pooled_MND], axis=0
    )
    np.testing.assert_allclose(fitted("react", percentile=100).scores(asked), uncut_N, rtol=1e-4)
    assert (fitted("react", percentile=50).scores(asked) > uncut_N).all()


def test_knn_is_the_distance_to_the_kth_nearest() -> None:
    asked = features(20, 5)
    peer = NearestNeighbors(n_neighbors=10).fit(learned().features.embeddings)
    expected_N = peer.kneighbors(asked.embeddings)[0][:, -1]
    np.testing.assert_allclose(fitted("knn", k=10).scores(asked), expected_N, rtol=1e-3)


def test_vim_is_the_scaled_residual_and_the_energy() -> None:
    """Of one member, by numpy's own decomposition."""
    asked, train = features(20, 5), learned()
    one = TrainingFeatures(
        Features(train.features.pooled_MND[:1], train.features.logits_MNC[:1], asked.image_NF),
        train.labels_N,
        (HEAD[0],),
        (HEAD[1],),
    )
    found = fitted("vim", one, axes=6)
    origin_D = -np.linalg.pinv(HEAD[0]) @ HEAD[1]

    def residual(part: Singles) -> NDArray[np.float64]:
        off_ND = train.features.pooled_MND[0] - origin_D
        *_, vectors_DD = np.linalg.svd(off_ND)
        return np.linalg.norm((part - origin_D) @ vectors_DD[6:].T, axis=1)

    alpha = (
        train.features.logits_MNC[0].max(axis=1).mean()
        / residual(train.features.pooled_MND[0]).mean()
    )
    expected_N = alpha * residual(asked.pooled_MND[0]) - logsumexp(asked.logits_MNC[0], axis=1)
    np.testing.assert_allclose(
        found.scores(Features(asked.pooled_MND[:1], asked.logits_MNC[:1], asked.image_NF)),
        expected_N,
        rtol=1e-2,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_detector_is_stored_and_tells_the_far_from_the_near(kind: str) -> None:
    detector, asked = fitted(kind), layered(20, 5, far=3)
    again = type(detector).from_tensors(detector.tensors())
    np.testing.assert_array_equal(again.scores(asked), detector.scores(asked))
    if kind not in ("energy", "react"):  # which look at the logits, and these do not move
        assert detector.scores(asked).min() > np.quantile(detector.scores(layered(99, 1)), 0.9)
    with pytest.raises(KeyError):
        type(detector).from_tensors({}) if detector.tensors() else {}["none to miss"]
