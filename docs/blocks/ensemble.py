"""What an ensemble gains, by the number and the diversity of its members."""

from collections.abc import Mapping
from typing import Any

from blocks.texts import Load, bench_machine, cell, number, shown

_ENSEMBLE = "ensemble.json"

_TARGETS: dict[str, tuple[str, float]] = {
    "better_member_balanced": ("balanced accuracy of the member of least log loss", 76),
    "chosen_minus_better_member_balanced": ("ensemble chosen by validation − that member", 2),
    "all_minus_better_member_balanced": ("ensemble of all members − that member", 2),
}
"""Figure -> what it is, and the least target, in percent or points."""

_DIVERSITY = {
    "disagreement": "two members name different classes",
    "mistake_correlation": "correlation of two members' mistakes",
    "error_correlation": "correlation ρ of two members' errors",
    "brier_mean_member": "Brier score of the mean member",
    "brier_gain_all": "averaging all members takes off",
    "brier_gain_limit": "averaging infinitely many would take off",
    "ambiguity": "ambiguity",
    "averaging_gain": "log loss that the mean probability takes off",
    "gain_limit_mean": "balanced accuracy, limit of the gain over the mean member",
    "better_minus_mean_member": "member of least log loss − mean member",
    "gain_limit": "limit of the gain over the member of least log loss",
    "pairs_alike_gain_mean": "gain of the pairs that are more alike over their mean member",
    "pairs_diverse_gain_mean": "gain of the pairs that differ more",
    "pairs_diverse_minus_alike": "their difference",
}

Row = Mapping[str, Any]


def ensemble_members(load: Load) -> str:
    """Return the members in one view, and the ensemble of all."""
    headings = (
        "one view", "px", "GFLOP", "top-1", "balanced accuracy", "calibration error",
        "minutes a fold",
    )  # fmt: skip
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    written = load(_ENSEMBLE)
    for name, row in written["models"].items():
        scores = [_mean(row[key]) for key in ("top1", "balanced_accuracy")]
        calibration = row["calibration_error"]
        cells = [
            name,
            str(row["size"] or ""),
            f"{row['flops'] / 1e9:.2f}" if row["flops"] else "",
            *scores,
            number(_pooled(calibration)),
            f"{row['minutes']:.1f}" if row["minutes"] else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", written["notes"][0], "", bench_machine(written)])


def ensemble_targets(load: Load) -> str:
    """Return the targets, and what was measured in one view and in several."""
    figures = load(_ENSEMBLE)["figures"]
    several = max(
        (key.removeprefix("all_balanced_") for key in figures if key.startswith("all_balanced_")),
        default="",
    )
    lines = [
        f"| figure | target | one view | {several.replace('_', ' ')} |",
        "|---|---|---|---|",
    ]
    for key, (what, target) in _TARGETS.items():
        cells = []
        for name in (key, f"{key}_{several}"):
            figure = figures.get(name)
            missed = ", **missed**" if figure and figure["value"] < target else ""
            cells.append(f"{shown(figure)}{missed}" if figure else "")
        unit = "%" if key.endswith("member_balanced") and "minus" not in key else "points"
        lines.append(f"| {what} | ≥ {target} {unit} | {' | '.join(cells)} |")
    for key, what in (("chosen", "the chosen ensemble"), ("all", "the ensemble of all members")):
        cells = [shown(figures[name]) for name in (f"{key}_balanced", f"{key}_balanced_{several}")]
        lines.append(f"| balanced accuracy of {what} | | {' | '.join(cells)} |")
    note = (
        "The member of least log loss, all classes counting alike, on validation, which is no "
        "choice by balanced accuracy: a gain over it may be one over a member that is not the "
        "best. No row is kept from which the better one could be chosen."
    )
    return "\n".join([*lines, "", load(_ENSEMBLE)["notes"][-2], "", note])


def ensemble_curve(load: Load) -> str:
    """Return the gain against the number of members, and the figures that say why it ends."""
    written = load(_ENSEMBLE)
    figures = written["figures"]
    headings = ("their mean member", "the one of least log loss")
    lines = [f"| members | over {' | over '.join(headings)} |", "|---|---|---|"]
    k = 2
    while f"curve_gain_{k}" in figures:
        cells = [shown(figures[f"{key}_{k}"]) for key in ("curve_gain_mean", "curve_gain")]
        lines.append(f"| {k} | {' | '.join(cells)} |")
        k += 1
    lines += ["", "| diversity, and what it allows | |", "|---|---|"]
    lines += [
        f"| {what} | {shown(figures[key])} |" for key, what in _DIVERSITY.items() if key in figures
    ]
    return "\n".join(
        [*lines, "", *(text for note in written["notes"][-4:-2] for text in (note, ""))]
    )


def _mean(row: Row) -> str:
    """Return the mean of the folds in percent, with the interval of the pooled images."""
    return cell({"value": row["mean"], "low": row["low"], "high": row["high"]})


def _pooled(row: Row) -> dict[str, float]:
    return {"value": row["pooled"], "low": row["low"], "high": row["high"]}
