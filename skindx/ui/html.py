"""The page's own HTML: templates that escape whatever a bundle, a file name or an error says."""

import base64
from functools import cache
from typing import TYPE_CHECKING, Any

from skindx.diagnosis.record import NOTICE, Diagnosis, percent

if TYPE_CHECKING:
    from jinja2 import Environment


def top_html() -> str:
    """Return what the page is, and the notice."""
    return _render("top.html.jinja", notice=NOTICE)


def waiting_html() -> str:
    """Return what stands in the result's place before the first picture."""
    return _render("waiting.html.jinja")


def problem_html(message: str) -> str:
    """Return a sentence about what went wrong and what to do."""
    return _render("problem.html.jinja", message=message[:1].upper() + message[1:])


def result_html(diagnosis: Diagnosis, metrics: dict[str, Any] | None) -> str:
    """Return the diagnosis: next step, candidates, what they rest on."""
    shown = sum(each.probability for each in diagnosis.candidates)
    return _render(
        "result.html.jinja",
        diagnosis=diagnosis,
        rest=1 - shown,
        measured=measured(metrics),
        percent=percent,
    )


def figure_html(diagnosis: Diagnosis, view: bytes) -> str:
    """Return the picture with the detector's boxes as outlines; the picture is in the HTML itself.

    So no file of it needs to be kept for the browser to fetch.
    """
    jpeg = base64.b64encode(view).decode()
    return _render("figure.html.jinja", diagnosis=diagnosis, jpeg=jpeg)


def measured(metrics: dict[str, Any] | None) -> str:
    """Return what the bundle's evaluation measured, in a sentence; empty when it says nothing.

    Reads the layout of `skindx evaluate`; a figure that is missing is left out.
    """
    ensemble = _part(metrics, "ensemble")
    figures = [
        text
        for name, key in (
            ("top-1", "top1"),
            ("balanced accuracy", "balanced_accuracy"),
            ("calibration error", "calibration_error"),
        )
        if (text := _figure(name, _part(ensemble, key)))
    ]
    if not figures:
        return ""
    split = _part(metrics, "origin").get("split")
    pictures = metrics.get("pictures") if metrics else None
    of = f" ({pictures:,} pictures)" if isinstance(pictures, int) else ""
    where = f"its {split} split" if isinstance(split, str) else "pictures kept apart"
    return f"Measured on {where}{of}: {', '.join(figures)}."


def _figure(name: str, interval: dict[str, Any]) -> str:
    value, low, high = (interval.get(key) for key in ("value", "low", "high"))
    if not isinstance(value, float | int):
        return ""
    if isinstance(low, float | int) and isinstance(high, float | int):
        return f"{name} {100 * value:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f} %)"
    return f"{name} {100 * value:.1f} %"


def _part(whole: dict[str, Any] | None, key: str) -> dict[str, Any]:
    part = whole.get(key) if whole else None
    return part if isinstance(part, dict) else {}


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("skindx.ui"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)
