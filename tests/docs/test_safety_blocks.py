"""Blocks of urgency and groups say what the figures of an evaluation say."""

import sys
from typing import Any

from guide_pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))

from blocks import safety

FIGURE = {"value": 0.5, "low": 0.4, "high": 0.6}


def figure(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.01, "high": value + 0.01}


def evaluation() -> dict[str, Any]:
    def level(rate: float, missed: float, over: float) -> dict[str, Any]:
        predictive = [{"prevalence": 0.05, "ppv": FIGURE, "npv": FIGURE}]
        rates = {"misses": {"rate": figure(missed)}, "false_alarms": {"rate": figure(over)}}
        return {"miss_rate": rate, **rates, "predictive": predictive}

    def question(key: str) -> dict[str, Any]:
        decision = [
            {"threshold": t / 100, "gain": figure(0.02 if t > 2 else 0)} for t in range(1, 51)
        ]
        areas = dict.fromkeys(("auroc", "partial_auroc_80", "partial_auroc_88"), FIGURE)
        triage = [{"at": 0.05, "figure": figure(0.25)}]
        return {"key": key, "n": 20, "others": 80, "decision": decision, "triage": triage, **areas}

    steps = [
        {"n": 20, "urgent": 15, "soon": 3, "unknown": 1, "routine": 1},
        {"n": 80, "urgent": 30, "soon": 10, "unknown": 0, "routine": 40},
    ]
    urgent = {"default": 0.05, "steps": steps, "levels": [level(0.02, 0.01, 0.5)]}
    urgent["levels"] += [level(0.05, 0.06, 0.24)]
    part = {"value": "0 to 29", "n": 50, "few": False, "top1": FIGURE, "urgent_auroc": FIGURE}
    missed = {"missed": 3, "n": 12, "rate": FIGURE}
    parts = [part | {"urgent": missed}, part | {"value": "75 and more", "urgent": None}]
    age = {
        "attribute": "age",
        "parts": [*parts, part | {"value": "30 to 44", "few": True, "urgent": None}],
        "top1_test": {"gap": 0.1, "p": 0.0004, "permutations": 5000},
        "urgent_test": None,
    }
    return {
        "origin": {
            "bundle": "b", "dataset": "d", "split": "test", "date": "2026-01-01", "hardware": "cpu",
            "versions": {"skindx": "0", "torch": "0", "numpy": "0"},
        },
        "questions": [question("urgent_risk"), question("soon_risk"), question("melanoma")],
        "urgent_risk": urgent,
        "soon_risk": urgent | {"levels": [level(0.02, 0.04, 0.3), level(0.05, 0.05, 0.4)]},
        "breakdowns": [age],
    }  # fmt: skip


def test_both_questions_stand_side_by_side() -> None:
    text = safety.urgency(lambda name: evaluation(), file="x.json")
    assert text.startswith("|  | urgent | urgent or soon |")
    assert "| missed, target 5 % | 6.0 % [5.0, 7.0] | 5.0 % [4.0, 6.0] |" in text
    # Served: an urgent image is missed by "soon" only in the first question.
    assert "| missed by the next steps as served | 5 of 20 | 2 of 20 |" in text
    assert "| over-triage by them | 30 of 80 | 40 of 80 |" in text
    assert "threshold probabilities | 3 % to 50 % | 3 % to 50 % |" in text
    assert (
        "urgent: **missed** at every level; urgent or soon: reached at the level 2 % and 5 %"
        in (text)
    )


def test_groups_have_figures_or_say_that_they_are_too_small() -> None:
    text = safety.groups(lambda name: evaluation(), file="x.json")
    row = "| age: 0 to 29 | 50 | 50.0 % [40.0, 60.0] | 0.500 [0.400, 0.600] | 3 of 12: 50.0 %"
    assert row in text
    assert "| age: 75 and more | 50 | 50.0 % [40.0, 60.0] | too few | too few |" in text
    assert "classes: top-1 10.0 points, p < 0.001; too few images to say: 30 to 44." in text
    assert "p by 5,000 permutations" in text
