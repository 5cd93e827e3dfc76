"""An evaluation as one HTML file that needs nothing else, and as a table in the terminal."""

import base64
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.files import write_text
from skindx.metrics import Interval
from skindx.studies.mistakes import Mistake
from skindx.studies.origin import Origin
from skindx.studies.plots import confusion_plot, reliability_plot, top_confusions
from skindx.studies.results import Evaluation

if TYPE_CHECKING:
    from rich.console import Console

TEMPLATE = "report.html.jinja"


def write_report(
    path: Path, evaluation: Evaluation, origin: Origin, mistakes: Sequence[Mistake] = ()
) -> None:
    """Write the report as one self-contained HTML file: no script, no outside reference."""
    write_text(path, render_report(evaluation, origin, mistakes))


def render_report(evaluation: Evaluation, origin: Origin, mistakes: Sequence[Mistake] = ()) -> str:
    """Return the report as HTML that is well-formed XML too; every value is escaped."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        percent=percent, bounds=bounds, points=points, decimal=decimal, base64=_base64
    )
    source = resources.files("skindx.studies").joinpath(TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(source).render(
        e=evaluation,
        origin=origin,
        mistakes=mistakes,
        interval_name=f"{100 * evaluation.level:.0f} % interval",
        verdict=verdict(evaluation),
        confusion=confusion_plot(evaluation),
        confusions=top_confusions(evaluation),
        reliability=reliability_plot(evaluation),
    )


def print_table(evaluation: Evaluation, console: "Console") -> None:
    """Print the headline figures with their intervals, and the ensemble's difference."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    size = f"{evaluation.pictures} pictures, {evaluation.groups} groups"
    title = f"{size}; {100 * evaluation.level:.0f} % intervals"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for heading in ("top-1", f"top-{evaluation.k}", "balanced accuracy", "calibration error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in (*evaluation.members, evaluation.ensemble):
        style = "bold" if each is evaluation.ensemble else ""
        shares = (each.top1, each.top_k, each.balanced_accuracy)
        cells = [f"{percent(share)} {bounds(share)}" for share in shares]
        error = each.calibration_error
        cells.append(f"{decimal(error)} {bounds(error, 'decimal')}")
        table.add_row(escape(each.name), *cells, style=style)
    console.print(table)
    console.print(escape(verdict(evaluation)), highlight=False)
    if evaluation.detector:
        found = evaluation.detector
        console.print(
            f"Detector: mAP50 {found.map50:.3f}, mAP50-95 {found.map50_95:.3f} "
            f"on {found.pictures} pictures with {found.boxes} boxes.",
            highlight=False,
        )


def verdict(evaluation: Evaluation) -> str:
    """Return what the paired difference says, in a sentence or two."""
    difference = evaluation.difference
    if difference is None:
        return "The bundle has one member, so there is no ensemble to compare it with."
    top1 = difference.top1
    said = (
        f"Ensemble minus its best member ({difference.member}): top-1 {points(top1.value)} points, "
        f"{100 * evaluation.level:.0f} % interval {bounds(top1, 'points')}."
    )
    if math.isnan(top1.low):
        return said
    if top1.low > 0:
        return f"{said} The ensemble is better on this split."
    if top1.high < 0:
        return f"{said} The member is better on this split."
    return f"{said} The interval holds 0, so this split cannot tell them apart."


def percent(figure: Interval | float) -> str:
    """Write a share as 78.3 %."""
    value = figure.value if isinstance(figure, Interval) else figure
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def decimal(figure: Interval | float) -> str:
    """Write a figure as 0.041."""
    value = figure.value if isinstance(figure, Interval) else figure
    return "–" if math.isnan(value) else f"{value:.3f}"


def points(difference: float) -> str:
    """Write a difference of shares in percentage points, with its sign: +2.1, −0.4."""
    text = f"{100 * difference:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def bounds(figure: Interval, unit: str = "percent") -> str:
    """Write an interval as [74.6, 81.9], in percent, points or as a decimal."""
    if math.isnan(figure.low):
        return "[–]"
    low, high = figure.low, figure.high
    if unit == "percent":
        return f"[{100 * low:.1f}, {100 * high:.1f}]"
    write = {"points": points, "decimal": decimal}[unit]
    return f"[{write(low)}, {write(high)}]"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
