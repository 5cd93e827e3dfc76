"""The page of real skin says what the intervals say, and nothing that is typed."""

import copy
import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from guide_pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))

from blocks import real_skin

MACHINE = {
    "hardware": {"cpu": "cpu", "cores": 2},
    "versions": {"skindx": "0", "torch": "0", "numpy": "0"},
    "date": "2026-01-01",
}


def figure(low: float, high: float, unit: str = "") -> dict[str, Any]:
    return {"value": (low + high) / 2, "unit": unit, "n": 5, "spread": [low, high]}


def tables() -> dict[str, Any]:
    """Two networks whose ensemble gains balanced accuracy and log loss, and loses top-1."""
    area = {"value": 0.5, "low": 0.4, "high": 0.6}
    row = dict.fromkeys(("top1", "balanced", "auroc"), area) | {
        "size": 128, "trained": "all layers", "parameters": 2.2e6, "flops": 2e8,
        "images_per_s": None, "images": 90,
    }  # fmt: skip
    best = row | {"balanced": {"value": 0.7, "low": 0.6, "high": 0.8}}
    figures = {}
    for key in ("balanced", "balanced_even", "top1", "auroc", "log_loss"):
        unit = {"auroc": "", "log_loss": ""}.get(key, "%")
        for name in ("ensemble", "better", "same_cost"):
            figures[f"split_{name}_{key}"] = figure(0.5, 0.7, unit)
        for name in ("better", "same_cost"):
            change = figure(-0.1, 0.1, unit and "points")
            figures[f"split_ensemble_minus_{name}_{key}"] = change
    figures["split_ensemble_minus_better_balanced"] = figure(1, 5, "points")
    figures["split_ensemble_minus_better_top1"] = figure(-3, -1, "points")
    figures["split_ensemble_minus_better_log_loss"] = figure(-0.2, -0.1)
    notes = ["How.", "split: a + b beside a, at the same cost a in 2 views (1 of 1 folds)"]
    return {**MACHINE, "models": {"worse": row, "best": best}, "figures": figures, "notes": notes}


def text_of(block: Any, written: Mapping[str, Any], **named: Any) -> str:
    text: str = block(lambda name: written, file="x.json", **named)
    return text


def test_networks_are_listed_from_the_best_on() -> None:
    lines = text_of(real_skin.networks, tables()).splitlines()
    assert [line.split()[1] for line in lines[2:4]] == ["best", "worse"]
    assert "melanoma" not in lines[0]
    assert "| 2.2 | 0.20 |  | 50.0 % [40.0, 60.0] | 70.0 % [60.0, 80.0] |" in lines[2]


def test_what_an_ensemble_gains_follows_from_the_intervals() -> None:
    text = text_of(real_skin.ensembles, tables())
    assert "gains: balanced accuracy, log loss; loses: top-1; not shown: the same," in text
    assert "Over one network of its cost the ensemble gains: nothing; loses: nothing;" in text
    assert "reached, though not by the whole interval" in text
    assert "| log loss | 0.600 [0.500, 0.700] |" in text
    assert "−0.150 [−0.200, −0.100]" in text
    written = tables()
    for low, said in ((2.5, "reached, by the whole interval"), (-2, "**missed**")):
        written["figures"]["split_ensemble_minus_better_balanced"] = figure(low, 3, "points")
        assert said in text_of(real_skin.ensembles, written)


@pytest.mark.parametrize("sign", [-1, 1])
def test_what_is_said_of_hosts_follows_from_the_intervals(sign: int) -> None:
    figures = {
        f"{level}{key}": value
        for level in ("", "levelled_")
        for key, value in {
            "host_auroc": figure(0.6, 0.8) if sign < 0 else figure(0.4, 0.6),
            "across_balanced": figure(60, 70, "%") if sign < 0 else figure(40, 60, "%"),
            "across_minus_within_balanced": figure(*sorted((sign * 1, sign * 3)), "points"),
        }.items()
    }
    figures["levelled_minus_host_auroc"] = figure(-0.2, -0.1) if sign < 0 else figure(-0.1, 0.1)
    rows = {name: {"shorter_side_px": 100, "images": {"a": 3, "b": 4}} for name in ("one", "two")}
    text = text_of(
        real_skin.hosts, {**MACHINE, "figures": figures, "models": rows, "notes": ["N."]}
    )
    if sign < 0:
        assert "The features tell the host, on levelled images less well." in text
        assert "heads lose balanced accuracy, and" in text
        assert "they are above chance, which is 50 % for 2 classes" in text
    else:
        assert "The features are not shown to tell the host, on levelled images no less" in text
        assert "heads gain, and on levelled images they gain." in text
        assert "not shown to be above chance" in text


def test_the_headline_shows_what_an_evaluation_has() -> None:
    written = json.loads((ROOT / "docs/measured/isic9-evaluation.json").read_text())
    text = text_of(real_skin.headline, written, name="X")
    assert text.startswith("| X: 409 test images of 378 groups | figure, 95 % interval |")
    assert "| other images called urgent | 77.6 % [72.3, 82.4] |" in text
    assert "urgent or soon" not in text
    newer = copy.deepcopy(written)
    newer["soon_risk"] = newer["urgent_risk"]
    assert "| 114 urgent or soon images, missed (target: 5 %) | 0.9 %" in text_of(
        real_skin.headline, newer
    )
    newer |= {"difference": None, "sets": None, "ood": None}
    assert "best member" not in text_of(real_skin.headline, newer)


def test_figures_of_other_benchmarks_take_a_row_each() -> None:
    written = {**MACHINE, "figures": {"a": figure(1, 3, "%")}, "notes": ["Why."]}
    text = text_of(real_skin.plain_figures, written, rows={"a": "what", "gone": "absent"})
    assert "| what | 2.0 % [1.0, 3.0] |\n| absent |  |\n\nWhy." in text
