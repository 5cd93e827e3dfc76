"""The page of real skin says what the intervals say, and nothing that is typed."""

import copy
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from guide_pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))

from blocks import elsewhere, real_skin

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
    assert "gains: balanced accuracy; log loss (low is good). It loses: top-1." in text
    assert "Over one network of its cost the ensemble gains: nothing. It loses: nothing." in text
    assert "reached, though not by the whole interval" in text
    assert "| log loss (low is good) | 0.600 [0.500, 0.700] |" in text
    assert "−0.150 [−0.200, −0.100]" in text
    text = text_of(real_skin.ensembles, tables(), target={"top1": 0.65, "auroc": 0.4})
    assert "; 0.65 % top-1: **missed**; 0.4 % AUROC: reached, by the whole interval." in text
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
        assert "resolution and compression do not explain it. Across hosts" in text
        assert "they are above chance, which is 50 % for 2 classes" in text
    else:
        assert "The features are not shown to tell the host, on levelled images no less" in text
        assert "heads gain, and on levelled images they gain." in text
        assert "not shown to be above chance" in text


def test_the_headline_shows_what_an_evaluation_has() -> None:
    written = json.loads((ROOT / "docs/measured/isic9-evaluation.json").read_text())
    text = text_of(real_skin.headline, written, name="X", other="")
    assert text.startswith("| X: 409 test images of 378 groups | figure, 95 % interval |")
    assert "| other images called urgent | 77.6 % [72.3, 82.4] |" in text
    assert "urgent or soon" not in text
    newer = copy.deepcopy(written)
    newer["soon_risk"] = newer["urgent_risk"]
    assert "| 114 urgent or soon images, missed (target: 5 %) | 0.9 %" in text_of(
        real_skin.headline, newer, other=""
    )
    newer |= {"difference": None, "sets": None, "ood": None}
    assert "best member" not in text_of(real_skin.headline, newer, other="")
    newer["figures"] = dict.fromkeys(real_skin._ELSEWHERE, figure(0.5, 0.7) | {"n": 80})
    text = text_of(real_skin.headline, newer)
    assert "| 80 images by other cameras, at unchanged thresholds: AUROC" in text


def test_figures_of_other_benchmarks_take_a_row_each() -> None:
    written = {**MACHINE, "figures": {"a": figure(1, 3, "%")}, "notes": ["Why."]}
    text = text_of(real_skin.plain_figures, written, rows={"a": "what", "gone": "absent"})
    assert "| what | 2.0 % [1.0, 3.0] |\n| absent |  |\n\nWhy." in text


def test_changes_elsewhere_are_sorted_by_their_intervals() -> None:
    figures = {}
    changes = {
        "auroc": (-0.3, -0.1, ""),
        "coverage": (10, 20, "%"),
        "auroc_Blue_nevus": (-1, 1, ""),
    }
    for key, (low, high, unit) in changes.items():
        figures |= {f"{key}_{side}": figure(0.8, 1, unit) for side in ("internal", "external")}
        figures[f"{key}_change"] = figure(low, high, unit)
    for size, error in ((25, 0.1), (100, 0.06)):
        figures |= {
            f"calibration_error_{when}_{size}": figure(error, error) for when in ("before", "after")
        }
    text = text_of(elsewhere.external, {**MACHINE, "figures": figures, "notes": ["n"]})
    assert (
        "| AUROC, mean of classes | 0.900 [0.800, 1.000] | 0.900 [0.800, 1.000] | "
        "−0.200 [−0.300, −0.100] |" in text
    )
    assert "| +15.0 [+10.0, +20.0] |" in text
    assert (
        "Higher there: sets that hold the true class. Lower there: AUROC, mean of classes. "
        "Not shown: AUROC of Blue nevus." in text
    )
    assert "| | as trained | 25 local images | 100 local images |" in text.replace("|  |", "| |")
    assert "Asked: a calibration error of 0.08 with 100 images: reached." in text


def test_shifts_that_are_noticed_late_are_named() -> None:
    figures = {"run_length": figure(5000, 7000, "photos")}
    for name, high in (("darker", 150), ("more_melanomas", 900)):
        figures |= {
            f"delay_{name}": figure(100, high, "photos"),
            f"named_{name}": figure(50, 60, "%"),
            f"dated_{name}": figure(5, 7, "photos"),
        }
    text = text_of(elsewhere.drift, {**MACHINE, "figures": figures, "notes": ["N."]})
    assert "| darker | 125 [100, 150] | 55 [50, 60] | 6 [5, 7] |" in text
    assert "after 6,000 [5,000, 7,000] photos in the mean (target: 5,000, reached)" in text
    assert "1 of 2 shifts reach it, not more melanomas." in text


def test_detectors_are_listed_by_what_they_separate() -> None:
    figures = {
        f"{name}, {what}": figure(low, low + 0.2)
        for name, low in (("knn", 0.5), ("mahalanobis+knn", 0.6))
        for what in ("left-out classes", "isic9")
    }
    text = text_of(elsewhere.unknowns, {**MACHINE, "figures": figures, "notes": ["N."]})
    lines = text.splitlines()
    assert lines[2].startswith("| mahalanobis + knn | 0.700 [0.600, 0.800] | 0.700 [")
    assert lines[3].startswith("| knn |")


def test_fields_gain_where_the_interval_is_above_0() -> None:
    figures = {"two_age_log_loss_gain": figure(0.01, 0.03)}
    for key, gain in {"balanced": 1, "top1": -1, "auroc": -1, "melanoma_auroc": -5}.items():
        unit = "%" if key in ("balanced", "top1") else ""
        figures |= {f"two_{key}_{name}": figure(0.6, 0.8, unit) for name in ("without", "known")}
        figures[f"two_{key}_gain"] = figure(gain, 3 if gain > -5 else -4, unit and "points")
    figures["two_log_loss_gain"] = figure(-0.1, 0.1)
    written = {**MACHINE, "figures": figures, "notes": ["How.", "two: sex moves little"]}
    text = text_of(elsewhere.metadata, written)
    assert "| two | photos alone | and what is known | gain |" in text
    assert "| log loss taken off by age alone |  |  | +0.020 [+0.010, +0.030] |" in text
    assert "Gains: balanced accuracy. Loses: AUROC of melanoma. Not shown: top-1; AUROC;" in text
    assert "Two: sex moves little." in text


MEASURED = ROOT / "docs/measured"
LOOKS = json.loads((MEASURED / "looks.json").read_text(encoding="utf-8"))
OF_TEST = ("real-skin-ham10000", "metadata", "external", "drift", "unknowns", "local", "modality")
"""Benchmarks whose figures are of a test split, beside evaluations and releases."""


def readings() -> set[tuple[str, str]]:
    """The committed readings of a test split: what was written, and when."""
    found = set()
    for path in MEASURED.glob("*.json"):
        written = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(written, dict) and written.get("origin", {}).get("split") == "test":
            found.add((path.name, written["origin"]["date"]))
        elif path.stem in OF_TEST:
            found.add((path.name, written["date"]))
    for path in MEASURED.glob("*/release.json"):
        written = json.loads(path.read_text(encoding="utf-8"))
        found.add((path.parent.name, written.get("origin", written)["date"]))
    return found


def test_every_committed_reading_of_a_test_split_has_a_line() -> None:
    assert readings() - {(look["file"], look["when"]) for look in LOOKS["looks"]} == set()


def test_lines_of_looks_are_whole_and_in_order() -> None:
    fields = {"split", "when", "file", "topic", "why", "changed"}
    for look in LOOKS["looks"]:
        assert set(look) == fields
        assert look["split"] in LOOKS["splits"]
        assert (MEASURED / look["file"]).exists()
        assert look["why"].endswith(".")
        assert look["changed"] == "" or look["changed"].endswith(".")
    dates = [datetime.fromisoformat(look["when"]) for look in LOOKS["looks"]]
    assert dates == sorted(dates)


def test_sentences_on_looks_follow_their_lines() -> None:
    def text(looks: list[dict[str, str]], topic: str = "") -> str:
        written = {"splits": {"x test": "x's test split"}, "looks": looks}
        return real_skin.looks(lambda _: written, split="x test", topic=topic)

    first, second = (
        {"split": "x test", "when": f"2026-01-0{day}T00:00:00+00:00", "topic": topic,
         "why": f"Why {day}.", "changed": changed}
        for day, topic, changed in ((1, "a", "A rule."), (2, "b", ""))
    )  # fmt: skip
    other = first | {"split": "y test"}
    said = text([first, second, other])
    assert said.startswith("X's test split was read twice: 2026-01-01 to 2026-01-02. After one of")
    assert said.endswith("- 2026-01-01: Why 1. Changed: A rule.")
    assert "read once for this table: 2026-01-02. No method was changed after it." in text(
        [first, second], "b"
    )
    # A line fewer, or one that changed nothing, is another sentence.
    assert text([first]) != text([first | {"changed": ""}]) != text([second])
