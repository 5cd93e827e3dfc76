"""Environment of the pages of benches: they share a base, tables, and how numbers are written."""

from datetime import datetime
from typing import TYPE_CHECKING

from skindx.core.text import html_environment

if TYPE_CHECKING:
    from jinja2 import Environment


def pages() -> "Environment":
    """Return the environment of all pages of benchmarks."""
    environment = html_environment("skindx_bench")
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
