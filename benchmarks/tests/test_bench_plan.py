import json
import math
import os
from pathlib import Path

import pytest

from skindx_bench.cluster.plan import (
    TCP_FACTOR,
    TCP_SPREAD,
    errors,
    public_runs,
    published_figures,
    published_rows,
    tcp_factor,
)
from skindx_bench.cluster.plan_rows import PlannedRow, figures
from skindx_bench.subjects import run_bench


def test_the_wires_bench_says_what_a_plan_says(tmp_path: Path) -> None:
    run_bench("wires", tmp_path / "wires.json", smallest=True)
    rows = json.loads((tmp_path / "wires.json").read_text())["models"]
    assert set(rows) == {"resnet50 x 1: nvlink:2", "resnet50 x 1: 10gbe:2"}
    for row in rows.values():
        assert {"dense", "fused"} == set(row["shares"])
        for value, low, high in row["shares"].values():
            assert 0 < low < value <= 1.0000001
            assert value <= high + 1e-9
        dense, fused = (row["shares"][name][0] for name in ("dense", "fused"))
        assert fused >= dense * 0.999
    assert rows["resnet50 x 1: nvlink:2"]["exact"] == "dense"


@pytest.mark.lab
@pytest.mark.distributed
def test_the_smallest_plan_bench_predicts_what_it_measures(
    lab_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])  # the bench adds to it
    run_bench("plan", tmp_path / "plan.json", smallest=True)
    written = json.loads((tmp_path / "plan.json").read_text())
    keys = {"step_error_mean", "step_error_max", "interval_coverage", "interval_half_width",
            "chosen_over_best", "order_right"}  # fmt: skip
    assert keys <= set(written["figures"])
    rows = list(written["models"].values())
    assert [row["kind"] for row in rows] == ["fused", "gtopk"]
    # Backward of 30 ms, and at 1 Gbit/s 15 MB from two ranks: 0.12 s at least.
    assert rows[0]["measured_s"] > 0.12
    assert rows[0]["predicted_s"] > 0.03  # backward alone; the links are as they were measured
    assert rows[1]["predicted_s"] < rows[0]["predicted_s"]


def test_figures_of_rows_counted_by_hand() -> None:
    rows = [
        PlannedRow("waiting", "a", "dense", 1.0, 0.1, 1.05, 10, 20),
        PlannedRow("waiting", "a", "fused", 0.8, 0.1, 1.0),
        PlannedRow("waiting", "a", "gtopk", 0.9, 0.1, 0.9),
        PlannedRow("real", "a", "dense", 2.0, 0.1, 2.0),
    ]
    found = figures(rows)
    assert found["step_error_mean"].value == pytest.approx((1 / 21 + 0.2 + 0 + 0) / 4)
    assert found["step_error_max"].value == pytest.approx(0.2)
    assert found["real_step_error_mean"].value == 0
    assert found["interval_coverage"].value == pytest.approx(3 / 4)
    assert found["memory_error_mean"].value == pytest.approx(0.5)
    # Fused is predicted to be the fastest and is not; it and gtopk are ranked wrongly.
    assert found["chosen_over_best"].value == pytest.approx(0.9)
    assert found["order_right"].value == pytest.approx(2 / 3)
    for key in ("step_error_mean", "interval_coverage", "order_right"):
        low, high = found[key].spread
        assert low < found[key].value < high


@pytest.mark.real
def test_public_measurements_are_near_once_one_run_of_the_cluster_is_known(real: Path) -> None:
    folder = real / "traces" / "bcaffe_logdata"
    found = [abs(error) for error in errors(folder).values()]
    assert len(found) == 7
    assert sum(found) / len(found) < 0.05
    # With another run as the one that calibrates it is more: single iterations vary by as much.
    others = [errors(folder, row.run.name) for row in public_runs(folder)]
    means = [sum(map(abs, own.values())) / len(own) for own in others]
    assert sum(means) / len(means) < 0.1


@pytest.mark.real
def test_published_speeds_lie_in_their_intervals_on_ethernet_and_on_infiniband(real: Path) -> None:
    found = published_rows(real / "traces")
    by_name = published_figures(found)
    assert by_name["ethernet_coverage"].value == pytest.approx(8 / 9)
    assert by_name["ethernet_half_width"].value <= 0.2
    assert by_name["infiniband_coverage"].value == pytest.approx(11 / 12)
    assert by_name["infiniband_half_width"].value < 0.1
    # The one outside has an alpha that its authors have tripled.
    outside = [row for row in found if "Ethernet" in row.group and not row.within]
    assert [(row.group, row.kind) for row in outside] == [
        ("10 Gbit Ethernet, 32 GPUs", "per-tensor")
    ]


@pytest.mark.real
def test_the_factor_of_tcp_is_what_public_runs_show(real: Path) -> None:
    found = tcp_factor(real / "traces" / "bcaffe_logdata")
    assert found.value == pytest.approx(TCP_FACTOR, abs=0.005)
    low, high = found.spread
    assert math.sqrt(high / low) - 1 == pytest.approx(TCP_SPREAD, abs=0.03)
