"""Self-contained HTML pages: no script, no outside reference, every value escaped."""

import base64
from typing import Any

from skindx.core.text import html_environment, keep_units
from skindx.evaluation import formatting
from skindx.evaluation.headline import FIGURES

_FILTERS = (
    "percent",
    "decimal",
    "points",
    "change",
    "bounds",
    "shown",
    "p_equation",
    "p_value",
    "first_upper",
)


def render(template: str, **values: Any) -> str:
    """Return a template of this folder as HTML that is well-formed XML too."""
    environment = html_environment("skindx.evaluation.report", "pages")
    environment.filters.update({name: getattr(formatting, name) for name in _FILTERS})
    environment.filters["difference"] = formatting.shown_difference
    environment.filters["base64"] = _base64
    environment.globals.update(title=formatting.title, figures_of=formatting.figures_of)
    return keep_units(environment.get_template(template).render(figures=FIGURES, **values))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
