"""How a figure, an interval and a machine are written in a block."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from skindx.evaluation.figures import bounds, change, decimal, percent, points
from skindx.metrics import Interval

Load = Callable[[str], Mapping[str, Any]]
"""Reads a file of docs/measured by its name."""


def median(figure: Mapping[str, Any], unit: str | None = None) -> str:
    low, high = figure["spread"]
    shown = figure["unit"] if unit is None else unit
    rounds = f", n = {figure['n']}" if unit is None else ""
    return f"{scaled(figure['value'], shown)} [{digits(low)}, {digits(high)}]{rounds}"


def scaled(value: float, unit: str) -> str:
    return f"{digits(value)} {'' if unit == 'of a step' else unit}".strip()


def digits(value: float) -> str:
    """Return three digits that count, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{float(f'{value:.3g}'):g}"


def named(raw: Iterable[float]) -> dict[str, float]:
    return dict(zip(("value", "low", "high"), raw, strict=True))


def refused(row: Mapping[str, Any]) -> str:
    return cell(named(row["refused"]))


def cell(raw: Mapping[str, float | None]) -> str:
    """Return a share in percent with its interval; "" for one that is not defined."""
    if (figure := _defined(raw)) is None:
        return ""
    return f"{percent(figure)} {bounds(figure)}"


def complement(share: Mapping[str, float]) -> dict[str, float]:
    """Return the share of all others, with its interval."""
    return {"value": 1 - share["value"], "low": 1 - share["high"], "high": 1 - share["low"]}


def number(raw: Mapping[str, float | None]) -> str:
    """Return a figure as a decimal with its interval; "" for one that is not defined."""
    if (figure := _defined(raw)) is None:
        return ""
    return f"{decimal(figure)} {bounds(figure, 'decimal')}"


def _defined(raw: Mapping[str, float | None]) -> Interval | None:
    value, low, high = (raw[key] for key in ("value", "low", "high"))
    return None if value is None or low is None or high is None else Interval(value, low, high)


def shown(figure: Mapping[str, Any], *, signed: bool = False) -> str:
    """Return a figure with its interval in percent, points or as a decimal; `signed`: a change."""
    unit = figure["unit"]
    if unit in ("%", "points"):
        own = Interval(*(value / 100 for value in (figure["value"], *figure["spread"])))
        if unit == "points":
            return f"{points(own.value)} {bounds(own, 'points')}"
        return cell({"value": own.value, "low": own.low, "high": own.high})
    own = Interval(figure["value"], *figure["spread"])
    if signed:
        return f"{change(own.value)} {bounds(own, 'change')} {unit}".strip()
    return f"{decimal(own)} {bounds(own, 'decimal')} {unit}".strip()


def whole(share: float) -> str:
    return f"{100 * share:.0f} %"


def origin_of(origin: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    return f"{origin['hardware']}, {origin['date'][:10]}; {versions}."


def bench_machine(written: Mapping[str, Any]) -> str:
    machine, versions = written["hardware"], written["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("skindx", "torch", "numpy"))
    # One name stands for processors of several generations.
    sets = f" ({machine['instructions']})" if machine.get("instructions") else ""
    return f"{machine['cpu']}{sets}, {machine['cores']} cores, {written['date'][:10]}; {named}."


def beside_target(
    figure: Mapping[str, Any], *, least: float = -math.inf, most: float = math.inf
) -> str:
    """Return the one limit that is given, and whether the figure misses it."""
    limit = f"at least {least}" if most == math.inf else f"at most {most}"
    missed = "" if least <= figure["value"] <= most else "; **missed**"
    return f" (target: {limit}{missed})"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
    return "\n".join([lines[0], "|---" * len(headings) + "|", *lines[1:]])
