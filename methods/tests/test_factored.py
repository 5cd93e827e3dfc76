from typing import Any

import pytest
from factored_ranks import INSIDE, OUTSIDE, all_cases
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks

from skindx.comm.fabric import ring_bytes
from skindx_methods.factored.factored import factors_pay

pytestmark = pytest.mark.distributed

RANKS = 3
SMALL = 4 * (OUTSIDE + 3 * OUTSIDE + 3 + 3)
"""Bytes of all gradients but the wide weight's."""


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return run_ranks(RANKS, all_cases)


def factors(rows: int) -> int:
    """Bytes that a rank sends of the wide layer: rows and a flag, to two others."""
    return 4 * 2 * (rows * (INSIDE + OUTSIDE) + 1)


def agreement() -> int:
    """Two words of the machine, rows and a type, to two others."""
    return 8 * 2 * 4


def dense(size: int) -> int:
    return ring_bytes(size, RANKS)


WIDE = 4 * INSIDE * OUTSIDE
SUMMED = dense(WIDE) + dense(SMALL)
ROUND = 8  # of the ring's bytes, group by group


@pytest.mark.parametrize(
    ("case", "sent"),
    [
        ("first", SUMMED + agreement()),
        ("second", factors(2) + dense(SMALL)),
        ("fewer rows on one rank", factors(2) + dense(SMALL)),
        ("a layer that the loss does not reach", factors(2) + dense(SMALL)),
        ("recomputed", factors(2) + dense(SMALL)),
        ("more rows on one rank", factors(2) + SUMMED + agreement()),
        ("as many rows again", factors(3) + dense(SMALL)),
        ("two passes", factors(3) + dense(SMALL)),
        ("after that", factors(3) + dense(SMALL)),
        ("after these", factors(3) + dense(SMALL)),
        ("too many rows to pay", factors(3) + SUMMED + agreement()),
        ("and from then on", SUMMED),
    ],
)
def test_a_step_gives_the_mean_and_sends_what_the_formula_says(
    found: list[dict[str, Any]], case: str, sent: int
) -> None:
    for result in found:
        apart, counted = result[case]
        assert apart < 3e-6
        assert counted == pytest.approx(sent, abs=ROUND)


def test_weights_that_send_factors_come_first(found: list[dict[str, Any]]) -> None:
    assert found[0]["order"] == ["wide.weight", "head.bias", "head.weight", "wide.bias", "other"]


def test_a_layer_that_is_used_twice_counts_the_rows_of_both(found: list[dict[str, Any]]) -> None:
    for result in found:
        (first, _), (second, sent) = result["twice"]
        assert max(first, second) < 3e-6
        assert sent == pytest.approx(factors(4) + dense(SMALL), abs=ROUND)


def test_factors_that_are_not_finite_are_refused_by_all(found: list[dict[str, Any]]) -> None:
    assert [result["not finite"][0] for result in found] == [None] * RANKS


def test_a_copy_of_the_network_trains_by_itself(found: list[dict[str, Any]]) -> None:
    assert all(result["copy"] for result in found)


def test_a_failed_forward_pass_leaves_the_weight_trained(found: list[dict[str, Any]]) -> None:
    assert all(result["failed"] for result in found)


def test_ranks_that_may_round_otherwise_sum_everything(found: list[dict[str, Any]]) -> None:
    for result in found:
        (_, first), (apart, second) = result["other machines"]
        assert apart < 3e-6
        assert first == pytest.approx(SUMMED + agreement(), abs=ROUND)
        assert second == pytest.approx(SUMMED, abs=ROUND)


def test_another_use_of_the_weight_is_refused(found: list[dict[str, Any]]) -> None:
    assert all("is used outside its own layer" in result["beside"] for result in found)


@given(*(st.integers(1, 5000) for _ in range(3)), st.integers(2, 64))
def test_factors_are_taken_only_where_they_halve_the_bytes(
    rows: int, inside: int, outside: int, ranks: int
) -> None:
    sent = (ranks - 1) * rows * (inside + outside) * 4
    gradient = 2 * (ranks - 1) / ranks * inside * outside * 4
    assert factors_pay(rows, inside, outside, ranks) == (2 * sent <= gradient)
    assert not factors_pay(rows, inside, outside, 1)
