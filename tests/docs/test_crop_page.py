"""The page of the crop says what the intervals say, class by class and size by size."""

import json
import sys
from typing import Any

from guide_pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))

from blocks import crop

GAIN, LOSS, NEITHER = (2.0, 9.0), (-9.0, -2.0), (-3.0, 4.0)


def figure(spread: tuple[float, float], unit: str, n: int = 90) -> dict[str, Any]:
    return {"value": sum(spread) / 2, "unit": unit, "n": n, "spread": list(spread)}


def written(**changes: tuple[float, float]) -> dict[str, Any]:
    """Three places and the boxes set; nothing is shown but what `changes` says."""
    figures: dict[str, Any] = {"detector_cost_times_whole": figure((1.5, 1.5), "times", 1)}
    for where in ("times_6", "boxes", "taken", "times_3"):  # in the order of the answers
        classes = ("benign", "malignant") if where == "boxes" else ("Blue_nevus", "Wart")
        figures[f"{where}_recall"] = figure((90, 98), "%")
        for arm in ("whole", "detector"):
            figures[f"{where}_{arm}_balanced"] = figure((60, 70), "%")
            for key in classes:
                figures[f"{where}_{arm}_sensitivity_{key}"] = figure((50, 60), "%", 45)
        units = {"balanced": "points", "auroc": "", "log_loss": "nats", "refused": "points"}
        for key, unit in units.items():
            figures[f"{where}_detector_minus_whole_{key}"] = figure(NEITHER, unit)
        for key in classes:
            for of, unit in (("sensitivity", "points"), ("auroc", "")):
                figures[f"{where}_detector_minus_whole_{of}_{key}"] = figure(NEITHER, unit)
    for key, spread in changes.items():
        figures[key]["spread"] = list(spread)
    return {
        "figures": figures, "notes": ["How"], "date": "2026-01-01",
        "hardware": {"cpu": "cpu", "cores": 2},
        "versions": {"skindx": "0", "torch": "0", "numpy": "0"},
    }  # fmt: skip


def test_each_way_stands_by_size_with_what_the_box_found() -> None:
    text = crop.ways(lambda _: written())
    lines = text.splitlines()
    assert lines[0] == (
        "|  | as taken, n = 90 | at a third of the frame, n = 90 | "
        "at a sixth of the frame, n = 90 | on the boxes set, n = 90 |"
    )
    assert "| box finds the lesion (IoU at least 0.5) | 94.0 % [90.0, 98.0] | 94.0 %" in text
    assert "decoy" not in text  # which was not measured
    assert "Operations over the whole image's: detector's crop 1.50." in text
    assert "Stopped" not in text
    assert "\n\nHow.\n\ncpu, 2 cores, 2026-01-01" in text
    text = crop.ways(lambda _: written() | {"partial": "3 of 9 images were not asked about"})
    assert "\nStopped: 3 of 9 images were not asked about.\n" in text


def test_classes_that_gain_or_lose_are_named_by_their_intervals() -> None:
    found = written(
        times_6_detector_minus_whole_sensitivity_Wart=GAIN,
        times_3_detector_minus_whole_sensitivity_Blue_nevus=GAIN,
        times_6_detector_minus_whole_sensitivity_Blue_nevus=LOSS,
        boxes_detector_minus_whole_auroc_malignant=LOSS,
    )
    text = crop.classes(lambda _: found)
    assert "| class | n | as taken | at a third of the frame | at a sixth of the frame |" in text
    assert "| Wart: sensitivity | 45 | +0.5 [−3.0, +4.0] |" in text
    assert "| class | n | on the boxes set |" in text
    assert "- sensitivity, as taken: gain: no class; lose: no class." in text
    assert "- sensitivity, at a third of the frame: gain: Blue nevus; lose: no class." in text
    assert "- sensitivity, at a sixth of the frame: gain: Wart; lose: Blue nevus." in text
    assert "- sensitivity: the claim turns with the size for Blue nevus." in text
    assert "- AUROC, on the boxes set: gain: no class; lose: malignant." in text
    assert "- AUROC: the claim turns with the size for no class." in text


def test_the_claim_turns_where_one_figure_gains_and_another_loses() -> None:
    less = written(times_6_detector_minus_whole_log_loss=LOSS)
    text = crop.rivals(lambda _: less)
    assert "| detector's crop − whole image: log loss | +0.500 [−3.000, +4.000] nats |" in text
    assert (
        "over whole image: gains at a sixth of the frame (log loss); not shown as taken (" in text
    )
    assert "turns" not in text
    more = written(
        times_6_detector_minus_whole_log_loss=LOSS, taken_detector_minus_whole_refused=GAIN
    )
    text = crop.rivals(lambda _: more)
    assert "loses as taken (refused); " in text
    assert "; **the claim turns**." in text
    turned = written(
        times_6_detector_minus_whole_log_loss=LOSS, taken_detector_minus_whole_balanced=LOSS
    )
    text = crop.rivals(lambda _: turned)
    assert "loses as taken (balanced accuracy)" in text
    assert text.splitlines()[-1].endswith("; **the claim turns**.")
    assert "centre" not in text


def test_the_reading_of_the_page_is_what_its_figures_say() -> None:
    figures = json.loads((ROOT / "docs/measured/crop.json").read_text(encoding="utf-8"))["figures"]

    def sign(where: str, key: str, other: str = "whole") -> int:
        low, high = figures[f"{where}_detector_minus_{other}_{key}"]["spread"]
        return int(low > 0) - int(high < 0)

    def classes(where: str, of: str) -> list[int]:
        start = f"{where}_detector_minus_whole_{of}_"
        return [sign(where, f"{of}_{key.removeprefix(start)}") for key in figures if start in key]

    ways = {"balanced": 1, "auroc": 1, "log_loss": -1}  # what a gain is
    assert all(sign("times_6", key) == better for key, better in ways.items())
    assert sign("times_6", "sensitivity_Melanoma") == sign("times_6", "auroc_Melanoma") == 1
    assert sum(classes("times_6", "auroc")) > 3
    for where in ("taken", "times_3", "boxes"):
        signs = [sign(where, key) for key in ways if f"{where}_whole_{key}" in figures]
        assert not any(signs + classes(where, "sensitivity") + classes(where, "auroc"))
    assert sign("taken", "refused") == 1
    assert sign("times_6", "refused") == -1
    assert (
        figures["times_6_whole_refused"]["value"]
        > 50
        > figures["times_6_detector_refused"]["value"]
    )
    for other in ("centre", "fine"):
        for where in ("times_3", "times_6"):
            assert all(sign(where, key, other) == better for key, better in ways.items())
    assert figures["boxes_recall"]["spread"][1] < figures["taken_recall"]["spread"][0]
