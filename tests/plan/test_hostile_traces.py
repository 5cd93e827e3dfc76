"""Traces, graphs, logs and clusters that were made to hurt: one sentence, and bounded work."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from some_plans import cluster, profile, profiles

from skindx.comm import grouping
from skindx.core.cost import collectives
from skindx.core.cost.assignment import divisors
from skindx.core.cost.collectives import Cost
from skindx.core.cost.profile import MOST_TENSORS, Trace
from skindx.core.errors import UserError
from skindx.plan import search as searching
from skindx.plan.choice import PlannedMember, Workload
from skindx.plan.estimate import Machine
from skindx.plan.logged_runs import read_runs
from skindx.plan.plan import make
from skindx.plan.plan_text import candidates, plan_values, summary
from skindx.plan.public_traces import read_allreduce, read_profiles
from skindx.plan.saved_plan import read_fragment
from skindx.plan.search import PlanLimits
from skindx.plan.trace_plan import PlanRequest, on_other_device, plan_of_trace, read_cluster

DIGITS = "9" * 5000
LARGE = "9" * 4000  # of as many JSON still makes a number

OURS = profiles().model_dump(mode="json")
GRAPH = (
    "node1 -- Linear(in_features=2, out_features=3) -- forward_compute_time=1.0, "
    "backward_compute_time=2.0, activation_size=12.0, parameter_size=36.0"
)
LOG = "[0, 10, 1500.5, 7]\n[1, 2, 1500.5, 7]"


def refused(tmp_path: Path, text: str, name: str = "trace.json") -> str:
    """Return the sentence with which a trace is refused."""
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        plan_of_trace(PlanRequest(PlanLimits(), file, "10gbe:4x2+nvlink"))
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) < 1500
    return sentence


def with_number(text: str) -> list[str]:
    """Return our trace with a number in each place of a layer and of the network."""
    places: list[Callable[[dict[str, Any]], None]] = [
        lambda raw: raw["networks"][0]["layers"][0].update(backward_s="@"),
        lambda raw: raw["networks"][0]["layers"][0].update(activation_bytes="@"),
        lambda raw: raw["networks"][0]["layers"][0].update(parameter_bytes="@", shapes=[]),
        lambda raw: raw["networks"][0]["layers"][0].update(shapes=[["@"]]),
        lambda raw: raw["networks"][0].update(batch="@"),
        lambda raw: raw["networks"][0].update(update_s="@"),
        lambda raw: raw["networks"][0]["at"][0].update(peak_bytes="@"),
        lambda raw: raw["networks"][0]["local"]["dense"].update(base_s="@"),
        lambda raw: raw["networks"][0]["local"]["dense"].update(density="@"),
        lambda raw: raw.update(base_bytes="@"),
        lambda raw: raw.update(cores="@"),
    ]
    made = []
    for change in places:
        raw = json.loads(json.dumps(OURS))
        change(raw)
        made.append(json.dumps(raw).replace('"@"', text))
    return made


@pytest.mark.parametrize(
    "number", [DIGITS, LARGE, "1e308", "1e999", "-1", "NaN", '"' + LARGE + '"']
)
def test_a_number_that_no_machine_has_is_refused_wherever_it_stands(
    tmp_path: Path, number: str
) -> None:
    for text in with_number(number):
        assert "trace.json" in refused(tmp_path, text)
    tensors = {"names": ["a"], "sizes_bytes": [4], "backward_s": [1], "forward_s": "@"}
    assert "trace.json" in refused(tmp_path, json.dumps(tensors).replace('"@"', number))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"networks": ' + "[" * 50_000 + "]" * 50_000 + "}",
        '{"networks": ' + '{"a": ' * 1000 + "1" + "}" * 1001,
        '{"names": ["a"], "names": ["a"]}',
    ],
)
def test_deep_json_is_refused(tmp_path: Path, text: str) -> None:
    refused(tmp_path, text)
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(UserError):
        Trace.read(tmp_path / "trace.json")


def test_more_layers_than_a_plan_is_made_of_are_refused(tmp_path: Path) -> None:
    count = 20_000
    names = {"names": [str(n) for n in range(count)], "sizes_bytes": [4] * count,
             "backward_s": [1.0] * count}  # fmt: skip
    assert "at most 4096" in refused(tmp_path, json.dumps(names))
    layer = {"name": "a", "forward_s": 1, "backward_s": 1, "parameter_bytes": 4}
    many = {"networks": [{"name": "n", "layers": [layer] * count}]}
    assert "at most 4096" in refused(tmp_path, json.dumps(many))
    shapes = {**layer, "shapes": [[1]] * 3000, "parameter_bytes": 12_000}
    two = {"networks": [{"name": "n", "layers": [shapes, {**shapes, "name": "b"}]}]}
    assert "6000 tensors" in refused(tmp_path, json.dumps(two))
    lines = "\n".join(GRAPH.replace("node1 ", f"node{n} ") for n in range(MOST_TENSORS + 1))
    assert "more than 4096 layers" in refused(tmp_path, lines, "graph.txt")
    rows = "\n".join(f"[{n}, 10, 1, 7]" for n in range(MOST_TENSORS + 1))
    assert "more than 4096 layers" in refused(tmp_path, rows, "log")


@pytest.mark.parametrize("number", [DIGITS, "1e308", "1e999", "nan", "-1", "--", "1_0e99"])
def test_numbers_of_other_programs_are_checked_too(tmp_path: Path, number: str) -> None:
    for place in ("1.0", "2.0", "12.0", "36.0"):
        refused(tmp_path, GRAPH.replace(f"={place}", f"={number}"), "graph.txt")
    refused(tmp_path, GRAPH.replace("node1 ", f"node{DIGITS} "), "graph.txt")
    refused(tmp_path, LOG.replace("1500.5", number), "log")
    refused(tmp_path, LOG.replace("10,", f"{DIGITS},"), "log")
    for text in (LOG.replace("7]", f"{number}]"), LOG.replace(" 10,", " 999999999999999,")):
        (tmp_path / "log").write_text(text)
        with pytest.raises(UserError):
            read_runs(tmp_path / "log")


def test_layers_of_one_name_or_of_no_bytes_are_refused(tmp_path: Path) -> None:
    layer = {"name": "a", "forward_s": 1, "backward_s": 1, "parameter_bytes": 4}
    twins = {"networks": [{"name": "n", "layers": [layer, layer]}]}
    assert "one tensor only" in refused(tmp_path, json.dumps(twins))
    slow = {"networks": [{"name": "n", "layers": [{**layer, "forward_s": 1e9}] * 2}]}
    refused(tmp_path, json.dumps(slow))
    refused(tmp_path, LOG.replace("10,", "0,"), "log")
    refused(tmp_path, GRAPH.replace("node1 -- Linear", "node1 -- Input"), "graph.txt")


def test_a_feature_count_of_many_digits_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text(
        GRAPH.replace("out_features=3", f"out_features={DIGITS[:1000]}")
    )
    assert read_profiles(tmp_path / "graph.txt").networks[0].layers[0].outputs == 0


def test_long_lines_are_refused_before_patterns_meet_them(tmp_path: Path) -> None:
    for line in ("[1, 2, 3, " * 50_000, "node1 -- " * 50_000, "x" * 500_000):
        assert "characters" in refused(tmp_path, line, "log")


def test_a_row_of_many_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("[0, 10, 1, " + ", ".join("7" * 300) + "]")
    with pytest.raises(UserError, match="300 times of messages"):
        read_runs(tmp_path / "log")


def test_a_time_with_two_points_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("1000 1.2.3")
    with pytest.raises(UserError, match=r"1\.2\.3"):
        read_allreduce(tmp_path / "log")


def test_many_edges_into_one_node_take_linear_time(tmp_path: Path) -> None:
    nodes = [GRAPH.replace("node1 ", f"node{n} ") for n in range(1, 2001)]
    edges = [f"\tnode{n} -- node2000" for n in range(1, 2000)] * 5
    (tmp_path / "graph.txt").write_text("\n".join(nodes + edges))
    assert read_profiles(tmp_path / "graph.txt").networks[0].layers[-1].input_bytes == 12


@pytest.mark.parametrize(
    "text",
    [
        f"{{nodes: {DIGITS}}}",
        f"{{nodes: {LARGE}}}",
        "{nodes: 100001, links: {between: {alpha_s: 1, beta_s_per_byte: 1}}}",
        "{nodes: 100000, ranks_per_node: 1024, links: {between: {alpha_s: 1, beta_s_per_byte: 1}}}",
        "{nodes: 2, links: {between: {alpha_s: 1.0e+308, beta_s_per_byte: 1}}}",
        "{nodes: 2, links: {between: {alpha_s: 1, beta_s_per_byte: 1.0e-320}}}",
        "{nodes: 2, links: {between: {alpha_s: 1, beta_s_per_byte: 1.0e+300}}}",
        "{nodes: 1, memory_gb: 1.0e+308}",
        "{nodes: 1, price_per_node_hour: 1.0e+308}",
        "{nodes: 1, watts_per_node: 1.0e-320}",
        "{nodes: 1, one_rank_s: 1.0e+300}",
        "{nodes: 1, at_once: 1000000000}",
        "{nodes: 1, corrections: {compute: {factor: 1.0e+300}}}",
        "{nodes: 1, corrections: {compute: {factor: 1.0e-300}}}",
        f"{{nodes: 1, currency: {'x' * 2000}}}",
    ],
)
def test_a_cluster_that_no_one_has_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_cluster(str(tmp_path / "c.yaml"))
    assert len(str(caught.value)) < 6000


@pytest.mark.parametrize(
    "words", ["10gbe:999999999x999999999", "10gbe:100001", "nvlink:2000", "10gbe:" + "9" * 5000]
)
def test_a_preset_of_too_many_ranks_is_refused(words: str) -> None:
    with pytest.raises(UserError):
        read_cluster(words)


def test_a_trace_at_every_limit_makes_a_plan_of_finite_figures(tmp_path: Path) -> None:
    raw = json.loads(json.dumps(OURS))
    [network] = raw["networks"]
    network.update(update_s=1e9, read_s=1e9, batch=10**6, optimizer_bytes=10**15, at=[])
    for layer in network["layers"]:
        layer.update(forward_s=1e8, backward_s=1e8, shapes=[], parameter_bytes=10**14,
                     activation_bytes=10**15, outputs=10**12)  # fmt: skip
    (tmp_path / "trace.json").write_text(json.dumps(raw))
    asked = PlanRequest(
        PlanLimits(extrapolate=True), tmp_path / "trace.json", "10gbe:100000", batch=10**6
    )
    made = plan_of_trace(asked)
    json.dumps(plan_values(made), allow_nan=False)
    assert summary(made)
    assert candidates(made)


def test_hours_and_money_are_numbers_above_zero() -> None:
    for value in (0.0, -1.0, float("nan"), float("inf"), 1e308):
        with pytest.raises(UserError, match="--hours"):
            PlanLimits(hours=value)
        with pytest.raises(UserError, match="--money"):
            PlanLimits(money=value)


def test_a_plan_file_with_endless_times_is_refused(tmp_path: Path) -> None:
    member = "{name: a, step_s: @, half_width: 0.1, parts: {}, images_per_s: 1, epoch_s: 1, "
    member += "seconds: 1, memory_bytes: 1}"
    head = "plan: {format: 1, version: x, dataset: '', cluster: c, nodes: 1, ranks_per_node: 1, "
    for number in ("1.0e+308", ".inf", "-1", "0", LARGE):
        text = head + "seconds: 1, members: [" + member.replace("@", number) + "]}"
        (tmp_path / "plan.yaml").write_text(text)
        with pytest.raises(UserError, match="step_s"):
            read_fragment(tmp_path / "plan.yaml")


@pytest.mark.parametrize("value", [LARGE, "-1", "0", "1e-320"])
def test_a_rate_that_no_device_has_counts_as_none(tmp_path: Path, value: str) -> None:
    part = {"name": "n", "kind": "network", "mode": "training", "precision": "fp32",
            "samples": 1, "flops": 1}  # fmt: skip
    raw = {"bench": "devices", "figures": {"n: samples": {"value": "@"}}, "parts": {"n": part},
           "hardware": {}}  # fmt: skip
    (tmp_path / "d.json").write_text(json.dumps(raw).replace('"@"', value))
    with pytest.raises(UserError):
        on_other_device(profiles(), tmp_path / "d.json", tmp_path / "d.json")


def test_a_plan_of_many_groups_is_an_optimum_still(monkeypatch: pytest.MonkeyPatch) -> None:
    # So slow a network that each tensor goes alone: as many groups as tensors.
    count = 40
    trace = Trace(names=tuple(map(str, range(count))), sizes_bytes=(4,) * count,
                  backward_s=(1.0,) * count)  # fmt: skip
    line = Cost(0.0, 0.25)
    whole = grouping.optimum(trace, line)
    monkeypatch.setattr(grouping, "_WORK", 0)
    few = grouping.optimum(trace, line)
    assert sum(few) == count
    ends = [grouping.simulate(trace, plan, line).finish_s for plan in (whole, few)]
    assert ends[0] == pytest.approx(ends[1])


def test_a_fit_of_many_samples_looks_at_a_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "MOST_FITTED", 30)
    sizes = np.arange(1000, 400_000, 1000)
    line = collectives.fit([(int(size), 0.5 + 2e-6 * size) for size in sizes])
    assert (line.alpha_s, line.beta_s_per_byte) == pytest.approx((0.5, 2e-6))
    more = collectives.fit_overhead([(int(size), 1 + 2e-6 * size) for size in sizes], lambda _: 0.5)
    assert (more.alpha_s, more.beta_s_per_byte) == pytest.approx((0.5, 2e-6))


def test_divisors_are_all_there_are() -> None:
    for ranks in (1, 2, 12, 49, 97, 1024):
        assert divisors(ranks) == tuple(n for n in range(1, ranks + 1) if ranks % n == 0)
    assert len(divisors(99_999_999)) == 48


def test_members_hop_only_over_ranks_that_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_MOST_HOPS", 100)
    members = tuple(PlannedMember(f"m{n}", profile(), 10**6, images=10**9) for n in range(10))
    large = cluster(100_000, alpha_s=1e-4, beta=1e-9, fastest_beta_s_per_byte=None)
    made = make(
        Workload(members),
        Machine(profiles(), large),
        PlanLimits(side_by_side=True, extrapolate=True),
    )
    hopping = [
        one.choice.ranks for one in made.search_result.every if one.choice.strategy.name == "hop"
    ]
    assert hopping
    assert max(hopping) <= 10
