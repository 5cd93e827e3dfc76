import json
import os
from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx_bench.cluster.exchange import Config, choice
from skindx_bench.cluster.exchange_rows import ExchangeRow, markdown
from skindx_bench.cluster.gradient_load import heavy_tailed, load_of
from skindx_bench.subjects import run_bench

KEYS = [
    "gtopk_over_fp32",
    "gtopk_over_bf16",
    "gtopk_over_powersgd4",
    "local_ms",
    "select_over_memory_limit",
    "gtopk_over_topk_p2",
    "fused_over_best",
    "fused_over_zero0",
    "hierarchical_over_flat",
]
KINDS = [
    "`fused` in one message",
    "the same, `wire: bf16`",
    "`fused` behind backward",
    "`hierarchical`",
    "`multicolor`",
    "`powersgd`, rank 4",
    "`topk`",
    "`gtopk`",
]
ELEMENTS = 469_688
"""Of test_resnet."""
K = 470


@pytest.mark.lab
@pytest.mark.distributed
def test_every_kind_has_a_row_and_its_bytes_are_those_of_the_interface(
    lab_here: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])  # the bench adds to it
    file, out = tmp_path / "exchange.json", tmp_path / "out"
    run_bench("exchange", file, [f"out={out}"], smallest=True)
    printed = capsys.readouterr().out
    written = json.loads(file.read_text())
    assert list(written["figures"]) == KEYS
    assert all(figure["value"] > 0 for figure in written["figures"].values())
    rows = {row["name"]: row for row in written["models"].values() if "Full" in row["part"]}
    dense = 4 * ELEMENTS  # 2 (P - 1) / P of it is all of it at two ranks
    assert rows["dense fp32"]["sent_bytes"] == dense
    assert rows["dense bf16"]["sent_bytes"] == dense / 2
    assert rows["topk"]["sent_bytes"] == rows["gtopk"]["sent_bytes"] == 8 * K
    for name, row in rows.items():
        # Headers of packets and acknowledgements, and some small packets of the barrier.
        assert row["sent_bytes"] <= row["wire_bytes"] <= 1.15 * row["sent_bytes"] + 8192, name
        assert row["floor_ms"] == pytest.approx(row["sent_bytes"] / 125_000)
        assert row["total_ms"]["n"] == row["local_ms"]["n"] == 2
    levels = {row["name"]: row for row in written["models"].values() if "Two" in row["part"]}
    assert levels["hierarchical"]["wire_bytes"] < 0.75 * levels["flat ring"]["wire_bytes"]
    for shown in ("gtopk", "powersgd rank 4", "multicolor", "DDP, 25 MB", "10 Gbit/s is out of"):
        assert shown in printed
    assert "| gtopk |" in (out / "exchange.md").read_text()
    chosen = (out / "exchange.md").read_text().partition("\n\n")[0]
    assert chosen.count("\n") == 1 + len(KINDS)
    assert all(f"\n| {kind}" in chosen for kind in KINDS)
    assert (out / "exchange.png").read_bytes().startswith(b"\x89PNG")


def test_a_load_has_the_networks_shapes_and_shares_out_its_operations() -> None:
    load = load_of("test_resnet")
    assert load.elements == ELEMENTS
    assert sum(load.work.values()) == pytest.approx(1)
    first = next(iter(load.shapes))
    # Its last tensor of backward: a convolution on large images, for its size it takes long.
    assert load.sizes[-1] / load.elements < load.work[first]


def test_large_elements_are_partly_common_to_two_ranks() -> None:
    sizes, k = [4000, 6000], 100
    first, again, second = (heavy_tailed(sizes, rank).abs() for rank in (0, 0, 1))
    assert first.equal(again)
    top = [set(gradient.topk(k).indices.tolist()) for gradient in (first, second)]
    assert 10 < len(top[0] & top[1]) < 90
    assert first.topk(k).values.sum() > 0.1 * first.sum()


def test_network_time_is_what_local_work_leaves() -> None:
    row = ExchangeRow("a part", "gtopk", [0.3, 0.5, 0.4], [0.1, 0.2, 0.2], 2e6, 2.1e6, 0.016)
    assert row.network is not None
    assert row.network.value == pytest.approx(200)
    bare = ExchangeRow("another", "per tensor", [0.3, 0.5])
    text = markdown([row, bare])
    assert "| gtopk | 400.0 [350.0, 450.0] | 200.0 [150.0, 200.0] | 200.0 " in text
    assert "| 16.0 | 2.000 | 2.100 |" in text
    assert "| per tensor | 400.0 [350.0, 450.0] |  |  |  |  |  |" in text


def test_the_choice_leaves_backward_and_parts_of_an_exchange_out() -> None:
    behind = ExchangeRow(
        "Fused", "any name", [1.6, 1.8, 1.7], hidden_s=1.5, advice="fused", setting="1000 Mbit/s"
    )
    part = ExchangeRow("Communication alone", "gtopk", [0.1, 0.1])
    lines = choice([behind, part]).splitlines()
    assert len(lines) == 3
    assert "| 1000 Mbit/s | 200 [150, 250] |" in lines[2]
    assert choice([part]) == ""


def test_settings_that_measure_nothing_are_refused() -> None:
    with pytest.raises(UserError, match=r"'rounds' = 1"):
        Config.load(None, ["rounds=1"])
    with pytest.raises(UserError, match=r"'parts\.0' = 'ful'"):
        Config.load(None, ["parts=[ful]"])
    with pytest.raises(UserError, match=r"'alone_ranks\.1' = 1"):
        Config.load(None, ["alone_ranks=[4, 1]"])
    with pytest.raises(UserError, match="model 'resnet5'"):
        load_of("resnet5")
