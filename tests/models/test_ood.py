"""The OOD check: each detector's formula, what is promised, and its place in a bundle."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors
from tiny_bundle import pack_whole

from skindx.core.errors import UserError
from skindx.models.bundle.bundle import open_bundle
from skindx.models.ood.ood_check import (
    AnyDetector,
    OodCheck,
    OodSpec,
    fit_check,
    p_values,
    rate_interval,
    rate_of,
)
from skindx.models.ood.ood_detectors import (
    DEFAULT,
    DETECTORS,
    ImageMixture,
    detector_class,
    fit_gaussian,
)
from skindx.models.ood.ood_features import Features, Learned, OodDetector
from skindx.models.ood.stored_check import CHECK, OodImages, OodRow, load_check, save_check

Singles = NDArray[np.float32]
LABELS = ("a", "b", "c")
ADAPTER: TypeAdapter[AnyDetector] = TypeAdapter(AnyDetector)


def points(n: int, seed: int, far: float = 0.0) -> Singles:
    """Return points about three corners; `far` moves them into another direction."""
    random = np.random.default_rng(seed)
    vectors_ND = random.normal(scale=0.1, size=(n, 24)) * np.linspace(2, 0.5, 24)
    vectors_ND[np.arange(n), np.arange(n) % 3] += 1
    vectors_ND[:, 10] += far
    return vectors_ND.astype(np.float32)


HEAD = np.eye(3, 24, dtype=np.float32), np.array([0.1, 0.0, -0.1], np.float32)


def features(n: int, seed: int, far: float = 0.0) -> Features:
    """Return features of two members, image statistics, and one layer."""
    first, second = points(n, seed, far), 2 * points(n, seed + 10_000, far)
    logits = tuple(10 * (part @ HEAD[0].T + HEAD[1]) for part in (first, second))
    layer = np.abs(points(n, seed + 20_000, far))
    return Features((first, second), logits, points(n, seed + 30_000, far), (layer,))


def learned(n: int = 400) -> Learned:
    labels_N = np.array([LABELS[i % 3] for i in range(n)])
    return Learned(features(n, 0), labels_N, (HEAD[0], HEAD[0]), (HEAD[1], HEAD[1]))


def fitted(kind: str, **settings: float) -> OodDetector:
    found = detector_class(kind).fit(ADAPTER.validate_python({"kind": kind, **settings}), learned())
    assert found is not None
    return found


def check_of(kinds: Sequence[str], n: int = 99) -> OodCheck:
    settings = [ADAPTER.validate_python({"kind": kind}) for kind in kinds]
    check = fit_check(settings, learned(), features(n, 1))
    assert check is not None
    return check


def test_the_gaussian_is_that_of_probabilistic_pca() -> None:
    """Of scikit-learn: the covariance from PCA's model, the distance from the plain formula."""
    labels_N = np.array([LABELS[n % 3] for n in range(400)])
    points_ND, asked_QD = points(400, 0), points(30, 2, far=0.3)
    found = fit_gaussian(points_ND, labels_N)
    assert found is not None
    means_CD = np.stack([points_ND[n::3].mean(axis=0) for n in range(3)])
    off_ND = points_ND - means_CD[np.arange(400) % 3]
    peer = PCA(n_components=len(found.axes_AD), svd_solver="full").fit(off_ND.astype(np.float64))
    # PCA divides by N - 1, and reports its noise variance as the mean of the other eigenvalues.
    precision_DD = np.linalg.inv(peer.get_covariance() * 399 / 400)
    expected_Q = np.min(
        [np.einsum("qd,de,qe->q", asked_QD - m, precision_DD, asked_QD - m) for m in means_CD],
        axis=0,
    )
    np.testing.assert_allclose(found.distances(asked_QD), expected_Q, rtol=2e-3)
    assert fit_gaussian(np.tile(points(3, 0), (9, 1)), np.array(LABELS * 9)) is None
    assert fit_gaussian(points(0, 0), np.array([], dtype=str)) is None


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
    one = Learned(
        Features(train.features.pooled_MND[:1], train.features.logits_MNC[:1], asked.image_NF),
        train.labels_N,
        (HEAD[0],),
        (HEAD[1],),
    )
    found = detector_class("vim").fit(ADAPTER.validate_python({"kind": "vim", "axes": 6}), one)
    assert found is not None
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


def test_a_mixture_is_its_likelihood() -> None:
    asked, found = features(20, 5), fitted("image_mixture", components=2)
    assert isinstance(found, ImageMixture)
    plain_NF = (asked.image_NF - found.mean_F) / found.scale_F @ found.axes_FF
    parts = [
        np.log(w) + multivariate_normal(m, np.diag(v)).logpdf(plain_NF)
        for w, m, v in zip(found.weights_J, found.means_JF, found.variances_JF, strict=True)
    ]
    np.testing.assert_allclose(found.scores(asked), -logsumexp(parts, axis=0), rtol=1e-4)


@pytest.mark.parametrize("kind", DETECTORS.names)
def test_every_detector_is_stored_and_tells_the_far_from_the_near(kind: str) -> None:
    detector, asked = fitted(kind), features(20, 5, far=3)
    again = type(detector).of(detector.tensors())
    np.testing.assert_array_equal(again.scores(asked), detector.scores(asked))
    if kind not in ("energy", "react"):  # which look at the logits, and these do not move
        assert detector.scores(asked).min() > np.quantile(detector.scores(features(99, 1)), 0.9)
    with pytest.raises(KeyError):
        type(detector).of({}) if detector.tensors() else {}["none to miss"]


def test_a_typing_error_lists_the_kinds() -> None:
    with pytest.raises(ValidationError, match="'relative_mahalanobis'"):
        ADAPTER.validate_python({"kind": "mahalanobs"})
    with pytest.raises(ValidationError, match="exports deliver no layer but the last"):
        OodSpec.model_validate({"detectors": [{"kind": "gram"}], "images": 99})


@given(st.integers(0, 2**32))
def test_p_values_count_who_scores_as_high(seed: int) -> None:
    random = np.random.default_rng(seed)
    known_NK, queries_QK = random.normal(size=(40, 1)), random.normal(size=(5, 1)).round(1)
    expected = [(1 + (known_NK[:, 0] >= query).sum()) / 41 for query in queries_QK[:, 0]]
    np.testing.assert_allclose(p_values(known_NK, queries_QK), expected)
    # Of two detectors of which one says nothing the other decides.
    both = np.hstack([known_NK, np.zeros((40, 1))]), np.hstack([queries_QK, np.zeros((5, 1))])
    assert (p_values(*both) >= p_values(known_NK, queries_QK) - 1e-12).all()


def test_a_combination_keeps_the_promise_exactly() -> None:
    """One of 50 photos is refused with 49 calibration images, whatever the detectors' scales."""
    random, refused = np.random.default_rng(0), []
    scales = np.array([1.0, 100.0, 0.01])
    for _ in range(400):
        known_NK = random.standard_cauchy((49, 3)) * scales
        queries_QK = random.standard_cauchy((20, 3)) * scales
        refused.append((p_values(known_NK, queries_QK) <= rate_of(49)).mean())
    assert rate_of(49) == 1 / 50
    assert 0.015 <= np.mean(refused) <= 0.025
    assert rate_of(99) == rate_of(400) == 0.01
    # Any of three detectors may be the one that finds a photo.
    for k in range(3):
        queries_QK = np.zeros((1, 3))
        queries_QK[0, k] = 1e9 * scales[k]
        assert p_values(known_NK, queries_QK) == 1 / 50


def test_the_interval_of_the_rate_is_that_of_simulated_calibrations() -> None:
    low, high = rate_interval(203)
    ordered = np.sort(np.random.default_rng(0).uniform(size=(4000, 203)), axis=1)
    refused = 1 - ordered[:, -2]  # two of 204 ranks are at most 1 %
    np.testing.assert_allclose((low, high), np.quantile(refused, [0.025, 0.975]), rtol=0.15)


def test_far_photos_are_out_and_near_ones_are_not() -> None:
    check = check_of([own.kind for own in DEFAULT])
    assert all(check.is_out(p) for p in check.p_values(features(20, 3, far=5)))
    assert check.is_out(1 / 100)
    assert not check.is_out(2 / 100)
    assert not check.is_out(check.p_values(features(1, 4))[0])


def test_too_few_images_refuse_nothing() -> None:
    assert fit_check(DEFAULT, learned(), features(18, 1)) is None
    assert fit_check(DEFAULT, learned(4), features(50, 1)) is None
    assert fit_check(DEFAULT, learned(60), features(19, 1)) is not None


def test_features_that_no_detector_reads_are_not_missed(tmp_path: Path) -> None:
    """The collector leaves out logits, and members of one trunk have a single embedding."""
    rows = tuple(OodRow(f"{n:064x}", "a", f"g{n}", "calibration") for n in range(5))
    whole = features(5, 1)
    layers = ((np.ones((3, whole.pooled_MND[0].shape[1]), np.float32),), (np.ones(3, np.float32),))
    some = replace(whole, pooled_MND=whole.pooled_MND[:1], logits_MNC=())
    for images in (OodImages(rows, some, *layers), OodImages(rows, whole)):
        images.save(tmp_path)
        assert len(OodImages.load(tmp_path)) == 5
    OodImages(rows, some, layers[0], (np.ones(2, np.float32),)).save(tmp_path)
    with pytest.raises(UserError, match="copy or pack"):
        OodImages.load(tmp_path)


def test_a_bundle_carries_its_check(tmp_path: Path) -> None:
    bundle = pack_whole(tmp_path / "bundle")
    check, images = bundle.ood(), bundle.ood_images()
    assert check is not None
    assert images is not None
    assert bundle.novelty() is None
    assert bundle.spec.ood is not None
    assert bundle.spec.ood.images == check.images == 40
    again = images.fit(bundle.spec.ood.detectors)
    assert again is not None
    np.testing.assert_allclose(again.scores_NK, check.scores_NK, rtol=1e-5)
    card = (bundle.path / "MODEL_CARD.md").read_text()
    assert "refused above the 97.6% quantile of 40 calibration images" in card
    index = bundle.path / "bundle.json"
    raw = json.loads(index.read_text())
    del raw["files"][CHECK]
    index.write_text(json.dumps(raw))
    with pytest.raises(UserError, match=f"does not list {CHECK}"):
        open_bundle(bundle.path)


def test_tensors_that_do_not_fit_the_index_are_refused(tmp_path: Path) -> None:
    check = check_of(["knn", "image"])
    save_check(check, tmp_path)
    spec = OodSpec.model_validate({"detectors": [{"kind": "knn"}, {"kind": "image"}], "images": 99})
    asked = features(5, 7)
    np.testing.assert_array_equal(load_check(tmp_path, spec).scores(asked), check.scores(asked))
    for wrong in (
        spec.model_copy(update={"images": 98}),
        OodSpec.model_validate({"detectors": [{"kind": "image"}, {"kind": "knn"}], "images": 99}),
        OodSpec.model_validate({"detectors": [{"kind": "knn"}], "images": 99}),
    ):
        with pytest.raises(UserError, match="does not hold what the index says"):
            load_check(tmp_path, wrong)
