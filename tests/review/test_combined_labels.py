"""Evidence on labels, by hand, and what combining it is worth on made-up images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.review.label_doubts import (
    NAMES,
    GroupedKernel,
    gather,
    plant,
    training_margin,
    weigh,
)
from skindx_bench.honesty.labels import doubt_order, out_of_fold


def _images(count: int, seed: int) -> tuple[Any, Any, Any]:
    """Return vectors, labels and groups of two of three classes, the last of them rare."""
    random = np.random.default_rng(seed)
    labels_N = random.choice(3, count // 2, p=[0.55, 0.35, 0.1]).repeat(2)
    labels_N[:12] = np.arange(3).repeat(4)
    centres = np.random.default_rng(0).normal(0, 1, (3, 12))
    vectors = centres[labels_N] + random.normal(0, 0.9, (count // 2, 12)).repeat(2, axis=0)
    vectors += random.normal(0, 0.3, vectors.shape)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    groups_N = np.array([f"g{n // 2}" for n in range(count)])
    return vectors.astype(np.float32), labels_N, groups_N


def test_combined_evidence_finds_more_planted_errors() -> None:
    found = {"one": 0, "combined": 0}
    for seed in (1, 2):
        vectors_ND, labels_N, groups_N = _images(240, seed)
        random = np.random.default_rng(seed)
        wrong_P = random.choice(240, 12, replace=False)
        labels_N = labels_N.copy()
        labels_N[wrong_P] = (labels_N[wrong_P] + random.integers(1, 3, 12)) % 3
        probabilities_NC, _ = out_of_fold(vectors_ND, labels_N, groups_N)
        order_N = doubt_order(labels_N, probabilities_NC)
        found["one"] += int(np.isin(order_N[:12], wrong_P).sum())
        kernel = GroupedKernel(vectors_ND, groups_N)
        wrong_N, _ = weigh(kernel, vectors_ND, labels_N, groups_N, seed)
        assert ((wrong_N >= 0) & (wrong_N <= 1)).all()
        found["combined"] += int(np.isin(np.argsort(-wrong_N)[:12], wrong_P).sum())
    assert found["combined"] > found["one"]


def test_evidence_has_its_columns_and_a_copy_tells() -> None:
    vectors_ND, labels_N, groups_N = _images(120, 3)
    labels_N = labels_N.copy()
    labels_N[20] = (labels_N[20] + 1) % 3  # its copy keeps the label
    kernel = GroupedKernel(vectors_ND, groups_N)
    own = gather(kernel, vectors_ND, labels_N, groups_N, 0.2)
    assert own.columns_NF.shape == (120, len(NAMES))
    assert np.isfinite(own.columns_NF).all()
    agrees_N = own.columns_NF[:, NAMES.index("group agrees")]
    assert set(np.flatnonzero(agrees_N == agrees_N.min())) == {20, 21}


def test_a_wrong_label_has_a_small_area_under_the_margin() -> None:
    vectors_ND = np.array([[1, 0], [0.99, 0.1], [0.98, 0.2], [0, 1], [0.1, 0.99]], np.float32)
    margin_N = training_margin(vectors_ND, np.array([0, 0, 1, 1, 1]))
    assert margin_N.argmin() == 2
    assert margin_N[2] < 0 < margin_N[[0, 3]].min()


@settings(max_examples=20)
@given(share=st.floats(0.01, 0.3), even=st.floats(0, 1), seed=st.integers(0, 99))
def test_planted_errors_are_errors_and_leave_every_class(
    share: float, even: float, seed: int
) -> None:
    labels_N = np.arange(90) % 3
    random = np.random.default_rng(seed)
    probabilities_NC = random.dirichlet([1, 1, 1], 90)
    swapped_N, wrong_P = plant(labels_N, probabilities_NC, share, even, random)
    assert set(np.flatnonzero(swapped_N != labels_N)) == set(wrong_P)
    assert len(wrong_P) == max(1, round(share * 90))
    assert set(swapped_N[np.setdiff1d(np.arange(90), wrong_P)]) == {0, 1, 2}


def test_an_option_of_an_older_version_says_what_to_do(tmp_path: Path, skindx: Any) -> None:
    for option, instead in (("--combine", "leave it out"), ("--plant=0.1", "bench honesty labels")):
        code, _, err = skindx("audit", tmp_path, "--labels", option)
        assert code == 2
        assert err.startswith(f"error: {option.partition('=')[0]} is gone since 1.0: ")
        assert instead in err


def test_folds_never_let_a_group_judge_itself() -> None:
    """Vectors that tell groups and nothing else: torn groups would give the label away."""
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 4)
    vectors = np.repeat(random.normal(size=(60, 64)), 4, axis=0).astype(np.float32)
    labels = np.repeat(random.integers(0, 2, 60), 4)
    grouped, _ = out_of_fold(vectors, labels, groups.astype(str))
    torn, _ = out_of_fold(vectors, labels, np.arange(240).astype(str))
    assert abs((grouped.argmax(axis=1) == labels).mean() - 0.5) < 0.2
    assert (torn.argmax(axis=1) == labels).mean() > 0.95


def test_every_image_is_judged_and_small_classes_get_fewer_folds() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    labels = np.array([0] * 34 + [1] * 6)
    groups = np.array([f"g{n // 2}" for n in range(40)])
    probabilities, folds = out_of_fold(vectors, labels, groups)
    assert folds == 3
    assert np.allclose(probabilities.sum(axis=1), 1)
    with pytest.raises(UserError, match="all its images in one group"):
        out_of_fold(vectors, np.array([0] * 38 + [1] * 2), groups)


def test_the_order_is_by_the_probability_of_the_given_label() -> None:
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])
    assert doubt_order(np.array([0, 0, 1, 1]), probabilities).tolist() == [1, 2, 3, 0]
