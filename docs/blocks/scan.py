"""Scans of composed photos and comparisons of painted bodies."""

from collections.abc import Mapping
from typing import Any

from blocks import real_skin
from blocks.texts import Load, bench_machine, digits

LEAST_PLANTED = 0.95

_TARGETS = {
    "recall": "≥ 0.95",
    "planted_recall": f"≥ {LEAST_PLANTED}",
    "planted_listed_once": "1",
    "recall_at_precision_94": "≥ 0.95",
    "precision": "≥ 0.94",
    "seam_lesions_once": "1",
    "ap_minus_whole_image": "≥ 7",
    "ap_minus_sahi": "≥ 0",
    "time_over_sahi": "≤ 0.8",
    "scaling_2_workers": "≥ 1.8",
    "memory_1gp_over_12mp": "≤ 1.2",
    "lost_tasks": "0",
    "camera_matched": "≥ 98",
    "warped_matched": "≥ 90",
}


def scans(load: Load) -> str:
    """Return what a scan finds on composed photos, how it ranks it, and how fast it is."""
    return _table(load("scan.json"))


def planted(load: Load) -> str:
    """Return how many planted lesions the shipped detector lists."""
    written = load("scan-planted.json")
    missed = written["figures"]["planted_recall"]["value"] < LEAST_PLANTED
    return _table(written) + ("\n\nRecall misses its target." if missed else "")


def looks(load: Load) -> str:
    """Return how often each ten photos of planted lesions were read, and what followed."""
    splits = ("second planted photos", "planted photos")
    return "\n\n".join(real_skin.looks(load, split=split) for split in splits)


def comparisons(load: Load) -> str:
    """Return how many lesions are found again in a second photo."""
    return _table(load("scan-compare.json"))


def _table(written: Mapping[str, Any]) -> str:
    lines = ["| figure | measured | n | target |", "|---|---|---|---|"]
    for key, figure in written["figures"].items():
        low, high = figure["spread"]
        shown = f"{digits(figure['value'])} {figure['unit']}".strip()
        between = f"[{digits(low)}, {digits(high)}]"
        lines.append(f"| `{key}` | {shown} {between} | {figure['n']} | {_TARGETS.get(key, '')} |")
    notes = [line for note in written["notes"] for line in ("", note)]
    return "\n".join([*lines, *notes, "", bench_machine(written)])
