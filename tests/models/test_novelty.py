"""How familiar a photo is: the score by plain arithmetic, its promise, and real photos."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from tiny_bundle import pack_whole

from skindx.errors import UserError
from skindx.models.bundle import open_bundle
from skindx.models.gallery import Gallery, GalleryRow
from skindx.models.novelty import STATISTICS, Novelty, fit_familiar, fit_novelty

Floats = NDArray[np.float32]
LABELS = ("a", "b", "c")


def points(n: int, seed: int, far: float = 0.0) -> Floats:
    """Return points about three corners of the sphere; `far` moves them into another direction."""
    random = np.random.default_rng(seed)
    vectors_ND = random.normal(scale=0.1, size=(n, 24)) * np.linspace(2, 0.5, 24)
    vectors_ND[np.arange(n), np.arange(n) % 3] += 1
    vectors_ND[:, 10] += far
    return (vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)).astype(np.float32)


def gallery_of(embeddings_ND: Floats) -> Gallery:
    rows = [GalleryRow(f"{n:064x}", LABELS[n % 3], n) for n in range(len(embeddings_ND))]
    return Gallery.of(rows, embeddings_ND, [b""] * len(rows))


def fitted(n: int = 99) -> Novelty:
    novelty = fit_novelty(gallery_of(points(400, 0)), points(n, 1))
    assert novelty is not None
    return novelty


def test_the_score_is_the_mahalanobis_distance_to_the_nearest_class() -> None:
    """Of scikit-learn: the covariance from PCA's model, the distance from the plain formula."""
    learned_PD, asked_QD = points(400, 0), points(30, 2, far=0.3)
    found = fit_familiar(learned_PD, np.array([LABELS[n % 3] for n in range(400)]))
    assert found is not None
    means_CD = np.stack([learned_PD[n::3].mean(axis=0) for n in range(3)])
    off_PD = learned_PD - means_CD[np.arange(400) % 3]
    peer = PCA(n_components=len(found.axes_AD), svd_solver="full").fit(off_PD.astype(np.float64))
    # PCA divides by P - 1, and reports its noise variance as the mean of the other eigenvalues.
    precision_DD = np.linalg.inv(peer.get_covariance() * 399 / 400)
    expected_Q = np.min(
        [np.einsum("qd,de,qe->q", asked_QD - m, precision_DD, asked_QD - m) for m in means_CD],
        axis=0,
    )
    np.testing.assert_allclose(found.distances(asked_QD), expected_Q, rtol=2e-3)


@given(st.integers(0, 2**32))
def test_familiarity_counts_who_lies_as_far(seed: int) -> None:
    novelty, asked_QD = fitted(), points(5, seed, far=seed % 5 / 10)
    scores_Q = novelty.familiar.distances(asked_QD)
    expected = [(1 + (novelty.scores_N >= score).sum()) / 100 for score in scores_Q]
    np.testing.assert_allclose(novelty.familiarity(asked_QD), expected)


def test_familiar_photos_are_refused_at_the_stated_rate() -> None:
    """With 49 calibration pictures one of 50 familiar photos is farther than all of them."""
    gallery, refused = gallery_of(points(100, 0)), []
    for seed in range(300):
        novelty = fit_novelty(gallery, points(49, 2 * seed + 1))
        assert novelty is not None
        familiar_Q = novelty.familiarity(points(50, 2 * seed + 2))
        refused.append(np.mean([novelty.is_far(each) for each in familiar_Q]))
    assert novelty.spec.rate == 1 / 50
    assert 0.015 <= np.mean(refused) <= 0.025
    assert fitted(99).spec.rate == fitted(400).spec.rate == 0.01


def test_strange_photos_are_far_and_familiar_ones_are_not() -> None:
    novelty = fitted()
    assert all(novelty.is_far(each) for each in novelty.familiarity(points(20, 3, far=2)))
    assert novelty.is_far(1 / 100)
    assert not novelty.is_far(2 / 100)
    assert not novelty.is_far(novelty.familiarity(points(1, 4))[0])


def test_too_few_pictures_refuse_nothing() -> None:
    gallery = gallery_of(points(60, 0))
    assert fit_novelty(gallery, points(18, 1)) is None
    assert fit_novelty(gallery_of(points(0, 0)), points(50, 1)) is None
    assert fit_novelty(gallery_of(np.tile(points(3, 0), (9, 1))), points(50, 1)) is None
    assert fit_novelty(gallery, points(19, 1)) is not None


def test_a_bundle_carries_the_scores(tmp_path: Path) -> None:
    bundle = pack_whole(tmp_path / "bundle")
    gallery = bundle.gallery()
    novelty = bundle.novelty()
    assert gallery is not None
    assert novelty is not None
    assert novelty.spec.pictures == len(novelty.scores_N) == 40
    embeddings_ND = gallery.embeddings_ND.float().numpy()
    assert novelty.familiarity(embeddings_ND).min() > 0
    card = (bundle.path / "MODEL_CARD.md").read_text()
    assert "farther from what was learned than 97.6% of 40 calibration pictures" in card
    index = bundle.path / "bundle.json"
    raw = json.loads(index.read_text())
    del raw["files"][STATISTICS]
    index.write_text(json.dumps(raw))
    with pytest.raises(UserError, match=f"does not list {STATISTICS}"):
        open_bundle(bundle.path)
