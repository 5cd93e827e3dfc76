"""Evidence on labels, by hand, and what combining it is worth on made-up images."""

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from labelled_vectors import labelled_vectors

from skindx.review.label_doubts import (
    NAMES,
    GroupedKernel,
    gather,
    plant,
    training_margin,
)


def test_evidence_has_its_columns_and_a_copy_tells() -> None:
    vectors_ND, labels_N, groups_N = labelled_vectors(120, 3)
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
    for option, instead in (("--combine", "remove it"), ("--plant=0.1", "bench honesty labels")):
        code, _, err = skindx("audit", tmp_path, "--labels", option)
        assert code == 2
        assert err.startswith(f"error: {option.partition('=')[0]} was removed in skindx 1.0")
        assert instead in err
