"""Times on another device: ratios of common networks by hand, and files that cannot be used."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from some_plans import profile, profiles

from skindx.core.cost.profile import LocalWork, Rates
from skindx.core.errors import UserError
from skindx.plan.search import PlanLimits
from skindx.plan.trace_plan import ONE_NETWORK, PlanRequest, on_other_device, plan_of_trace


def written(
    file: Path,
    rates: dict[str, float],
    *,
    bandwidth: float | None = 10.0,
    precision: str = "fp32",
    flops: float = 1e9,
    **hardware: str,
) -> Path:
    """Write what `skindx bench devices` writes, with samples a second by network."""
    keys = {name: f"{name}, {precision}, training" for name in rates}
    part = {"kind": "network", "mode": "training", "precision": precision}
    values: dict[str, Any] = {
        "bench": "devices",
        "hardware": {"device": file.stem, "kind": "cpu", **hardware},
        "parts": {
            key: {**part, "name": name, "samples": 8, "flops": flops} for name, key in keys.items()
        },
        "figures": {f"{keys[name]}: samples": {"value": rate} for name, rate in rates.items()},
    }
    if bandwidth is not None:
        values["figures"]["memory bandwidth"] = {"value": bandwidth}
    file.write_text(json.dumps(values))
    return file


def test_ratios_of_common_networks_by_hand(tmp_path: Path) -> None:
    here = written(tmp_path / "desk.json", {"a": 10, "b": 40, "only here": 1})
    there = written(
        tmp_path / "server.json", {"a": 20, "b": 320}, bandwidth=50.0, kind="cuda", device="H"
    )
    own = profile(
        update_s=1.0,
        local={"topk": LocalWork(base_s=2.0, merge_s=1.0)},
        rates=Rates(product_flop_s=1e9, memory_bytes_s=1e9, eigen_s=((64, 4.0),), layer_s=1.0),
    )
    moved = on_other_device(profiles(own), here, there)
    (network,) = moved.networks
    # 2 and 8 times as fast: 4 times in the geometric mean.
    assert network.compute_s == pytest.approx(own.compute_s / 4)
    assert network.update_s == pytest.approx(1 / 5)
    assert network.local["topk"].merge_s == pytest.approx(1 / 5)
    assert network.rates is not None
    assert network.rates.eigen_s == ((64, pytest.approx(1.0)),)
    assert network.rates.product_flop_s == pytest.approx(4e9)
    # Logarithms -log 2 and -log 8: standard deviation log 4 / sqrt 2, and that of their mean.
    assert network.spread == pytest.approx(math.log(4) / math.sqrt(2) * math.sqrt(1.5))
    assert network.read_s == own.read_s
    assert (moved.device, moved.scaled_to) == ("cuda", "H")


def test_an_update_that_multiplies_is_moved_as_computing_is(tmp_path: Path) -> None:
    here = written(tmp_path / "desk.json", {"a": 10, "b": 40})
    there = written(tmp_path / "server.json", {"a": 20, "b": 320}, bandwidth=50.0)
    for optimizer, ratio in (("adamw", 5), ("muon", 4), ("../none", 5)):
        own = profile(update_s=1.0, optimizer=optimizer)
        (network,) = on_other_device(profiles(own), here, there).networks
        assert network.update_s == pytest.approx(1 / ratio)


def test_the_same_device_changes_no_time(tmp_path: Path) -> None:
    here = written(tmp_path / "desk.json", {"a": 10, "b": 40})
    (network,) = on_other_device(profiles(profile()), here, here).networks
    assert network.layers == profile().layers
    assert network.spread == profile().spread


def test_a_plan_says_the_device_and_is_less_certain(tmp_path: Path) -> None:
    profiles(profile()).write(tmp_path / "trace.json")
    here = written(tmp_path / "desk.json", {"a": 10})
    there = written(tmp_path / "server.json", {"a": 20}, bandwidth=None)

    def plan(devices: tuple[Path, Path] | None) -> Any:
        asked = PlanRequest(PlanLimits(), tmp_path / "trace.json", "10gbe:1", devices=devices)
        return plan_of_trace(asked)

    known, other = plan(None), plan((here, there))
    assert other.chosen.first.step_s == pytest.approx(known.chosen.first.step_s / 2)
    assert other.chosen.half_width > 1.5 * ONE_NETWORK > known.chosen.half_width
    assert any("scaled to server" in note for note in other.notes)


def test_files_that_have_nothing_in_common_are_one_sentence(tmp_path: Path) -> None:
    here = written(tmp_path / "desk.json", {"a": 10})
    for other in (
        written(tmp_path / "other.json", {"b": 10}),
        written(tmp_path / "half.json", {"a": 10}, precision="bf16"),
        written(tmp_path / "small.json", {"a": 10}, flops=1e8),
    ):
        with pytest.raises(UserError, match="no training of the same network"):
            on_other_device(profiles(profile()), here, other)
    broken = {
        "no.json": ("", "is not valid JSON"),
        "list.json": ("[]", "must hold a JSON object, not a list"),
        "loader.json": ('{"bench": "loader"}', "was not written by"),
        "nan.json": (
            json.dumps({**json.loads(here.read_text()), "figures": {"x": {"value": math.nan}}}),
            "NaN is no number",
        ),
    }
    for name, (text, message) in broken.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=message):
            on_other_device(profiles(profile()), tmp_path / name, here)
    with pytest.raises(UserError, match="does not exist"):
        on_other_device(profiles(profile()), here, tmp_path / "missing.json")
