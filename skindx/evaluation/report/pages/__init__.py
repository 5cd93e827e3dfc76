"""Self-contained HTML pages: no script, no outside reference, every value escaped."""

import base64
import re
from typing import Any

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
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("skindx.evaluation.report", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({name: getattr(formatting, name) for name in _FILTERS})
    environment.filters["difference"] = formatting.shown_difference
    environment.filters["base64"] = _base64
    html = environment.get_template(template).render(figures=FIGURES, **values)
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", html)  # a figure keeps its unit


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
