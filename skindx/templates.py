"""Jinja templates: one environment for all pages and cards, where a missing value is an error."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def html_environment(package: str, folder: str = "templates") -> "Environment":
    """Return an environment for HTML templates in a folder of a package; values are escaped."""
    return _environment(package, folder, escape=True)


def markdown_environment(package: str, folder: str = "templates") -> "Environment":
    """Return an environment for Markdown, which nothing escapes: filter each untrusted value."""
    return _environment(package, folder, escape=False)


def keep_units(html: str) -> str:
    """Return HTML in which no line breaks between a number and its percent sign."""
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", html)


def _environment(package: str, folder: str, *, escape: bool) -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(package, folder),
        autoescape=escape,  # noqa: S701  (HTML is always escaped, Markdown has no escape)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not escape,
    )
