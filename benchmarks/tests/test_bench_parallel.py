"""The bench of parallel forms, and which layers of its network are wide."""

import json
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from skindx_bench.cluster.parallel_arms import agreement, agreement_figure
from skindx_bench.cluster.parallel_rank import AlexNet
from skindx_bench.subjects import run_bench
from skindx_methods.split_layers.owt_form import OwtSettings
from skindx_methods.split_layers.wide_layers import wide_layers

ARMS = ["dense", "fused", "bf16", "factored", "gtopk", "powersgd", "owt", "owt_gtopk"]


def _wide(net: nn.Module, side: int, batch: int, **settings: int) -> list[str]:
    image = torch.empty(1, 3, side, side, device="meta")
    return list(wide_layers(net, image, batch, 4, OwtSettings(**settings)))


def test_the_layers_that_cost_fewer_bytes_split_are_split() -> None:
    with torch.device("meta"):
        alexnet, few = AlexNet(200), AlexNet(2)
        vgg, resnet = timm.create_model("vgg11"), timm.create_model("resnet18")
    for side in (56, 128):
        assert _wide(few, side, 128) == ["classifier.1", "classifier.4"]
    assert _wide(few, 128, 128, min_weights=1)[-1] == "classifier.4"  # two outputs, four ranks
    assert _wide(alexnet, 128, 128)[-1] == "classifier.6"
    # 9,216 x 4,096 weights: a batch of 4,096 rows of 9,216 values is as many.
    assert _wide(alexnet, 128, 4096) == []
    assert _wide(vgg, 224, 128) == ["pre_logits.fc1", "pre_logits.fc2", "head.fc"]
    assert _wide(resnet, 224, 128) == ["fc"]
    assert _wide(resnet, 224, 1024) == []


def test_a_tied_layer_and_one_that_is_passed_twice_stay_whole() -> None:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    twice = nn.Linear(8, 8)
    net = nn.Sequential(first, second, twice, twice, nn.Linear(8, 3), nn.Linear(3, 8))
    found = wide_layers(net, torch.zeros(1, 8), 8, 4, OwtSettings(min_weights=1))
    assert list(found) == ["5"]  # the one before has fewer outputs than there are ranks


def _figures(file: Path, *sets: str) -> dict[str, float]:
    run_bench("parallel", file, sets, smallest=True)
    found = json.loads(file.read_text())["figures"]
    return {name: figure["value"] for name, figure in found.items()}


@pytest.mark.lab
@pytest.mark.distributed
def test_the_smallest_bench_counts_time_bytes_and_weights(lab_here: None, tmp_path: Path) -> None:
    figures = _figures(tmp_path / "parallel.json", "parts=[speed]")
    assert {f"owt_over_{arm}" for arm in ("data", *ARMS) if arm != "owt"} <= figures.keys()
    assert figures["bf16_step_mb"] < 0.6 * figures["fused_step_mb"]
    assert figures["owt_step_mb"] < figures["fused_step_mb"]
    assert figures["owt_weights_share"] < 0.95
    # Left out where all rounds overlap, as they may with layers this small.
    assert 0 <= figures.get("plan_agrees", 0) <= 1
    priced = {*ARMS, "owt_b", "owt_c"} - {"owt_gtopk"}
    assert {f"{arm}_plan_s" for arm in priced} <= figures.keys()
    assert all(figures[f"{arm}_plan_s"] > 0 for arm in priced)


def test_a_plan_agrees_with_what_was_measured_where_the_order_is_clear() -> None:
    measured = {"a": [1.0, 1.1], "b": [1.05, 1.2], "c": [2.0, 2.1], "d": [3.0, 3.5]}
    # The rounds of a and b overlap: their order is not clear, and the pair does not count.
    assert agreement({"a": 3, "b": 1, "c": 4, "d": 9}, measured) == [True] * 5
    assert sorted(agreement({"a": 1, "b": 3, "c": 2, "d": 4}, measured)) == [False, *[True] * 4]
    figure = agreement_figure([True] * 5)
    assert (figure.value, figure.n) == (1, 5)
    assert figure.spread[0] < 1
    assert agreement({"a": 1}, measured) == []


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.distributed
def test_its_other_parts(lab_here: None, tmp_path: Path) -> None:
    figures = _figures(tmp_path / "parallel.json", "parts=[small,accuracy,cube]")
    assert {"alone_over_data_small", "alone_over_owt_small"} <= figures.keys()
    assert {
        f"{arm}_accuracy" for arm in ARMS if arm not in ("dense", "bf16", "factored")
    } <= figures.keys()
    for form in ("keep", "again"):
        found, expected = (figures[f"{form}_fewer_bytes{end}"] for end in ("", "_by_formula"))
        assert found == pytest.approx(expected)
