"""Plans of split layers: beside those of whole ones, written, and drawn."""

import json
from pathlib import Path

import pytest
from some_networks import alexnet
from some_networks import profiles as of_network

from skindx.core.cost.profile import ProfiledLayer
from skindx_methods.plan.choices import PlannedMember, Workload
from skindx_methods.plan.estimate import Machine
from skindx_methods.plan.plan import Plan, make, preset
from skindx_methods.plan.plan_text import plan_values
from skindx_methods.plan.profiles import Profiles
from skindx_methods.plan.saved_plan import write_fragment
from skindx_methods.plan.search import PlanLimits
from skindx_methods.plan.timeline import chrome_events

OWN = alexnet(224, 1000, 128)
WORK = Workload((PlannedMember("m", OWN, 512, epochs=2, images=5120),))


def plan(strategy: str | None = None) -> Plan:
    machine = Machine(of_network(OWN), preset("10gbe:4"))
    return make(WORK, machine, PlanLimits(strategy=strategy, extrapolate=True))


def test_split_layers_stand_beside_whole_ones_and_are_written(tmp_path: Path) -> None:
    made = plan()
    values = plan_values(made)
    best_last = reversed(values["candidates"])
    rows = {row["strategy"]: row for row in best_last if row["ranks"] == 4}
    assert rows["owt"]["step_s"] < rows["fused"]["step_s"]
    assert sum(rows["owt"]["parts"].values()) == pytest.approx(rows["owt"]["step_s"])
    assert made.chosen.choice.strategy.name == "factored"  # sends what meets wide layers instead
    write_fragment(tmp_path / "plan.yaml", plan("owt"))
    assert "kind: owt" in (tmp_path / "plan.yaml").read_text()


def test_a_form_that_is_asked_for_has_its_time() -> None:
    made = plan("owt")
    assert made.chosen.choice.strategy.name == "owt"
    step = made.chosen.first.step
    assert sum(step.parts.values()) == pytest.approx(step.seconds)
    end = max(event["ts"] + event["dur"] for event in chrome_events(step) if event["ph"] == "X")
    assert end == pytest.approx(1e6 * step.seconds)


def test_a_trace_of_an_earlier_version_opens(tmp_path: Path) -> None:
    before = {"name": "a", "forward_s": 1, "backward_s": 2, "parameter_bytes": 4}
    layer = ProfiledLayer.model_validate(before)
    assert (layer.input_bytes, layer.outputs, layer.groups) == (0, 0, 1)
    old = {**before, "forward_spread": 0.1, "backward_spread": 0.1}
    raw = {"scaled_to": "", "networks": [{"name": "n", "copy_s": 0.0, "layers": [old]}]}
    (tmp_path / "trace.json").write_text(json.dumps(raw))
    assert Profiles.read(tmp_path / "trace.json").networks[0].layers == (layer,)
