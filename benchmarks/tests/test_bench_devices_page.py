"""The page of `bench devices`: rooflines, what to buy, machines side by side."""

from pathlib import Path

import pytest

from skindx_bench.devices import devices
from skindx_bench.devices.page import _labels, attainable, offers, page
from skindx_bench.harness.compare import Measurement
from skindx_bench.subjects import run_bench

TINY = [*devices.SMALLEST, "device=cpu"]


def test_peaks_that_nearly_coincide_share_a_label() -> None:
    found = _labels({"fp32": 100.0, "bf16": 101.0, "int8": 400.0, "fp16": 20.0})
    assert found == [(400.0, "int8"), (101.0, "bf16, fp32"), (20.0, "fp16")]


def test_a_roof_by_hand() -> None:
    assert attainable(peak=100, bandwidth=10, intensity=2) == 20
    assert attainable(peak=100, bandwidth=10, intensity=50) == 100


def written(rate: float, joules: float | None, wide: float = 2.0) -> dict:
    key = "{}, fp32, training"
    figures, parts = {}, {}
    for member in ("member a", "member b"):
        name = key.format(member)
        figures[f"{name}: samples"] = {
            "value": rate,
            "unit": "samples/s",
            "n": 5,
            "spread": [rate / wide, rate * wide],
        }
        if joules is not None:
            figures[f"{name}: energy"] = {
                "value": joules,
                "unit": "J/sample",
                "n": 5,
                "spread": [joules, joules],
            }
        parts[name] = {
            "name": member,
            "precision": "fp32",
            "mode": "training",
            "kind": "network",
            "energy": "unavailable" if joules is None else "measured",
            "marks": [],
            "bytes": None,
            "flops": 1.0,
        }
    machine = {"cpu": "x", "cores": 1, "memory_gb": 1.0, "accelerator": "none", "device": "x <i>"}
    return {
        "bench": "devices",
        "date": "today",
        "figures": figures,
        "parts": parts,
        "hardware": machine,
        "versions": {},
    }


def test_what_to_buy_by_hand() -> None:
    whole = offers(Measurement("m", written(10.0, 36.0)))[0]
    # An image of both members: 0.1 s and 36 J each.
    assert whole.network == "all 2 members of the config"
    assert whole.per_hour == pytest.approx((18000, 9000, 36000))
    assert whole.per_kwh == pytest.approx((50000, 50000, 50000))
    assert offers(Measurement("m", written(10.0, None)))[0].per_kwh is None


def test_the_page_of_two_machines_says_what_differs_and_fetches_nothing() -> None:
    text = page(
        [Measurement("slow", written(1, None, 1.1)), Measurement("fast", written(1000, 36.0, 1.1))]
    )
    # Machines of one network stand below each other, and each network has a row a machine.
    row = text.index("<td>slow</td>")
    assert "<td>fast</td>" in text[row : text.index("member a", row)]
    assert "x &lt;i&gt;" in text
    assert "1e+03 (real)" in text
    assert "unavailable" in text
    assert "src=" not in text
    assert "href=" not in text


def test_the_smallest_run_writes_json_and_a_page_with_a_roofline(tmp_path: Path) -> None:
    run_bench("devices", tmp_path / "a.json", [*TINY, f"html={tmp_path / 'a.html'}"])
    text = (tmp_path / "a.html").read_text()
    assert "<svg" in text
    assert "Roofline: " in text
    assert "lstm-2" in text
