"""Trees: what they learn from planted timings, and what they refuse to be."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_products import ALWAYS_COPY, grid, timed

from skindx_bench.gemm.learning import (
    _LEAST_IN_LEAF,
    DTYPES,
    FEATURES,
    ProductShape,
    TimedProduct,
    TreeLeaf,
    TreeSplit,
    gain,
    held_out_choices,
    learn,
    transposed_wins,
)


@pytest.mark.parametrize(
    "planted",
    [
        lambda shape: shape.k >= 128,
        lambda shape: shape.threads == 2 and shape.m >= 32,
        lambda shape: shape.m > shape.n,
        lambda shape: shape.n < shape.k and shape.m >= 128,
    ],
)
def test_a_tree_finds_the_planted_winner_also_on_held_out_sizes(planted: Any) -> None:
    known = grid(lambda shape: 1.6 if planted(shape) else 0.7)
    tree = learn(known)
    assert not tree.always_nt
    right = [tree.transposes(one.shape) == planted(one.shape) for one in known]
    assert sum(right) >= 0.97 * len(known)
    held = [
        chosen == planted(one.shape)
        for one, chosen in zip(known, held_out_choices(known), strict=True)
    ]
    assert sum(held) >= 0.85 * len(known)


@given(seed=st.integers(0, 10**6), ratio=st.floats(0.2, 1.04))
def test_a_tie_stays_nt(seed: int, ratio: float) -> None:
    random_ = random.Random(seed)
    known = [timed(one.shape, ratio * random_.uniform(0.9, 1.0)) for one in grid(lambda _: 1.0)]
    tree = learn(known)
    assert tree.always_nt
    assert len(tree.nodes) == 1
    assert not any(held_out_choices(known))


@given(seed=st.integers(0, 30))
def test_chance_is_not_learned(seed: int) -> None:
    """Wins that depend on nothing: what is learned must not lose on the timings it has not seen."""
    draws = random.Random(seed)
    known = [timed(one.shape, draws.choice((0.6, 0.6, 0.6, 1.3))) for one in grid(lambda _: 1.0)]
    tree = learn(known)
    if not tree.always_nt:
        chosen = [gain(one) for one in known if tree.transposes(one.shape)]
        assert sum(chosen) > 0


def test_a_few_products_that_win_are_no_reason() -> None:
    known = grid(lambda _: 0.7)
    first = [timed(one.shape, 3.0) for one in known[: _LEAST_IN_LEAF - 1]]
    assert learn([*first, *known[len(first) :]]).always_nt


def test_a_win_holds_in_most_rounds_and_is_no_smaller_than_the_least() -> None:
    shape = ProductShape(8, 8, 8)
    slow = TimedProduct(shape, (2e-3, 1e-3, 1e-3, 1e-3), (1e-3, 1.1e-3, 1.1e-3, 0.5e-3))
    assert gain(slow) == pytest.approx(math.log(2))
    assert not transposed_wins(slow)  # faster in one lucky round alone
    assert transposed_wins(timed(shape, 1.06))
    assert not transposed_wins(timed(shape, 1.04))


def test_what_is_not_finite_is_left_out() -> None:
    known = grid(lambda shape: 2.0 if shape.m >= 128 else 0.5)
    spoiled = TimedProduct(ProductShape(1, 1, 1), (math.nan,) * 4, (1e-3,) * 4)
    assert learn([*known, spoiled]) == learn(known)
    with pytest.raises(ValueError, match="no timing"):
        learn([spoiled])


def test_a_product_outside_of_what_was_timed_is_left_to_nt() -> None:
    tree = learn(grid(lambda shape: 2.0 if shape.k >= 32 else 0.5))
    assert tree.transposes(ProductShape(8, 8, 512))
    assert tree.transposes(ProductShape(100, 100, 300, threads=2))
    for other in (
        ProductShape(8, 8, 513),
        ProductShape(4, 8, 512),
        ProductShape(8, 1024, 512),
        ProductShape(8, 8, 512, blocks=2),
        ProductShape(8, 8, 512, threads=3),
        ProductShape(8, 8, 512, dtype="bfloat16"),
    ):
        assert not tree.transposes(other)


@given(
    m=st.integers(1, 10**6),
    n=st.integers(1, 10**6),
    k=st.integers(1, 10**6),
    blocks=st.integers(0, 1000),
    dtype=st.sampled_from(DTYPES),
)
def test_features_by_hand(m: int, n: int, k: int, blocks: int, dtype: Any) -> None:
    shape = ProductShape(m, n, k, blocks, dtype, 2)
    found = shape.features()
    assert tuple(found) == FEATURES
    assert 2 ** found["m_over_n"] == pytest.approx(m / n)
    assert 2 ** found["n_over_k"] == pytest.approx(n / k)
    assert (found["blocks"] < 0) == (blocks == 0)
    assert shape.operations == 2 * m * n * k * max(1, blocks)


def test_a_tree_by_hand() -> None:
    yes, no = (TreeLeaf(transposed=value, products=1, gain=0.0) for value in (True, False))
    tree = replace(
        ALWAYS_COPY,
        nodes=(
            TreeSplit(feature="m", at=3.0, below=1, above=2),
            no,
            TreeSplit(feature="threads", at=1.0, below=3, above=4),
            yes,
            no,
        ),
    )
    assert tree.leaves == 3
    assert not tree.transposes(ProductShape(8, 5, 5))  # log2 m is at most 3
    assert tree.transposes(ProductShape(9, 5, 5))
    assert not tree.transposes(ProductShape(9, 5, 5, threads=2))
