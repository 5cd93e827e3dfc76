import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from some_plans import cluster, profile, profiles

from skindx.core.errors import UserError
from skindx_methods.plan import plan as guidelines
from skindx_methods.plan.choices import PlannedMember, Workload
from skindx_methods.plan.estimate import Machine
from skindx_methods.plan.plan import Plan, make
from skindx_methods.plan.plan_text import plan_values
from skindx_methods.plan.profiles import Profiles
from skindx_methods.plan.saved_plan import (
    Happened,
    Predicted,
    compare,
    happened_of,
    learnt,
    merged,
    read_fragment,
    write_fragment,
)
from skindx_methods.plan.search import PlanLimits
from skindx_methods.plan.timeline import chrome_events


@pytest.fixture(scope="module")
def plan() -> Plan:
    work = Workload((PlannedMember("one", profile(), 32, epochs=2, images=320),
                     PlannedMember("two", profile(), 32, epochs=3, images=320)))  # fmt: skip
    where = cluster(4, price_per_node_hour=2.0, watts_per_node=400, memory_gb=1)
    return make(work, Machine(profiles(), where), PlanLimits())


def test_json_has_its_keys_for_every_candidate_and_parts_that_sum(plan: Plan) -> None:
    values = json.loads(json.dumps(plan_values(plan), allow_nan=False))
    assert len(values["candidates"]) > 10
    for row in (*values["candidates"], values["chosen"]):
        assert row["low_s"] < row["step_s"] < row["high_s"]
        assert row["images_per_s"] == pytest.approx(row["batch"] / row["step_s"])
        assert sum(row["parts"].values()) == pytest.approx(row["step_s"])
        assert row["money"] == pytest.approx(2 * row["nodes"] * row["total_s"] / 3600)


def test_a_timeline_is_what_perfetto_opens(plan: Plan) -> None:
    events = chrome_events(plan.chosen.first.step)
    work = [event for event in events if event["ph"] == "X"]
    assert {"forward", "backward", "update"} <= {event["name"] for event in work}
    end = max(event["ts"] + event["dur"] for event in work)
    assert end == pytest.approx(1e6 * plan.chosen.first.step_s)
    for row in {event["tid"] for event in work}:
        own = sorted(
            (event["ts"], event["ts"] + event["dur"]) for event in work if event["tid"] == row
        )
        assert all(before[1] <= after[0] + 0.01 for before, after in pairwise(own))


def test_a_plan_becomes_settings_and_is_refused_where_it_does_not_belong(
    plan: Plan, tmp_path: Path
) -> None:
    write_fragment(tmp_path / "plan.yaml", plan)
    fragment, predicted = read_fragment(tmp_path / "plan.yaml")
    assert [member.name for member in predicted.members] == ["one", "two"]
    raw = {"exchange": {"kind": "gtopk", "density": 0.1}, "recipe": {"epochs": 3},
           "members": [{"name": "one", "recipe": {"batch": 4}}]}  # fmt: skip
    settings = merged(raw, fragment)
    assert settings["exchange"] == fragment["exchange"]
    assert settings["recipe"] == {"epochs": 3, "accumulate": 1}
    assert settings["members"][0]["recipe"] == {"batch": 4, "accumulate": 1}
    for change, words in (
        (("format: 1", "format: 7"), "format 7"),
        ((f"version: {predicted.version}", "version: 0.0.1"), "made by skindx 0.0.1"),
        (("plan:", "plans:"), "is not a plan"),
    ):
        text = (tmp_path / "plan.yaml").read_text().replace(*change)
        (tmp_path / "other.yaml").write_text(text)
        with pytest.raises(UserError, match=words):
            read_fragment(tmp_path / "other.yaml")


def test_what_happened_corrects_the_next_plan(plan: Plan) -> None:
    predicted = Predicted.of(plan)
    first = predicted.members[0]
    took = Happened("one", first.step_s * 1.1, 1.0, 0.0, 1e6, 2)
    [pair] = compare(predicted, [took, Happened("other", 1, 1, 0, 1, 1)])
    assert pair.error == pytest.approx(0.1)
    corrected = learnt(plan.machine.cluster, [pair])
    again = make(plan.workload, Machine(plan.machine.profiles, corrected), PlanLimits())
    assert again.chosen.first.step_s == pytest.approx(took.step_s, rel=0.01)
    disturbed = compare(predicted, [Happened("one", first.step_s * 50, 1.0, 0.0, 1e6, 2)])
    with pytest.raises(UserError, match="correction would be wrong"):
        learnt(plan.machine.cluster, disturbed)
    with pytest.raises(UserError, match="no member of the plan has finished"):
        compare(predicted, [])


def test_a_history_tells_steps_without_the_first_epoch() -> None:
    rows = [{"pictures_per_s": 1.0, "wait_share": 0.9, "memory_gb": 0.5},
            {"pictures_per_s": 100.0, "wait_share": 0.1, "memory_gb": 0.6}]  # fmt: skip
    found = happened_of("m", rows, images=320, batch=32)
    assert found == Happened("m", pytest.approx(0.32), 100.0, pytest.approx(0.032), 6e8, 2)
    assert happened_of("m", [], 320, 32) is None


def test_guidelines_as_printed() -> None:
    ranks = guidelines.ranks_that_pay(0.05, 0.8)
    efficiency = [1.05 / (1 + 0.05 * count) for count in (ranks, ranks + 1)]
    assert efficiency[0] >= 0.8 > efficiency[1]
    assert guidelines.ranks_that_pay(0.0, 0.8) == 0


@pytest.mark.parametrize(
    "text", ["", "hello", "{", '{"networks": []}', '{"format": 9, "networks": []}']
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(UserError, match=r"trace\.json"):
        Profiles.read(tmp_path / "trace.json")


def test_a_trace_and_a_cluster_are_priced_without_torch_and_without_a_dataset(
    tmp_path: Path,
) -> None:
    raw = {"networks": [{"name": "two", "batch": 16, "layers": [
        {"name": "conv", "forward_s": 1e-3, "backward_s": 2e-3, "parameter_bytes": 4000},
        {"name": "fc", "forward_s": 3e-3, "backward_s": 4e-3, "parameter_bytes": 8000},
    ]}]}  # fmt: skip
    (tmp_path / "trace.json").write_text(json.dumps(raw))
    cluster(4, links={}).write(tmp_path / "cluster.yaml")
    (tmp_path / "torch.py").write_text("raise ImportError('there is no torch')")
    words = ["plan", "make", "--trace", "trace.json", "--cluster", "cluster.yaml", "--strategy",
             "per-tensor", "--json", "out.json", "--batch", "16"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "skindx", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [row] = json.loads((tmp_path / "out.json").read_text())["candidates"]
    assert row["strategy"] == "per-tensor"
    # Forward 4 ms, backward 6 ms of which the first message hides nothing but 2 ms.
    assert row["step_s"] == pytest.approx(0.004 + 0.004 + 0.9 + 0.5)
    assert row["batch"] == 64
