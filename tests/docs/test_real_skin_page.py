"""The page of real skin says what the intervals say, and nothing that is typed."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from evaluation_fakes import CLASSES, records_of, simulate
from guide_pages import ROOT

from skindx.evaluation.answers import Answers
from skindx.evaluation.release import recompute_release
from skindx.evaluation.score import score

sys.path.insert(0, str(ROOT / "docs"))

import render
from blocks import elsewhere, real_skin, release

MACHINE = {
    "hardware": {"cpu": "cpu", "cores": 2},
    "versions": {"skindx": "0", "torch": "0", "numpy": "0"},
    "date": "2026-01-01",
}


def figure(low: float, high: float, unit: str = "") -> dict[str, Any]:
    return {"value": (low + high) / 2, "unit": unit, "n": 5, "spread": [low, high]}


MEASURES = ("top1", "balanced_accuracy", "balanced_rule_accuracy", "auroc", "log_loss")
RULES = MEASURES[1:3]


def tables() -> dict[str, Any]:
    """An ensemble of two: AUROC gains however it is tried, log loss not by histology alone."""
    area = {"value": 0.5, "low": 0.4, "high": 0.6}
    row = dict.fromkeys(MEASURES, area) | {
        "size": 128, "trained": "all layers", "parameters": 2.2e6, "flops": 2e8,
        "images_per_s": None, "images": 90,
    }  # fmt: skip
    best = row | {"balanced_accuracy": {"value": 0.7, "low": 0.6, "high": 0.8}}
    figures = {}
    choices = {}
    for key in MEASURES:
        unit = {"auroc": "", "log_loss": ""}.get(key, "%")
        points = unit and "points"
        figures[f"split_ensemble_{key}"] = figure(0.5, 0.7, unit)
        for trial in ("all", "subset"):
            figures[f"split_least_{trial}_{key}"] = figure(-0.1, 0.1, points)
        sure = key in ("auroc", "log_loss")
        choices[key] = {"best": {"a": 1}, "share": 0.95 if sure else 0.6, "sure": sure}
        if sure:
            figures[f"split_better_{key}"] = figure(0.4, 0.6, unit)
            figures[f"split_ensemble_minus_better_{key}"] = figure(0.1, 0.2)
        for name in ("a", "b"):
            figures[f"split_ensemble_minus_{name}_{key}"] = figure(1, 3, points)
        for when, low in (("before", 0.1), ("after", 0.2)):
            figures[f"split_calibration_{when}_{key}"] = figure(low, low + 0.1, unit)
    figures["split_least_all_auroc"] = figures["split_least_subset_auroc"] = figure(0.1, 0.2)
    figures["split_least_all_log_loss"] = figure(-0.2, -0.1)
    figures["split_least_all_top1"] = figure(-3, -1, "points")
    part = {
        "ensembles": {"a + b": 1}, "choices": {"better": choices}, "cost": {}, "subset": 40,
        "least": {trial: dict.fromkeys(MEASURES, "b") for trial in ("all", "subset")},
    }  # fmt: skip
    speed = MACHINE | {"hardware": {"cpu": "old", "cores": 1}}
    return {
        **MACHINE, "models": {"worse": row, "best": best}, "figures": figures, "notes": ["How."],
        "parts": {"split": part, "speed": speed},
    }  # fmt: skip


def text_of(block: Any, written: Mapping[str, Any], **named: Any) -> str:
    text: str = block(lambda name: written, file="x.json", **named)
    return text


def test_networks_are_listed_from_the_best_on() -> None:
    text = text_of(real_skin.networks, tables())
    lines = text.splitlines()
    assert [line.split()[1] for line in lines[2:4]] == ["best", "worse"]
    assert "melanoma" not in lines[0]
    assert "| 2.2 | 0.20 |  | 50.0 % [40.0, 60.0] | 70.0 % [60.0, 80.0] |" in lines[2]
    assert "Speed: old, 1 cores" in text


def test_what_an_ensemble_gains_follows_from_the_intervals() -> None:
    text = text_of(real_skin.ensembles, tables(), subset="the confirmed")
    row = "| AUROC | 0.600 [0.500, 0.700] | a: 0.500 [0.400, 0.600] | +0.150 [+0.100, +0.200] |"
    assert f"{row} 95 % (a) |" in text
    # Where chance decides, no better member is named, and the gain over each stands.
    assert "| top-1 | 0.6 % [0.5, 0.7] | chance decides | see below | 60 % (a) |" in text
    assert "| ensemble − each that may be the better member | top-1 | balanced accuracy |" in text
    assert "| b | +2.0 [+1.0, +3.0] | +2.0 [+1.0, +3.0] | +2.0 [+1.0, +3.0] |" in text
    assert "No network of its cost was kept" in text
    assert (
        "gains, however it is tried: AUROC. It gains, but the claim turns: log loss (low is good) "
        "(the confirmed). It loses: top-1. Not shown: balanced accuracy; balanced accuracy, "
        "balanced rule. Asked: 2 points of balanced accuracy over the better member: **missed**."
    ) in text
    text = text_of(real_skin.ensembles, tables(), subset="x", target={"top1": 0.65, "auroc": 0.4})
    assert "; 0.65 % top-1: **missed**; 0.4 % AUROC: reached, by the whole interval." in text


@pytest.mark.parametrize(
    ("low", "otherwise", "said"),
    [
        (3, 3, "reached by both rules, however it is tried."),
        (1, 1, "reached by both rules, however it is tried, though not by the whole interval."),
        (3, -2, "**not shown**, since it turns with"),
        (-4, -4, "**missed**."),
    ],
)
def test_a_gain_is_reached_only_if_it_never_turns(low: float, otherwise: float, said: str) -> None:
    written = tables()
    for key in RULES:
        written["figures"][f"split_least_all_{key}"] = figure(low, low + 3, "points")
        written["figures"][f"split_least_subset_{key}"] = figure(low, low + 3, "points")
    turned = figure(otherwise, otherwise + 3, "points")
    written["figures"]["split_least_subset_balanced_rule_accuracy"] = turned
    text = text_of(real_skin.ensembles, written, subset="x")
    assert f"2 points of balanced accuracy over the better member: {said}" in text


def test_a_rival_of_its_cost_has_its_share_of_the_cost_beside() -> None:
    written = tables()
    part = written["parts"]["split"]
    part["cost"] = {"a in 4 views": 1.3}
    choice = {"best": {"a in 4 views": 1}, "share": 1.0, "sure": True}
    part["choices"]["same_cost"] = dict.fromkeys(MEASURES, choice)
    for key in MEASURES:
        written["figures"][f"split_same_cost_{key}"] = figure(0.1, 0.3)
        written["figures"][f"split_ensemble_minus_same_cost_{key}"] = figure(-0.3, -0.1)
    text = text_of(real_skin.ensembles, written, subset="x")
    assert "| one network of its cost | ensemble − network of its cost | chosen by |" in text
    assert "a in 4 views: 0.200 [0.100, 0.300] | −0.200 [−0.300, −0.100] | 100 % (a in 4" in text
    assert "Operations over the ensemble's: a in 4 views 1.30." in text


def test_calibration_stands_before_and_after() -> None:
    text = real_skin.calibration(lambda name: tables(), files={"X": "x.json"})
    assert "| X, fine-tuned networks, one split: before | 0.150 [0.100, 0.200] |" in text
    assert "| X, fine-tuned networks, one split: after | 0.250 [0.200, 0.300] |" in text


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


ORIGIN = {
    "bundle_digest": "a1b2c3d4e5f6" + "0" * 52, "hardware": "cpu", "date": "2026-01-01T00:00:00",
    "versions": {"skindx": "0"},
}  # fmt: skip
AREA = {"value": 0.9, "low": 0.8, "high": 0.95}


def share(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.05, "high": value + 0.05}


def release_figures() -> dict[str, Any]:
    """An evaluation whose images with histology are harder than the others."""

    def part(name: str, n: int, top1: float) -> dict[str, Any]:
        return {
            "name": name, "n": n, "groups": n - 5, "top1": share(top1), "auroc": AREA,
            "majority": {"name": "Nevus", "top1": share(0.5)}, "urgent_auroc": AREA,
            "urgent": {"n": 20, "missed": 2, "rate": share(0.1)},
            "others": {"n": n - 20, "raised": 30, "rate": share(0.3)},
        }  # fmt: skip

    def served(name: str, n: int) -> dict[str, Any]:
        steps = {"urgent": 40, "soon": 20, "routine": n - 71, "unknown": 4, "none": 7}
        rates = {step: share(count / n) for step, count in steps.items()}
        return {
            "name": name, "n": n, "groups": n - 5, "steps": steps, "rates": rates, "abstained": 9,
            "abstained_rate": share(0.06),
        }  # fmt: skip

    scores = {key: share(0.7) for key in ("top1", "balanced_accuracy", "balanced_rule_accuracy")}
    question = {"key": "urgent_risk", "name": "urgent", "n": 20, "groups": 15}
    ways = (("histology", 60, 0.6), ("other ways", 90, 0.9), ("all", 150, 0.8))
    return {
        "origin": ORIGIN, "pictures": 150, "groups": 140, "not_useful": ["It is a trial."],
        "spectrum": [part(*way) for way in ways],
        "served": [served("urgent classes", 20), served("other classes", 130), served("all", 150)],
        "ensemble": scores | {
            "balanced_rule_top1": share(0.65), "calibration_error": AREA,
            "classwise_calibration_error": {"value": 0.016, "low": 0.01, "high": 0.02},
        },
        "classes": [
            {"key": "mel", "name": "Melanoma", "n": 20, "groups": 15, "sensitivity": share(0.5),
             "specificity": share(0.9), "observed_over_expected": share(1.3)},
        ],
        "confusions": [{"truth": "mel", "predicted": "nv", "n": 4, "rate": share(0.2)}],
        "questions": [question | {"observed_over_expected": share(1.2)}],
        "sets": {"level": 0.9, "coverage": share(0.92)},
    }  # fmt: skip


UNKNOWNS = {
    "models": {
        "two": {
            "left_out": {
                "mel": {"refused": [0.04, 0.01, 0.1]},
                "nv": {"refused": [0.0, 0.0, 0.07]},
                "df": {"refused": [0.02, 0.0, 0.2]},
            }
        }
    }
}


def test_the_headline_answers_the_questions_of_a_clinician() -> None:
    files = {"x": release_figures() | {"members": [{}, {}]}, "u": UNKNOWNS}
    text = release.headline(
        lambda file: files[file], file="x", name="X", unknown="u", detectors="two", folder="a/b"
    )
    lines = text.splitlines()
    assert lines[0] == (
        "| X: 150 test images of 140 groups; 95 % intervals | histology: 60 (55) | all: 150 (145) |"
    )
    rows = [line for line in lines[2:] if line.startswith("|")]
    assert len(rows) <= 14
    assert "(top-1) | 60.0 % [55.0, 65.0] | 80.0 % [75.0, 85.0] |" in rows[0]
    assert "| urgent told from the others (AUROC) | 0.900 [0.800, 0.950] | 0.900 [0" in text
    assert "they are refused, or not called urgent | 2 of 20: 10.0 % [5.0, 15.0] | 2 of 20" in text
    assert "| other images that it calls urgent | 30 of 40: 30.0 % [25.0, 35.0] | 30 of 130" in text
    assert (
        "(balanced accuracy) |  | 70.0 % [65.0, 75.0]; by the balanced rule 70.0 % [65.0, 75.0], "
        "top-1 then 65.0 % [60.0, 70.0] |" in text
    )
    assert "the true class |  | Melanoma called nv 20.0 % [15.0, 25.0] |" in text
    by_class = "class by class 0.016 [0.010, 0.020]; urgent, observed over expected, 1.200 [1.150, "
    assert f"calibration error 0.900 [0.800, 0.950]; {by_class}" in text
    assert "| no answer |  | refused 4.7 % [" in text
    assert "]; no condition named 6.0 % [1.0, 11.0] |" in text
    assert "(3 classes, each left out) |  | from 0.0 % [0.0, 7.0] to 4.0 % [1.0, 10.0] by" in text
    assert "**Not useful yet.** It is a trial." in text
    assert "Bundle `a1b2c3d4e5f6` of 2 networks; cpu, 2026-01-01" in text
    assert lines[-1].endswith("`skindx recompute a/b` makes every figure again.")


def test_the_page_has_the_spectrum_and_each_class() -> None:
    text = text_of(release.spectrum, release_figures())
    assert text.startswith("|  | histology | other ways | all |")
    assert "| next step as served | urgent classes | other classes | all |" in text
    text = text_of(release.classes, release_figures())
    assert "| Melanoma | 20 (15) | 50.0 % [45.0, 55.0] | 90.0 % [85.0, 95.0] | 1.300 [1" in text
    assert "| urgent, all classes of it | 20 (15) |  |  | 1.200 [1.150, 1.250] |" in text


def scored_rows(changed: int | None = None) -> dict[str, Any]:
    """The figures of 120 rows, two thirds with histology; of one row another class is true."""
    labels, table = simulate(120, seed=3)
    if changed is not None:
        labels[changed] = "melanoma" if labels[changed] == "nevus" else "nevus"
    records = [
        replace(record, confirmed_by="follow-up" if n % 3 else "histopathology")
        for n, record in enumerate(records_of(labels, [f"lesion {n // 2}" for n in range(120)]))
    ]
    given = Answers.join(records, table, CLASSES, ["alpha", "beta"])
    given = replace(
        given,
        steps=tuple("urgent" if p_C[1:3].sum() > 0.3 else "routine" for p_C in given.ensemble_NC),
        mix_C=np.full(4, 0.25),
    )
    return {"origin": ORIGIN, **score(given, draws=40).to_dict()}


def test_every_block_of_a_release_follows_its_rows() -> None:
    whole, other = scored_rows(), scored_rows(changed=3)
    for block in (release.headline, release.spectrum, release.classes):
        text = text_of(block, whole)
        assert text == text_of(block, scored_rows())
        assert text != text_of(block, other)
    text = text_of(release.headline, whole)
    assert text.startswith("| HAM10000: 120 test images of 60 groups; 95 % intervals | histology: ")
    assert "| no answer |  | refused " in text
    assert "(balanced accuracy) |  | " in text
    # The figures of histology alone do not see a follow-up image.
    rows = [text_of(release.spectrum, own).splitlines()[2:9] for own in (whole, scored_rows(4))]
    first = [[line.split(" | ")[1] for line in lines] for lines in rows]
    assert first[0] == first[1]


def test_the_headline_of_an_older_evaluation_has_what_it_knows() -> None:
    written = json.loads((ROOT / "docs/measured/isic9-evaluation.json").read_text())
    written["origin"]["bundle_digest"] = "0" * 64
    text = text_of(release.headline, written, name="X")
    assert text.startswith("| X: 409 test images of 378 groups; 95 % intervals | all |")
    assert "| other images that it calls urgent | 77.6 % [72.3, 82.4] |" in text


def test_other_cameras_stand_with_both_mistakes() -> None:
    changes = [
        {"key": key, "unit": unit, "external": share(value)}
        for key, unit, value in (
            ("auroc", "decimal", 0.75), ("urgent_sensitivity", "percent", 0.8),
            ("urgent_specificity", "percent", 0.45), ("set_size", "decimal", 1.5),
        )
    ]  # fmt: skip
    away = {"elsewhere": {"changes": changes}, "pictures": 80}
    text = release.headline(
        lambda file: away if file == "y.json" else release_figures(), file="x.json", other="y.json"
    )
    assert (
        "| 80 images by other cameras |  | AUROC, mean over classes 0.750 [0.700, 0.800] |" in text
    )
    missed = "urgent missed 20.0 % [15.0, 25.0]; others called urgent 55.0 % [50.0, 60.0]"
    assert f"| 80 images by other cameras |  | {missed} |" in text
    old = {"figures": {f"{key}_external": figure(50, 60, "%") | {"n": 8} for key in release._AWAY}}
    text = release.headline(
        lambda file: old if file == "y.json" else release_figures(), file="x.json", other="y.json"
    )
    assert "| 8 images by other cameras |  | urgent missed 45.0 % [40.0, 50.0]; others" in text


def test_other_cameras_are_measured_as_served_where_the_own_are() -> None:
    changes = [
        {"key": key, "unit": "decimal", "external": share(value)}
        for key, value in (("calibration_error", 0.2), ("urgent_sensitivity", 0.8))
    ]
    figures = release_figures()
    away = {"elsewhere": {"changes": changes}, "pictures": 80} | {
        key: figures[key] for key in ("served", "not_useful")
    }
    away["served"][0]["steps"] |= {"urgent": 12, "none": 5}
    away["served"][0]["rates"] |= {"urgent": share(0.6)}
    text = release.headline(
        lambda file: away if file == "y.json" else figures, file="x.json", other="y.json"
    )
    other = "| 80 images by other cameras |  | "
    assert f"{other}calibration error 0.200 [0.150, 0.250] |" in text
    missed = "urgent missed, 8 of 20, 5 of them refused: 40.0 % [35.0, 45.0]"
    assert f"{other}{missed}; others called urgent, 40 of 130: 30.8 % [" in text
    assert f"{other}refused 4.7 % [" in text
    assert "**Not useful on images by other cameras.** It is a trial." in text


def test_changes_at_other_cameras_name_what_is_missing() -> None:
    def sides(value: float) -> dict[str, Any]:
        return {"internal": share(0.9), "external": share(value), "change": share(value - 0.9)}

    change = {"title": "AUROC, mean of classes", "unit": "decimal", **sides(0.7)}
    of_class = {
        "name": "Melanoma", "internal_images": 40, "external_images": 30, "auroc": sides(0.6),
        "sensitivity": sides(0.2),
    }  # fmt: skip
    found = {
        "changes": [change], "classes": [of_class], "few": {"Dermatofibroma": (25, 7)},
        "absent": ["Nevus"], "fewest": 20,
    }  # fmt: skip
    text = text_of(release.changes, release_figures() | {"elsewhere": found})
    assert (
        "| AUROC, mean of classes | 0.900 [0.850, 0.950] | 0.700 [0.650, 0.750] | "
        "−0.200 [−0.250, −0.150] |" in text
    )
    assert "| 20.0 % [15.0, 25.0] | −70.0 [−75.0, −65.0] |" in text
    assert "| Melanoma: found (40 and 30 images) | 90.0 % [85.0, 95.0] | 20.0 % [15.0" in text
    assert "Under 20 images here or there: Dermatofibroma 25 and 7. Without an image there" in text


def test_a_page_of_two_bundles_is_refused() -> None:
    one = text_of(release.headline, release_figures())
    release.one_bundle(f"{one} {one}", "page")
    with pytest.raises(SystemExit, match="page has figures of 2 bundles, a1b2c3d4e5f6, f1b2c3d4e5"):
        release.one_bundle(f"{one} Bundle f1b2c3d4e5f6aaaa, ", "page")


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
    assert "\n\nSex moves little." in text


MEASURED = ROOT / "docs/measured"
LOOKS = json.loads((MEASURED / "looks.json").read_text(encoding="utf-8"))
OF_TEST = ("real-skin-ham10000", "metadata", "external", "drift", "unknowns", "local", "modality",
           "crop", "lesion-pairs")  # fmt: skip
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
    written = json.loads((render.RELEASED / "release.json").read_text(encoding="utf-8"))
    found.add((os.path.relpath(render.RELEASED, MEASURED), written["origin"]["date"]))
    return found


def test_every_committed_reading_of_a_test_split_has_a_line() -> None:
    assert readings() - {(look["file"], look["when"]) for look in LOOKS["looks"]} == set()


def test_figures_of_the_release_are_those_of_its_rows() -> None:
    """README and pages are rendered from files that the committed rows give again."""
    result = recompute_release(render.RELEASED)
    assert result.figures > 5000
    assert not result.differing


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
