"""Labels judged out of fold: whole groups, every image, and what combined evidence adds to them."""

import numpy as np
import pytest
from labelled_vectors import labelled_vectors

from skindx.core.errors import UserError
from skindx.review.label_doubts import GroupedKernel, weigh
from skindx_bench.honesty.labels import doubt_order, out_of_fold


def test_combined_evidence_finds_more_planted_errors() -> None:
    found = {"one": 0, "combined": 0}
    for seed in (1, 2):
        vectors_ND, labels_N, groups_N = labelled_vectors(240, seed)
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
    with pytest.raises(UserError, match="all images of one class are in one group"):
        out_of_fold(vectors, np.array([0] * 38 + [1] * 2), groups)


def test_the_order_is_by_the_probability_of_the_given_label() -> None:
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])
    assert doubt_order(np.array([0, 0, 1, 1]), probabilities).tolist() == [1, 2, 3, 0]
