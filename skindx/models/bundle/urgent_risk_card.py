"""The urgent risk in the model card: what each level promises, what it costs, what was measured."""

from typing import Any

from skindx.models.calibration.conformal import ALL
from skindx.models.calibration.urgent_risk import UrgentRisk, why_no_threshold
from skindx.taxonomy import Taxonomy


def urgent_risk_lines(rule: UrgentRisk | None, taxonomy: Taxonomy) -> list[str]:
    """Return a line on the score and one for each level."""
    if all(skin_class.urgency != "urgent" for skin_class in taxonomy.classes):
        return ["urgent risk: none, because no class is urgent; answers say nothing of urgency"]
    if rule is None:
        return [
            f"urgent risk: no threshold; {why_no_threshold(taxonomy.classes)}; the next step "
            "follows the conformal set"
        ]
    lines = [
        "urgent risk: the summed probability of the urgent classes; thresholds fitted on "
        f"{rule.lesions[ALL]} calibration lesions with an urgent condition, one image each; the "
        f"next step goes by a miss rate of {rule.default:.0%} unless the operator chooses another"
    ]
    for level in rule.levels:
        promise = rule.promise(level)
        line = (
            f"urgent from a risk of {level.thresholds[ALL]:.4f}: expected miss rate at most "
            f"{level.miss_rate:.0%} (confidence that this threshold keeps to it: "
            f"{promise.confidence:.0%}; with 95% confidence at most {promise.bound:.1%})"
        )
        if level.sent_on:
            sent = level.sent_on
            line += (
                f"; of {sent.pictures} calibration images of other classes {sent.value:.1%} "
                f"[{sent.low:.1%}, {sent.high:.1%}] are urgent by it"
            )
        own = [group for group in level.thresholds if group != ALL]
        if own:
            line += f"; thresholds of their own for {', '.join(own)}"
        lines.append(line)
    return lines


def measured_risk_lines(measured: dict[str, Any] | None) -> list[str]:
    """Return what an evaluation measured at each level, as lines of a list."""
    if not measured:
        return []
    return [
        f"- at a miss rate of {level['miss_rate']:.0%}: "
        + "; ".join(
            f"{part[count]} of {part['n']} {what}, {interval_text(part['rate'])}"
            for part, count, what in (
                (level["misses"], "missed", "urgent images missed"),
                (level["false_alarms"], "raised", "images of other classes urgent"),
            )
            if part
        )
        for level in measured["levels"]
    ]


def interval_text(value: dict[str, float | None]) -> str:
    """Return a measured figure with its interval, as the card writes it."""
    figures = [value[key] for key in ("value", "low", "high")]
    middle, low, high = ("–" if figure is None else f"{figure:.3f}" for figure in figures)
    return f"{middle} [{low}, {high}]"
