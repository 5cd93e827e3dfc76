"""The page's own HTML: templates that escape whatever a bundle, a file name or an error says."""

import base64
from functools import cache
from typing import TYPE_CHECKING, Any

from skindx.diagnosis.measured import measured
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
