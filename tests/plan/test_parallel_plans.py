"""Strategies that `skindx train` does not execute are shown, never chosen, and never written."""

from pathlib import Path

import pytest
from some_networks import alexnet
from some_networks import profiles as of_network

from skindx.core.cost.events import chrome_events
from skindx.core.cost.profile import ProfiledLayer
from skindx.core.errors import UserError
from skindx.plan import search
from skindx.plan.choice import PlannedMember, Workload
from skindx.plan.estimate import Machine
from skindx.plan.plan import Plan, make
from skindx.plan.plan_page import write_page
from skindx.plan.plan_text import candidates, plan_values
from skindx.plan.public_traces import read_profiles
from skindx.plan.saved_plan import write_fragment
from skindx.plan.search import PlanLimits
from skindx.plan.trace_plan import preset
from skindx.training.forms.owt_form import OwtForm
from skindx.training.forms.parallel_form import ParallelForm

OWN = alexnet(224, 1000, 128)
WORK = Workload((PlannedMember("m", OWN, 512, epochs=2, images=5120),))


@pytest.fixture(autouse=True)
def _none_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParallelForm, "executed", False)
    # Which is faster than split layers here, so that they would not be missed.
    others = tuple(pair for pair in search.VARIANTS if pair[0] != "factored")
    monkeypatch.setattr(search, "VARIANTS", others)


def plan(strategy: str | None = None) -> Plan:
    machine = Machine(of_network(OWN), preset("10gbe:4"))
    return make(WORK, machine, PlanLimits(strategy=strategy, extrapolate=True))


def test_what_is_not_executed_is_shown_and_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan()
    assert made.chosen.choice.strategy.executed
    values = plan_values(made)
    best_last = reversed(values["candidates"])
    rows = {row["strategy"]: row for row in best_last if row["ranks"] == 4}
    assert rows["owt"]["step_s"] < values["chosen"]["step_s"]
    assert (rows["owt"]["executed"], rows["owt"]["settings"]) == (False, None)
    assert rows["fused"]["executed"]
    assert sum(rows["model"]["parts"].values()) == pytest.approx(rows["model"]["step_s"])
    assert any("not executed by this version" in row[0] for row in candidates(made)[1])
    assert any("would be faster" in note and "not executed" in note for note in made.notes)
    monkeypatch.setattr(OwtForm, "executed", True)
    made = plan()
    assert made.chosen.choice.strategy.name == "owt"
    write_fragment(tmp_path / "plan.yaml", made)
    assert "kind: owt" in (tmp_path / "plan.yaml").read_text()


@pytest.mark.parametrize("name", ["owt", "model"])
def test_a_strategy_that_is_asked_for_has_its_time_and_is_not_written(
    tmp_path: Path, name: str
) -> None:
    made = plan(name)
    assert made.chosen.choice.strategy.name == name
    assert any(f"{name} is not executed by this version" in note for note in made.notes)
    with pytest.raises(UserError, match=f"{name} is priced and not executed"):
        write_fragment(tmp_path / "plan.yaml", made)
    assert not list(tmp_path.iterdir())
    write_page(tmp_path / "plan.html", made)
    assert (tmp_path / "plan.html").read_text().count("<svg") == 3
    step = made.chosen.first.step
    assert sum(step.parts.values()) == pytest.approx(step.seconds)
    end = max(event["ts"] + event["dur"] for event in chrome_events(step) if event["ph"] == "X")
    assert end == pytest.approx(1e6 * step.seconds)
    assert made.curve[0].speedup == pytest.approx(1.0)
    assert made.curve[-1].ranks >= 8


def test_a_foreign_graph_says_what_goes_into_a_layer_and_how_wide_it_is(tmp_path: Path) -> None:
    node = ("node{} -- {} -- forward_compute_time=1, backward_compute_time=2, activation_size={}, "
            "parameter_size={}\n")  # fmt: skip
    text = node.format(1, "Input", 4800, 0)
    text += node.format(2, "Conv2d(3, 64, kernel_size=(3, 3))", 25600, 7168)
    text += node.format(3, "MaxPool2d(3)", 6400, 0)
    text += node.format(4, "Size(0)", 4, 0)
    text += node.format(5, "Linear(in_features=64, out_features=1000)", 80000, 260000)
    for first, second in ((1, 2), (2, 3), (3, 4), (3, 5)):
        text += f"\tnode{first} -- node{second}\n"
    (tmp_path / "graph.txt").write_text(text)
    [own] = read_profiles(tmp_path / "graph.txt").networks
    named = {layer.name: (layer.input_bytes, layer.outputs) for layer in own.layers}
    assert named["2.Conv2d"] == (4800, 64)
    assert named["5.Linear"] == (6400, 1000)


def test_a_trace_of_an_earlier_version_opens() -> None:
    before = {"name": "a", "forward_s": 1, "backward_s": 2, "parameter_bytes": 4}
    layer = ProfiledLayer.model_validate(before)
    assert (layer.input_bytes, layer.outputs, layer.groups) == (0, 0, 1)
