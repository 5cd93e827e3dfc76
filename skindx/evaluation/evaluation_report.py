"""An evaluation as one HTML file that needs nothing else, and as a table in the terminal."""

import base64
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.atomic_files import write_text
from skindx.core.measurement import MeasurementOrigin
from skindx.core.text import counted, html_environment, keep_units, markdown_environment
from skindx.evaluation import figures
from skindx.evaluation.answers import contamination_lines
from skindx.evaluation.breakdown import (
    LEAST_GROUPS,
    LEAST_IMAGES,
    LEAST_URGENT,
    FalseAlarms,
    UrgentMisses,
)
from skindx.evaluation.elsewhere import Change, Elsewhere
from skindx.evaluation.figures import (
    FIGURES,
    bounds,
    figures_table,
    points,
    shown,
    shown_difference,
    title,
)
from skindx.evaluation.image_table import MistakeStrip
from skindx.evaluation.input_effects import assisted_table, known_heading, known_rows, known_table
from skindx.evaluation.questions import target_text, useful_range
from skindx.evaluation.report_plots import (
    confusion_plot,
    decision_plot,
    half_answered,
    has_counts,
    reliability_plot,
    risk_plot,
    roc_plot,
    sensitivity_plot,
    urgent_plot,
)
from skindx.evaluation.score import Evaluation
from skindx.models.urgent_risk import QUESTION_WORDS, QUESTIONS
from skindx.texts.catalogue import text

if TYPE_CHECKING:
    from jinja2 import Template
    from rich.console import Console
    from rich.table import Table


_FILTERS = (
    figures.percent, figures.decimal, figures.points, figures.change, figures.bounds,
    figures.shown, figures.p_equation, figures.p_value, figures.first_upper,
)  # fmt: skip


def render(template: str, **values: Any) -> str:
    """Return a template of this folder as HTML that is well-formed XML too."""
    return keep_units(_template(template).render(figures=FIGURES, **values))


@cache
def _template(name: str) -> "Template":
    plain = name.endswith(".txt.jinja")
    environment = (markdown_environment if plain else html_environment)("skindx.evaluation")
    environment.filters.update({write.__name__: write for write in _FILTERS})
    environment.filters["difference"] = figures.shown_difference
    environment.filters["base64"] = _base64
    environment.globals.update(
        title=figures.title,
        figures_of=figures.figures_of,
        step_titles=step_titles,
        text=text,
        elsewhere_rows=elsewhere_rows,
        elsewhere_note=elsewhere_note,
        changed_cells=changed_cells,
        known_rows=known_rows,
        known_heading=known_heading,
    )
    return environment.get_template(name)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


PRINTED = ("top1", "balanced_accuracy", "auroc", "classwise_calibration_error")
STEP_TITLES = {
    "urgent": "step_urgent",
    "soon": "step_soon",
    "unknown": "step_unknown",
    "routine": "step_routine",
    "none": "step_refused",
}
"""Keys of what a user reads of each of STEPS."""
MATCHED_BY = {
    "key": "the same key",
    "name": "name or synonym",
    "code": "ICD-10 code, which only it bears",
    "none": "nothing: left out",
}


_NAMED = 8
"""Classes that the first page names; it must fit on a sheet."""


def write_report(
    path: Path,
    evaluation: Evaluation,
    origin: MeasurementOrigin,
    mistakes: Sequence[MistakeStrip] = (),
) -> None:
    """Write the report as one self-contained HTML file: no script, no outside reference."""
    write_text(path, render_report(evaluation, origin, mistakes))


def render_report(
    evaluation: Evaluation, origin: MeasurementOrigin, mistakes: Sequence[MistakeStrip] = ()
) -> str:
    """Return the report as HTML that is well-formed XML too; every value is escaped."""
    sensitivity = sensitivity_plot(evaluation)
    questions = {question.key: question for question in evaluation.questions}
    risks = []
    for name in QUESTIONS:
        scores, measured = evaluation.risk(name), questions.get(name)
        band = measured.triage if measured else ()
        plot = urgent_plot(scores, QUESTION_WORDS[name], band)
        if scores or name == "urgent_risk":
            risks.append((name, scores, plot.svg() if plot else None))
    largest = sorted((one for one in evaluation.classes if one.n), key=lambda one: -one.n)
    absent = [one.attribute for one in evaluation.breakdowns if not one.parts]
    return render(
        "report.html.jinja",
        e=evaluation,
        largest=largest[:_NAMED],
        rest=sum(one.n for one in largest[_NAMED:]),
        unknown=[name for name in absent if name in ("skin type", "age", "sex")],
        origin=origin,
        mistakes=mistakes,
        copies=contamination_lines(evaluation.contamination),
        interval_name=f"{100 * evaluation.level:.0f} % interval",
        verdict=verdict(evaluation),
        has_counts=has_counts(evaluation),
        half=half_answered(evaluation),
        confusion_plot=confusion_plot(evaluation).svg(),
        sensitivity_plot=sensitivity.svg() if sensitivity else None,
        reliability_plot=reliability_plot(evaluation).svg(),
        risk_plot=risk_plot(evaluation).svg(),
        risks=risks,
        words=QUESTION_WORDS,
        targets=_targets(evaluation),
        questions=[
            (question, roc_plot(question).svg(), decision_plot(question).svg())
            for question in evaluation.questions
        ],
        useful_range=useful_range,
        least=(LEAST_IMAGES, LEAST_GROUPS, LEAST_URGENT),
        matched_by=MATCHED_BY,
    )


def _targets(evaluation: Evaluation) -> dict[str, str]:
    """Return what the report says of the target, by the keys of the questions of urgency."""
    return {
        name: target_text(question, evaluation.risk(name))
        for question in evaluation.questions
        for name in QUESTIONS
        if name == question.key
    }


def print_table(evaluation: Evaluation, console: "Console") -> None:
    """Print what the product does, the headline figures with intervals, what is missed."""
    from rich.markup import escape

    if evaluation.not_useful:
        reasons = escape(" ".join(evaluation.not_useful))
        console.print(f"[bold]This bundle is not useful yet.[/] {reasons}", highlight=False)
    if evaluation.spectrum:
        console.print(spectrum_table(evaluation))
    if evaluation.served:
        console.print(served_table(evaluation))
    size = f"{evaluation.pictures} images, {evaluation.groups} groups"
    rows = [
        (
            scores.name,
            *(
                f"{shown(figure, key)} {bounds(figure, FIGURES[key].unit)}"
                for key in PRINTED
                for figure in [scores.figures[key]]
            ),
        )
        for scores in (*evaluation.members, evaluation.ensemble)
    ]
    heading = f"{size}; {100 * evaluation.level:.0f} % intervals"
    columns = ["", *(title(key, evaluation.k) for key in PRINTED)]
    console.print(figures_table(heading, columns, rows, emphasised=len(rows) - 1))
    if evaluation.assisted:
        console.print(assisted_table(evaluation.assisted))
    if evaluation.known_facts:
        console.print(known_table(evaluation.known_facts))
    if evaluation.elsewhere:
        console.print(elsewhere_table(evaluation.elsewhere))
    for line in sentences(evaluation):
        console.print(escape(line), highlight=False)


def step_titles(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return the next steps that some image got, with their titles."""
    return [
        (step, text(key))
        for step, key in STEP_TITLES.items()
        if any(row.steps[step] for row in evaluation.served)
    ]


def served_table(evaluation: Evaluation) -> "Table":
    """Return the next steps, refusals and abstentions as a table for a terminal."""
    steps = step_titles(evaluation)
    rows = [
        (
            f"{row.name}: {row.n} images, {row.groups} groups",
            *(f"{figures.percent(rate)} {bounds(rate)}"
              for rate in (*(row.rates[step] for step, _ in steps), row.abstained_rate)),
        )
        for row in evaluation.served
    ]  # fmt: skip
    columns = ["next step of", *(words for _, words in steps), "no condition named"]
    return figures_table("As served", columns, rows)


def spectrum_table(evaluation: Evaluation) -> "Table":
    """Return the figures with and without histology as a table for a terminal."""

    def rate(part: UrgentMisses | FalseAlarms | None) -> str:
        return f"{figures.percent(part.rate)} {bounds(part.rate)}" if part else "–"

    rows = [
        (
            f"{part.name}: {part.n} images, {part.groups} groups",
            rate(part.urgent),
            rate(part.others),
            f"{figures.percent(part.top1)} {bounds(part.top1)}",
            f"{figures.decimal(part.auroc)} {bounds(part.auroc, 'decimal')}",
        )
        for part in evaluation.spectrum
    ]
    columns = ("", "urgent, not called so", "others called urgent", "top-1", "AUROC")
    return figures_table("By how the label was confirmed, as served", columns, rows)


def elsewhere_rows(elsewhere: Elsewhere) -> list[tuple[str, Change]]:
    """Return the changes with their titles, those of single classes last, with both n."""
    rows = [(change.title, change) for change in elsewhere.changes]
    for one in elsewhere.classes:
        n = f"{one.name} (n {one.internal_images}, {one.external_images})"
        rows += [(f"{n}: {change.title}", change) for change in (one.auroc, one.sensitivity)]
    return rows


def elsewhere_table(elsewhere: Elsewhere) -> "Table":
    """Return the table of changes between the bundle's own dataset and the external one."""
    heading = f"Elsewhere, at unchanged thresholds; {elsewhere_note(elsewhere)}"
    rows = [(name, *changed_cells(change)) for name, change in elsewhere_rows(elsewhere)]
    return figures_table(heading, ("", "internal", "external", "change"), rows)


def changed_cells(change: Change) -> tuple[str, str, str]:
    """Write both figures and their difference, in the figure's unit, with intervals."""
    write = figures.percent if change.unit == "percent" else figures.decimal
    signed = figures.points if change.unit == "percent" else figures.change
    unit = "points" if change.unit == "percent" else "change"
    one, other = (
        f"{write(side)} {bounds(side, change.unit)}" if math.isfinite(side.value) else "–"
        for side in (change.internal, change.external)
    )
    difference = change.change
    if not math.isfinite(difference.value):
        return one, other, "–"
    return one, other, f"{signed(difference.value)} {bounds(difference, unit)}"


def elsewhere_note(elsewhere: Elsewhere) -> str:
    """Return what the internal figures are of, and which classes have none of their own."""
    of = counted(elsewhere.internal_images, "internal image")
    of += (
        ", the figures that the bundle holds of all its classes"
        if elsewhere.stored
        else f" in {counted(elsewhere.internal_groups, 'group')}, of the classes seen elsewhere"
    )
    if elsewhere.few:
        few = ", ".join(f"{name} ({a}, {b})" for name, (a, b) in elsewhere.few.items())
        of += f"; under {elsewhere.fewest} images, so not singly: {few}"
    if elsewhere.absent:
        of += f"; without external images: {', '.join(elsewhere.absent)}"
    return of


def sentences(evaluation: Evaluation) -> list[str]:
    """Return what stands under the printed table, most important first."""
    lines = _template("summary.txt.jinja").render(
        e=evaluation,
        words=QUESTION_WORDS,
        targets=_targets(evaluation).values(),
        verdict=verdict(evaluation),
        copies=contamination_lines(evaluation.contamination),
    )
    return [line for line in lines.splitlines() if line]


def verdict(evaluation: Evaluation) -> str:
    """Return what the ensemble gains in top-1 over its members, in a sentence or two."""
    gain = next((one for one in evaluation.gains if one.key == "top1"), None)
    if gain is None:
        return "The bundle has one member, so there is no ensemble to compare it with."
    level, over = f"{100 * evaluation.level:.0f} % interval", gain.over_better
    if over is None or gain.choice is None:
        each = "; ".join(f"{one.member} {shown_difference(one.gain, 'top1')}" for one in gain.gains)
        return f"Ensemble minus each member, points of top-1 with {level}: {each}."
    sentence = (
        f"Ensemble minus its better member ({over.member}, chosen by top-1 in "
        f"{gain.choice.shares[over.member]:.0%} of resampled validation images): top-1 "
        f"{points(over.gain.value)} points, {level} {bounds(over.gain, 'points')}."
    )
    if math.isnan(over.gain.low):
        return sentence
    if over.gain.low > 0:
        return f"{sentence} The ensemble is better on this split."
    if over.gain.high < 0:
        return f"{sentence} The member is better on this split."
    return f"{sentence} The interval holds 0, so this split cannot tell them apart."
