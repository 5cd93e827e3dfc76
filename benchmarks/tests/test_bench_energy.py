"""The model of joules: by hand, unseen networks stay unseen, its figures on public readings."""

from pathlib import Path

import numpy as np
import pytest

from skindx.core.errors import UserError
from skindx_bench.devices import energy
from skindx_bench.devices.power_model import (
    Board,
    PowerModel,
    Readings,
    TraceRow,
    features,
    fit,
    half_width,
    log_errors,
    read_traces,
    readings_of,
    use_of_time,
)
from skindx_bench.subjects import run_bench

BOARD = Board(200, 1000, 4000)
HEAD = "appName,coreF,memF,time/s,power/W\n"
NETWORKS = ["fc", "googlenet", "resnet", "vgg"]


def rows(arithmetic: float, memory: float, fixed: float, watts: float = 100) -> list[TraceRow]:
    return [
        TraceRow("a", "vgg", BOARD, core, mem, arithmetic / core + memory / mem + fixed, watts)
        for core in (500, 800, 1000)
        for mem in (2000, 4000)
    ]


def made(seed: int = 0, per_network: int = 6, noise: float = 0.02) -> Readings:
    rng = np.random.default_rng(seed)
    names = np.repeat([*NETWORKS, "conv"], per_network)
    count = len(names)
    features_NF = features(*(rng.uniform(0.2, 1, count) for _ in range(4)))
    power = features_NF @ [0.2, 0.5, 0.3] * np.exp(rng.normal(0, noise, count))
    return Readings(names, names, features_NF, power)


def test_shares_of_time_are_those_that_the_seconds_were_made_of() -> None:
    core_use, memory_use = use_of_time(rows(1000, 4000, 2.0))
    # At 1000 MHz and 4000 MHz: 1 s of arithmetic, 1 s of memory and 2 s that no clock changes.
    np.testing.assert_allclose((core_use[-1], memory_use[-1]), (0.25, 0.25), atol=1e-6)
    core_use, memory_use = use_of_time(rows(0, 4000, 0.0))
    np.testing.assert_allclose(core_use, 0, atol=1e-6)
    np.testing.assert_allclose(memory_use, 1, atol=1e-6)


def test_watts_do_not_enter_the_features() -> None:
    low, high = readings_of(rows(1000, 4000, 1.0, 50)), readings_of(rows(1000, 4000, 1.0, 150))
    np.testing.assert_array_equal(low.features_NF, high.features_NF)
    np.testing.assert_allclose(high.power_N, 0.75)


def test_the_fit_finds_the_coefficients() -> None:
    np.testing.assert_allclose(fit(made(noise=0)), [0.2, 0.5, 0.3], atol=1e-9)
    np.testing.assert_allclose(log_errors(np.array([0.2, 0.5, 0.3]), made(noise=0)), 0, atol=1e-9)


def test_joules_by_hand() -> None:
    model = PowerModel((0.1, 0.4, 0.5), float(np.log(2)), "a table")
    found = model.energy(200, 10, core_use=0.25, memory_use=0.2, clocks=(1.0, 0.5))
    assert found.source == "modelled"
    assert found.joules == pytest.approx((0.1 + 0.4 * 0.5 + 0.5 * 0.2 * 0.5) * 200 * 10)
    assert found.interval == pytest.approx((found.joules / 2, found.joules * 2))
    assert "200 W" in found.why


def test_an_interval_weighs_networks_alike() -> None:
    # Nine tenths of the weight: the whole first network, and four fifths of the second.
    many, few = np.full(1000, 0.1), np.array([-0.2, 0.3, 0.4, 0.5, 9.0])
    assert half_width([many, few]) == pytest.approx(0.5)


def test_no_watt_of_the_left_out_network_changes_its_model_or_its_interval() -> None:
    readings = made()
    before = energy._leave_out(readings, NETWORKS, anchored=False)
    left_out = readings.network_N == "vgg"
    power = np.where(left_out, 3 * readings.power_N, readings.power_N)
    after = energy._leave_out(
        Readings(readings.network_N, readings.series_N, readings.features_NF, power),
        NETWORKS,
        anchored=False,
    )
    assert after.widths[NETWORKS.index("vgg")] == before.widths[NETWORKS.index("vgg")]
    at = np.array(before.series) == "vgg"
    # The same modelled watts, near the measured ones before, against three times as many.
    np.testing.assert_allclose(np.array(after.errors)[at], 2 / 3, atol=0.1)


def test_one_reading_takes_away_what_a_network_has_of_its_own() -> None:
    readings = made(noise=0)
    scale = np.where(readings.network_N == "vgg", 1.5, 1.0)
    odd = Readings(
        readings.network_N, readings.series_N, readings.features_NF, readings.power_N * scale
    )
    alone = energy._leave_out(odd, NETWORKS, anchored=False)
    anchored = energy._leave_out(odd, NETWORKS, anchored=True)
    at = np.array(alone.series) == "vgg"
    np.testing.assert_allclose(np.array(alone.errors)[at], 1 / 3, atol=1e-6)
    anchored_at = np.array(anchored.series) == "vgg"
    assert anchored_at.sum() == at.sum() - 1  # the reading itself is not scored
    np.testing.assert_allclose(np.array(anchored.errors)[anchored_at], 0, atol=1e-6)


def test_the_bench_runs_and_says_what_it_needs(tmp_path: Path) -> None:
    result = run_bench("energy", smallest=True)
    assert set(result.figures) >= {"energy_model_error_median", "energy_interval_coverage"}
    with pytest.raises(UserError, match="traces=FOLDER"):
        run_bench("energy")
    with pytest.raises(UserError, match=r"holds no \.csv"):
        read_traces(tmp_path)
    (tmp_path / "gtx980-resnet.csv").write_text(HEAD + "caffe,1,1,0,1\n")
    with pytest.raises(UserError, match="above zero"):
        read_traces(tmp_path)
    (tmp_path / "gtx980-resnet.csv").write_text("appName,coreF\ncaffe,1\n")
    with pytest.raises(UserError, match="download it again"):
        read_traces(tmp_path)
    (tmp_path / "gtx980-resnet.csv").write_text(HEAD + "caffe,1,1,1,1\n")
    with pytest.raises(UserError, match="hold 1 networks"):
        run_bench("energy", None, [f"traces={tmp_path}"])


@pytest.mark.real
def test_the_figures_of_the_public_readings(real: Path) -> None:
    rows = read_traces(real / "traces/dlbench_dvfs")
    assert len(rows) == 208
    assert {row.network for row in rows} >= set(NETWORKS)
    result = energy.run(energy.Config(traces=real / "traces/dlbench_dvfs", resamples=100))
    values = {key: figure.value for key, figure in result.figures.items()}
    assert 0.85 <= values["energy_interval_coverage"] <= 0.95
    assert values["energy_one_reading_error_median"] <= 0.10
    assert values["energy_model_error_median"] == pytest.approx(0.152, abs=0.005)
