"""An answer in a notebook: a figure, and HTML without scripts or references."""

import io
import textwrap
from base64 import b64encode
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from skindx.core.machine import require_extra
from skindx.diagnosis import answer_texts, decision_texts
from skindx.diagnosis.advice_figures import right_at
from skindx.diagnosis.checklist_advice import urgency_given
from skindx.diagnosis.record import CaseAnswer, Diagnosis
from skindx.diagnosis.report.answer_report import heading, opened, outlined
from skindx.diagnosis.scope import tier_of
from skindx.models.conformal import Share
from skindx.taxonomy import Urgency
from skindx.texts.catalogue import percent, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _SOFT = "#1b2733", "#5b6775"
_INSIDE, _OUTSIDE = "#2a6fb5", "#b6bfc9"
"""Colours of the bars of the named conditions, and of the others."""
_EDGE: dict[Urgency, str] = {
    "urgent": "#b3261e",
    "soon": "#b06000",
    "routine": "#1b7f4d",
    "unknown": "#3c6a99",
}
_MOST_SHOWN = 12
_WIDE, _ROW, _PHOTO, _LEAST = 9.0, 0.34, 1.9, 2.2
"""Inches: the figure's width, a row's and a photo's height, and the least of both together."""
_LETTERS = 135
"""Letters in a line across the figure."""
MOST_HTML = 100_000
"""Bytes of an answer in a notebook, photos included."""
_MOST_PHOTO, _PHOTO_SIDE, _MOST_TEXT = 15_000, 260, 600


def limits(diagnosis: Diagnosis) -> list[str]:
    """Return what no reader of an answer may miss, in sentences."""
    known = (answer_texts.learned_from(diagnosis), *answer_texts.unknown(diagnosis))
    return [*answer_texts.warnings(diagnosis), text("cannot_rule_out"), *known, diagnosis.notice]


def _right(diagnosis: Diagnosis, metrics: dict[str, Any] | None) -> Share | None:
    """Return the measured share at the first probability; None where it says nothing of it."""
    first = diagnosis.candidates[0].probability
    return None if diagnosis.abstained or diagnosis.used_facts else right_at(metrics, first)


def _explained(diagnosis: Diagnosis, metrics: dict[str, Any] | None) -> list[str]:
    """Return what next step, set and probabilities are worth, in sentences."""
    said = (answer_texts.unsure(diagnosis), *decision_texts.errors(diagnosis))
    held = (answer_texts.set_sentence(diagnosis), answer_texts.measured_like(diagnosis, metrics))
    return [sentence for sentence in (*said, *held) if sentence]


@cache
def _notebook_figure() -> "type[Figure]":
    """Return a figure that a notebook shows though no window system is set up."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            drawn = io.BytesIO()
            self.savefig(drawn, format="png", dpi=110)
            return drawn.getvalue()

    return NotebookFigure


def answer_figure(answer: CaseAnswer, metrics: dict[str, Any] | None) -> "Figure":
    """Return photos, conditions with probabilities, next step and limits as a figure.

    Raises UserError without matplotlib.
    """
    require_extra("train", "matplotlib", purpose="a plot of an answer")
    from matplotlib.text import Text as Label

    diagnosis, step = answer.diagnosis, answer.diagnosis.next_step
    views = [pair for pair in zip(diagnosis.photos, answer.views, strict=False) if pair[1].jpeg]
    above = textwrap.wrap(f"{answer_texts.tier_name(diagnosis)}: {step.advice}", _LETTERS - 45)
    below = [
        line
        for sentence in (*_explained(diagnosis, metrics), *limits(diagnosis))
        for line in textwrap.wrap(sentence, _LETTERS)
    ]
    rows = len(diagnosis.candidates[:_MOST_SHOWN])
    body = max(_ROW * rows + 1.0, _PHOTO * len(views), _LEAST)
    foot = 0.15 + 0.16 * len(below)
    height = 0.2 + 0.24 * len(above) + body + foot
    figure = _notebook_figure()(figsize=(_WIDE, height), facecolor="white")
    bold: dict[str, Any] = {"size": 12, "weight": "bold", "color": _EDGE[urgency_given(diagnosis)]}
    figure.text(0.02, 1 - 0.1 / height, "\n".join(above), va="top", **bold)
    figure.text(0.02, foot / height, "\n".join(below), va="top", size=8, color=_SOFT)
    share = body / max(len(views), 1)
    for n, (photo, view) in enumerate(views):
        bottom = foot + body - (n + 1) * share + 0.1
        axes = figure.add_axes((0.02, bottom / height, 0.3, (share - 0.15) / height))
        axes.imshow(outlined(photo, view))
        axes.set_axis_off()
    left = 0.6 if views else 0.3
    room = (left, (foot + 0.55) / height, 0.9 - left, (body - 0.85) / height)
    _draw_conditions(figure, figure.add_axes(room), diagnosis, _right(diagnosis, metrics))
    for label in figure.findobj(Label):
        label.set_parse_math(False)  # a name may hold a dollar sign
    return figure


def _draw_conditions(
    figure: "Figure", axes: "Axes", diagnosis: Diagnosis, right: Share | None
) -> None:
    """Draw a bar a condition, a dot a network's first choice, and how often the first was right."""
    shown = diagnosis.listed[:_MOST_SHOWN]
    for inside, colour, name in ((True, _INSIDE, "named"), (False, _OUTSIDE, "others")):
        bars = {
            row: one.probability
            for row, one in enumerate(shown)
            if (one.in_set and not diagnosis.abstained) == inside
        }
        if bars:
            axes.barh(list(bars), list(bars.values()), 0.6, color=colour, label=name)
    places = {one.key: row for row, one in enumerate(shown)}
    dots = [(vote.probability, places[vote.key]) for vote in diagnosis.votes if vote.key in places]
    if dots:
        choices: dict[str, Any] = {"color": "#e08a00", "label": "a network's first choice"}
        axes.plot(*zip(*dots, strict=True), "o", markersize=5, clip_on=False, **choices)
    if right:
        ends = [[max(right.value - right.low, 0)], [max(right.high - right.value, 0)]]
        measured: dict[str, Any] = {"color": _INK, "label": "measured, 95 % interval"}
        axes.errorbar([right.value], [0.18], xerr=ends, fmt="|", capsize=4, **measured)
    for row, one in enumerate(shown):
        axes.text(1.03, row, percent(one.probability), va="center", size=9, color=_INK)
    names = [textwrap.shorten(one.name, 36, placeholder=" …") for one in shown]
    axes.set_yticks(range(len(shown)), names, size=9)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"], size=8, color=_SOFT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(heading(diagnosis), loc="left", size=10, color=_INK)
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="upper right",
        bbox_to_anchor=(0.99, axes.get_position().y0 - 0.25 / figure.get_figheight()),
        ncols=4,
        frameon=False,
        fontsize=7,
    )


def answer_html(answer: CaseAnswer, metrics: dict[str, Any] | None) -> str:
    """Return the same as HTML for a notebook: no script, no reference, at most MOST_HTML bytes."""
    diagnosis, step = answer.diagnosis, answer.diagnosis.next_step
    shown = diagnosis.listed[:_MOST_SHOWN]
    row = Markup(
        '<tr><td>{}</td><td style="text-align:left">{}</td><td>{}</td><td>{}</td><td>{}</td><td>'
        '<div style="width:7em"><div style="width:{}%;height:.7em;background:{}"></div></div>'
        "</td></tr>"
    )
    rows = [
        row.format(
            "●" if one.in_set and not diagnosis.abstained else "",
            *(_short(text) or "–" for text in (one.name, one.icd10)),
            tier_of(diagnosis, one),
            percent(one.probability),
            round(100 * one.probability),
            _INSIDE if one.in_set and not diagnosis.abstained else _OUTSIDE,
        )
        for one in shown
    ]
    rest = len(diagnosis.candidates) - len(shown)
    more = [f"{rest} more conditions are in the answer."] if rest else []
    said = Markup('<p style="max-width:52em;margin:.3em 0">{}</p>')
    below = (*more, *_explained(diagnosis, metrics), *limits(diagnosis))
    heads = Markup("").join(
        Markup("<th>{}</th>").format(name)
        for name in (
            "named",
            heading(diagnosis),
            text("column_icd10"),
            "urgency",
            "probability",
            "",
        )
    )
    html_text = Markup(
        '<p style="border-left:.4em solid {};padding-left:.6em"><b>{}: {}</b><br>{}</p>'
        "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>{}"
    ).format(
        _EDGE[urgency_given(diagnosis)],
        answer_texts.tier_name(diagnosis),
        _short(step.advice),
        _short(step.because),
        heads,
        Markup("").join(rows),
        Markup("").join(said.format(_short(sentence)) for sentence in below),
    )
    images = Markup("").join(
        Markup('<img alt="photo {}" style="margin:.2em" src="data:image/jpeg;base64,{}">').format(
            n, b64encode(_small(view.jpeg)).decode()
        )
        for n, view in enumerate(answer.views, 1)
        if view.jpeg
    )
    html = f"<div>{images}{html_text}</div>"
    return html if len(html.encode()) <= MOST_HTML else f"<div>{html_text}</div>"


def _short(text: str) -> str:
    return textwrap.shorten(text, _MOST_TEXT, placeholder=" …")


def _small(jpeg: bytes) -> bytes:
    """Return a photo as a JPEG of a few thousand bytes, whatever it shows."""
    image = opened(jpeg).convert("RGB")
    for side, quality in ((_PHOTO_SIDE, 85), (_PHOTO_SIDE, 60), (_PHOTO_SIDE, 30), (96, 30)):
        image.thumbnail((side, side))
        written = io.BytesIO()
        image.save(written, "JPEG", quality=quality)
        if written.tell() <= _MOST_PHOTO:
            break
    return written.getvalue()
