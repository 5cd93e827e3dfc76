"""Networks out of fold: the block says by the intervals what is reached, and where it turns."""

import sys
from typing import Any

from guide_pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))

from blocks import folds

MEASURES = (
    "top1", "balanced_accuracy", "balanced_rule_accuracy", "auroc", "log_loss",
    "tuned_rule_accuracy",
)  # fmt: skip
GAIN = "all_ensemble_minus_chosen"
MEMBERS = ("one", "two")


def figure(value: float, half: float, unit: str = "") -> dict[str, Any]:
    return {"value": value, "unit": unit, "n": 3, "spread": [value - half, value + half]}


def gain(key: str, value: float, half: float) -> dict[str, Any]:
    sign = -1 if key == "log_loss" else 1
    unit = "" if key in ("auroc", "log_loss") else "points"
    return figure(sign * value, half, unit)


def written(**gains: tuple[float, float]) -> dict[str, Any]:
    """Every gain is 3 ± 1, but for `gains`: the start of a figure's name, its value and half."""
    figures: dict[str, Any] = {}
    choice = {"best": {"one": 2, "two": 1}, "share": 0.75}
    for key in MEASURES:
        for place in ("histology", "all"):
            for name in (*MEMBERS, "ensemble"):
                figures[f"{place}_{name}_{key}"] = figure(60, 2, "%")
            for rival in ("chosen", "strongest", "same_cost"):
                start = f"{place}_ensemble_minus_{rival}"
                own = gains.get(f"{start}_{key}", gains.get(start, (3, 1)))
                figures[f"{start}_{key}"] = gain(key, *own)
        for way in ("two_views", "fold0"):
            own = gains.get(f"try_{way}_chosen_{key}", gains.get(f"try_{way}_chosen", (3, 1)))
            figures[f"try_{way}_chosen_{key}"] = gain(key, *own)
    for number, rule in enumerate(("balanced_rule_accuracy", "tuned_rule_accuracy")):
        figures[f"class_Dermato_fibroma_{rule}"] = figure(number - 1.25, 2, "points")
    for key in ("disagreement", "mistake_correlation", "error_correlation"):
        figures[key] = figure(0.5, 0.1)
    choices = {"chosen": choice, "strongest": "two", "same_cost": {"best": {"x": 3}, "share": 1.0}}
    row = {"seed": 7, "training_s": 1800}
    return {
        "figures": figures,
        "models": {
            f"{name}-fold{fold}": {**row, "member": name, "fold": fold}
            for name in MEMBERS
            for fold in range(3)
        },
        "parts": {
            "images": {"histology": 40, "all": 1200},
            "choices": {place: dict.fromkeys(MEASURES, choices) for place in ("histology", "all")},
            "tries": {"two_views": {}, "fold0": {}},
            "folds": {"finished": [0, 1, 2], "of": 5},
            "largest_group": {"group": "g", "images": 243},
        },
        "notes": ["How."],
        "hardware": {"cpu": "cpu", "cores": 2},
        "versions": {"skindx": "0", "torch": "0", "numpy": "0"},
        "date": "2026-01-01",
    }  # fmt: skip


def test_histology_stands_first_and_every_rival_is_named() -> None:
    text = folds.out_of_fold(lambda name: written(), file="x.json")
    assert text.index("images that histology confirmed: 40") < text.index("all images: 1,200")
    assert "Folds that all members have finished: 0, 1, 2 of 5; 2 are missing." in text
    assert "one 3 folds, seed 7, 1.5 hours; two 3 folds, seed 7, 1.5 hours" in text
    assert "(one in 2, two in 1; 75 %)" in text
    assert "(x; 100 %)" in text
    assert "| Dermato fibroma | −1.2 [−3.2, +0.8] | −0.2 [−2.2, +1.8] |" in text
    assert "| fold 0 alone |" in text
    assert "The largest group has 243 images." in text
    assert "How." in text


def test_what_was_asked_is_reached_or_missed_by_the_figures() -> None:
    assert folds.claims(written()).count("**reached**") == 3
    small = folds.claims(written(**{f"{GAIN}_balanced_rule_accuracy": (1.5, 1)}))
    assert "balanced rule **missed**: a gain, of 1.5 points" in small
    assert small.count("**reached**") == 2
    assert "turns with the rule" in small
    assert "is Dermato fibroma, −1.2 [−3.2, +0.8] points; by the rule that is tuned" in small
    assert "turns with the rule" not in folds.claims(written())
    loose = folds.claims(written(**{GAIN: (3, 4)}))
    assert "**missed**: +3.0 points, no gain is shown" in loose
    assert "**reached**" not in loose
    assert "No gain on all images: top-1; balanced accuracy" in loose
    cost = folds.claims(written(**{"all_ensemble_minus_same_cost": (-3, 1)}))
    assert "AUROC worse" in cost
    assert "log loss (low is good) worse" in cost


def test_a_claim_that_turns_says_where() -> None:
    text = folds.claims(written())
    assert "shown in every way it was tried: top-1; balanced accuracy;" in text
    assert "Its sign turns: nothing." in text
    wide = folds.claims(written(**{"try_fold0_chosen_auroc": (0.5, 1)}))
    assert "the interval holds 0: AUROC (fold 0 alone)." in wide
    assert "Its sign turns: nothing." in wide
    start = "all_ensemble_minus_strongest_log_loss"
    gone = folds.claims(written(**{start: (-1, 2), "histology_ensemble_minus_chosen": (0.5, 1)}))
    assert "Its sign turns: log loss (low is good) (over the strongest member)." in gone
    assert "log loss (low is good) (images that histology confirmed)" in gone
    assert "tried: nothing." in gone
