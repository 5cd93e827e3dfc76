"""The OOD check: each detector's formula, what is promised, and its place in a bundle."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from some_features import LABELS, features, learned, points
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
    ImageMixture,
    ImageMixtureSettings,
    Mahalanobis,
    fit_gaussian,
)
from skindx.models.ood.stored_check import CHECK, OodImages, OodRow, load_check, save_check

ADAPTER: TypeAdapter[AnyDetector] = TypeAdapter(AnyDetector)


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


def test_axes_in_half_precision_measure_the_same_distance() -> None:
    known = learned()
    whole = fit_gaussian(known.features.embeddings, known.labels_N)
    found = Mahalanobis.fit(ADAPTER.validate_python({"kind": "mahalanobis"}), known)
    assert whole is not None
    assert found is not None
    assert (found.axes_AD.dtype, found.means_CD.dtype) == (np.float16, np.float32)
    for asked in (features(50, 5), features(50, 6, far=5)):
        distances_N = whole.distances(asked.embeddings)
        np.testing.assert_allclose(found.scores(asked), distances_N, rtol=2e-3)


def test_a_mixture_is_its_likelihood() -> None:
    asked, found = features(20, 5), ImageMixture.fit(ImageMixtureSettings(components=2), learned())
    assert found is not None
    plain_NF = (asked.image_NF - found.mean_F) / found.scale_F @ found.axes_FF
    parts = [
        np.log(w) + multivariate_normal(m, np.diag(v)).logpdf(plain_NF)
        for w, m, v in zip(found.weights_J, found.means_JF, found.variances_JF, strict=True)
    ]
    np.testing.assert_allclose(found.scores(asked), -logsumexp(parts, axis=0), rtol=1e-4)


def test_a_typing_error_lists_the_kinds() -> None:
    with pytest.raises(ValidationError, match=r"you mean 'mahalanobis'\? Valid: image_mixture,"):
        ADAPTER.validate_python({"kind": "mahalanobs"})


@given(st.integers(0, 2**32))
def test_p_values_count_who_scores_as_high(seed: int) -> None:
    random = np.random.default_rng(seed)
    known_NK, queries_QK = (random.normal(size=(n, 1)).round(1) for n in (40, 5))
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
    with pytest.raises(UserError, match="copy the whole bundle"):
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
    check = check_of(["mahalanobis", "image_mixture"])
    save_check(check, tmp_path)
    near, image = {"kind": "mahalanobis"}, {"kind": "image_mixture"}
    spec = OodSpec.model_validate({"detectors": [near, image], "images": 99})
    asked = features(5, 7)
    np.testing.assert_array_equal(load_check(tmp_path, spec).scores(asked), check.scores(asked))
    for wrong in (
        spec.model_copy(update={"images": 98}),
        OodSpec.model_validate({"detectors": [image, near], "images": 99}),
        OodSpec.model_validate({"detectors": [near], "images": 99}),
    ):
        with pytest.raises(UserError, match="differs from its description in the index"):
            load_check(tmp_path, wrong)
