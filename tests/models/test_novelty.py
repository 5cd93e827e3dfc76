"""How familiar a photo is: the score by plain arithmetic, its promise, and real photos."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors
from tiny_bundle import pack_whole

from skindx.errors import UserError
from skindx.models.bundle import open_bundle
from skindx.models.gallery import Gallery, GalleryRow
from skindx.models.novelty import SCORES, Novelty, distances, fit_novelty

Floats = NDArray[np.float32]


def points(n: int, seed: int, about: float = 0.0) -> Floats:
    """Return points of length 1; `about` moves them round the sphere."""
    random = np.random.default_rng(seed)
    vectors_ND = random.normal(scale=0.5, size=(n, 12)) + np.array([3, about, *[0] * 10])
    lengths = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return (vectors_ND / lengths).astype(np.float32)


def gallery_of(embeddings_ND: Floats) -> Gallery:
    rows = [GalleryRow(f"{n:064x}", "a", n) for n in range(len(embeddings_ND))]
    return Gallery.of(rows, embeddings_ND, [b""] * len(rows))


def fitted(n: int = 99) -> Novelty:
    novelty = fit_novelty(gallery_of(points(200, 0)), points(n, 1))
    assert novelty is not None
    return novelty


def test_the_score_is_the_distance_to_the_tenth_nearest() -> None:
    gallery, asked_QD = gallery_of(points(300, 0)), points(40, 2)
    peer = NearestNeighbors(n_neighbors=10, metric="cosine").fit(gallery.embeddings_ND.numpy())
    expected_Q = peer.kneighbors(asked_QD)[0][:, -1]
    np.testing.assert_allclose(distances(gallery, asked_QD, 10), expected_Q, atol=1e-3)
    few = gallery_of(points(3, 0))
    np.testing.assert_allclose(
        distances(few, asked_QD, 10), 1 - few.cosines(asked_QD).min(axis=1), atol=1e-6
    )


@given(st.integers(0, 2**32))
def test_familiarity_counts_who_lies_as_far(seed: int) -> None:
    novelty, asked_QD = fitted(), points(5, seed, about=seed % 5)
    scores_Q = distances(novelty.gallery, asked_QD, 10)
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
    assert all(novelty.is_far(each) for each in novelty.familiarity(points(20, 3, about=20)))
    assert novelty.is_far(1 / 100)
    assert not novelty.is_far(2 / 100)
    assert not novelty.is_far(novelty.familiarity(points(1, 4))[0])


def test_too_few_pictures_refuse_nothing() -> None:
    gallery = gallery_of(points(30, 0))
    assert fit_novelty(gallery, points(18, 1)) is None
    assert fit_novelty(gallery_of(points(0, 0)), points(50, 1)) is None
    assert fit_novelty(gallery, points(19, 1)) is not None


def test_a_bundle_carries_the_scores(tmp_path: Path) -> None:
    bundle = pack_whole(tmp_path / "bundle")
    gallery = bundle.gallery()
    novelty = bundle.novelty(gallery)
    assert gallery is not None
    assert novelty is not None
    assert novelty.spec.pictures == len(novelty.scores_N) == 40
    embeddings_ND = gallery.embeddings_ND.float().numpy()
    assert novelty.familiarity(embeddings_ND).min() > 0
    card = (bundle.path / "MODEL_CARD.md").read_text()
    assert "farther from the gallery than 97.6% of 40 calibration pictures" in card
    index = bundle.path / "bundle.json"
    raw = json.loads(index.read_text())
    del raw["files"][SCORES]
    index.write_text(json.dumps(raw))
    with pytest.raises(UserError, match=f"does not list {SCORES}"):
        open_bundle(bundle.path)
