import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.cost.collectives import Cost, all_gather, fit, ring

LINK = Cost(1e-4, 8e-9)
SIZES = [1 << power for power in range(10, 27, 2)]


@given(st.floats(1e-6, 1e-1), st.floats(1e-11, 1e-7))
def test_a_fit_finds_the_line_that_made_the_samples(alpha_s: float, beta: float) -> None:
    found = fit((size, alpha_s + beta * size) for size in SIZES)
    for size in SIZES:
        assert found(size) == pytest.approx(alpha_s + beta * size, rel=1e-6)


@given(st.integers(0, 1000))
def test_a_fit_withstands_noise_and_outliers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = Cost(5e-4, 1e-8)
    samples = [(size, truth(size) * rng.normal(1, 0.02)) for size in SIZES for _ in range(9)]
    # Two of nine at every size stalled, and at one size all did.
    samples = [
        (size, seconds * 20 if number % 9 < 2 or size == SIZES[4] else seconds)
        for number, (size, seconds) in enumerate(samples)
    ]
    found = fit(samples)
    assert found.alpha_s == pytest.approx(truth.alpha_s, rel=0.1)
    assert found.beta_s_per_byte == pytest.approx(truth.beta_s_per_byte, rel=0.1)


def test_messages_of_less_than_a_kilobyte_do_not_count() -> None:
    large = [(size, LINK(size)) for size in SIZES]
    assert fit([*large, (4, 1e-7), (999, 1e-7)]) == fit(large)


@given(st.lists(st.tuples(st.integers(1000, 10**8), st.floats(1e-6, 10)), min_size=2))
def test_no_term_is_negative(samples: list[tuple[int, float]]) -> None:
    if len({size for size, _ in samples}) < 2:
        return
    found = fit(samples)
    assert found.alpha_s >= 0
    assert found.beta_s_per_byte >= 0


def test_where_a_line_would_fall_or_begin_below_zero_that_term_is_zero() -> None:
    assert fit([(1000, 2.0), (2000, 1.0), (4000, 1.0)]) == Cost(1.0, 0.0)
    found = fit([(1000, 1.0), (2000, 3.0), (4000, 8.0)])
    assert found.alpha_s == 0


@pytest.mark.parametrize("samples", [[], [(5000, 0.1), (5000, 0.2)], [(10, 0.1), (5000, 1.0)]])
def test_one_size_is_refused(samples: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="measure at least two sizes"):
        fit(samples)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"the time of 2000 bytes is {seconds} s")):
        fit([(1000, 1.0), (2000, seconds)])


def steps(cost: Cost) -> tuple[float, float]:
    """How many times the link's latency, and how many times all bytes."""
    shares = (cost.alpha_s / LINK.alpha_s, cost.beta_s_per_byte / LINK.beta_s_per_byte)
    return round(shares[0], 9), round(shares[1], 9)


def test_collectives_cost_what_a_hand_counts() -> None:
    assert steps(ring(LINK, 4)) == (6, 1.5)
    for ranks in (2, 4, 8, 16):
        assert steps(all_gather(LINK, ranks)) == (ranks - 1, ranks - 1)


@pytest.mark.parametrize("collective", [ring, all_gather])
def test_alone_nothing_is_sent(collective: Callable[[Cost, int], Cost]) -> None:
    assert collective(LINK, 1) == Cost(0, 0)
    with pytest.raises(ValueError, match="1 rank or more, not 0"):
        collective(LINK, 0)
