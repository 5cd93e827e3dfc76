"""Environment of the pages of benches: they share a base, tables, and how numbers are written."""

from datetime import datetime
from typing import TYPE_CHECKING

from skindx.core.text import html_environment

if TYPE_CHECKING:
    from jinja2 import Environment

_SHARED = ("skindx_bench.devices", "skindx_bench.compare")


def pages(package: str) -> "Environment":
    """Return the environment for a bench's own templates and the shared ones."""
    from jinja2 import ChoiceLoader

    environment = html_environment(package)
    others = [html_environment(shared).loader for shared in _SHARED if shared != package]
    environment.loader = ChoiceLoader(
        [loader for loader in (environment.loader, *others) if loader is not None]
    )
    environment.filters |= {"digits": digits, "date": date}
    return environment


def digits(value: float) -> str:
    """Return a number with four significant digits at most and thousands apart: 72,380."""
    return f"{float(f'{value:.4g}'):,.4g}" if abs(value) < 1000 else f"{float(f'{value:.4g}'):,.0f}"


def date(written: str) -> str:
    """Return a time of a JSON file for people, or what stands there where it is none."""
    try:
        return f"{datetime.fromisoformat(written):%Y-%m-%d %H:%M %Z}"
    except ValueError:
        return written
