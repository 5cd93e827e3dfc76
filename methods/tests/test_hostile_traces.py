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
from skindx.core.cost.collectives import Cost
from skindx.core.cost.profile import Trace
from skindx.core.errors import UserError
from skindx_methods.kfac.sharing import divisors
from skindx_methods.plan import search as searching
from skindx_methods.plan.choices import PlannedMember, Workload
from skindx_methods.plan.estimate import Machine
from skindx_methods.plan.plan import PlanRequest, make, plan_of_trace, read_cluster
from skindx_methods.plan.plan_text import candidates, plan_values, summary
from skindx_methods.plan.saved_plan import read_fragment
from skindx_methods.plan.search import PlanLimits

DIGITS = "9" * 5000
LARGE = "9" * 4000  # of as many JSON still makes a number

OURS = profiles().model_dump(mode="json")


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


def test_more_layers_than_a_plan_is_made_of_are_refused(tmp_path: Path) -> None:
    count = 20_000
    layer = {"name": "a", "forward_s": 1, "backward_s": 1, "parameter_bytes": 4}
    many = {"networks": [{"name": "n", "layers": [layer] * count}]}
    assert "at most 4096" in refused(tmp_path, json.dumps(many))
    shapes = {**layer, "shapes": [[1]] * 3000, "parameter_bytes": 12_000}
    two = {"networks": [{"name": "n", "layers": [shapes, {**shapes, "name": "b"}]}]}
    assert "6000 tensors" in refused(tmp_path, json.dumps(two))


def test_layers_of_one_name_or_of_no_bytes_are_refused(tmp_path: Path) -> None:
    layer = {"name": "a", "forward_s": 1, "backward_s": 1, "parameter_bytes": 4}
    twins = {"networks": [{"name": "n", "layers": [layer, layer]}]}
    assert "two tensors have the same name" in refused(tmp_path, json.dumps(twins))
    slow = {"networks": [{"name": "n", "layers": [{**layer, "forward_s": 1e9}] * 2}]}
    refused(tmp_path, json.dumps(slow))


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
