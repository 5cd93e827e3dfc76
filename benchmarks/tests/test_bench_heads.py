import pytest
from ranks import run_ranks

from skindx_bench.subjects import run_bench


def _measure() -> dict[str, float]:
    result = run_bench("heads", smallest=True)
    return {key: figure.value for key, figure in result.figures.items()}


@pytest.mark.lab
@pytest.mark.distributed
def test_both_arms_answer_the_same() -> None:
    """In a process of its own, since the bench joins a process group."""
    (figures,) = run_ranks(1, _measure, timeout_s=280)
    assert set(figures) == {
        "shared_over_separate",
        "cached_over_recomputed",
        "largest_difference",
    }
    assert figures["largest_difference"] <= 1e-6
    assert figures["shared_over_separate"] > 0
