import pytest
from ranks import run_ranks

from skindx_bench.subjects import run_bench


def _measure() -> dict[str, float]:
    result = run_bench("checkpoint-stall", smallest=True)
    return {key: figure.value for key, figure in result.figures.items()}


@pytest.mark.lab
@pytest.mark.distributed
def test_checkpoints_behind_the_steps_and_waited_for() -> None:
    """In a process of its own, since the bench joins a process group."""
    (figures,) = run_ranks(1, _measure, timeout_s=280)
    shares = {f"checkpoint_{what}_share" for what in ("stall", "cost")}
    assert set(figures) == shares | {f"{share}_waited_for" for share in shares}
    assert all(value > 0 for name, value in figures.items() if "cost" in name)
