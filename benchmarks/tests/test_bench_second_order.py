import math
from pathlib import Path

import pytest
from ranks import run_ranks

from skindx.core.errors import UserError
from skindx_bench.subjects import run_bench
from skindx_bench.train.second_order import Config, _before, tuned
from skindx_bench.train.second_order_runs import ARMS, Curve, Reached


def _measure(out: str) -> tuple[dict[str, float], list[str]]:
    result = run_bench("second-order", sets=[f"out={out}"], smallest=True)
    written = sorted(file.name for file in Path(out).glob("curves/*"))
    return {key: figure.value for key, figure in result.figures.items()}, written


@pytest.mark.lab
@pytest.mark.distributed
def test_it_tunes_trains_and_times(tmp_path: Path) -> None:
    """In a process of its own, since the bench joins a process group."""
    ((figures, written),) = run_ranks(1, _measure, str(tmp_path), timeout_s=280)
    expected = {"kfac_overhead_step", "eigen_share_p4"}
    for arm in ("kfac", "muon"):
        expected |= {f"{arm}_reached_adamw", f"{arm}_minus_adamw_balanced"}
        if figures[f"{arm}_reached_adamw"]:
            expected |= {f"{arm}_{of}_to_adamw" for of in ("time", "processor_time", "epochs")}
    assert set(figures) == expected
    assert len(written) == 3 * 2  # arms and seeds: the one trial is a run too
    assert 0.25 <= figures["eigen_share_p4"] <= 1
    assert figures["kfac_overhead_step"] > 0


def test_arms_of_an_earlier_result_stay_beside_those_that_are_trained_again() -> None:
    file = Path(__file__).parents[2] / "docs" / "measured" / "second-order-isic9.json"
    settings = Config.load(None, [f"before={file}", "arms=[adamw, muon]", "rates={adamw: 0.01}"])
    models, figures, note = _before(settings)
    assert set(models) == {"sgd", "kfac"}
    assert {name.split("_")[0] for name in figures} == {"sgd", "kfac", "eigen"}
    assert figures["kfac_reached_adamw"].spread[0] > 0.6
    assert note.startswith(" sgd and kfac: measured on 2026-")
    assert settings.rates == {"adamw": 0.01}
    with pytest.raises(UserError, match="rates"):
        Config.load(None, ["rates={adamw: 0}"])


def test_equal_numbers_of_rates_about_the_usual_one() -> None:
    for arm in ARMS.values():
        rates = arm.rates(4)
        assert len(rates) == 4
        assert arm.rate in rates
    assert ARMS["adamw"].rates(3) == [0.000316, 0.001, 0.00316]


@pytest.mark.parametrize(
    ("peak", "chosen", "tried"),
    [(0.001, 0.001, 3), (0.01, 0.01, 5), (0.00316, 0.00316, 4), (1e-9, 1e-5, 6)],
)
def test_a_best_rate_at_an_edge_has_further_ones_tried(
    peak: float, chosen: float, tried: int
) -> None:
    seen: list[float] = []

    def best(rate: float) -> float:
        seen.append(rate)
        return -abs(math.log(rate / peak))

    assert tuned([0.000316, 0.001, 0.00316], best) == pytest.approx(chosen, rel=0.02)
    assert len(seen) == len(set(seen)) == tried


@pytest.mark.parametrize("arms", ["[kfac]", "[sgd, adamw]", "[adamw, adam]"])
def test_arms_that_cannot_be_compared(arms: str) -> None:
    with pytest.raises(UserError, match="arms"):
        Config.load(None, [f"arms={arms}"])


def test_where_no_run_reaches_the_accuracy_the_whole_training_stands_in() -> None:
    curve = Curve((0.5, 0.7, 0.6), (1.0, 2.0, 3.0), (1.5, 2.5, 3.5))
    assert curve.reaches(0.6) == Reached(hit=True, epochs=2, seconds=2.0, processor_seconds=2.5)
    assert curve.reaches(0.9) == Reached(hit=False, epochs=3, seconds=3.0, processor_seconds=3.5)
