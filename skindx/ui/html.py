"""The page's own HTML: templates that escape whatever a bundle, a file name or an error says."""

import base64
from functools import cache
from typing import TYPE_CHECKING, Any

from skindx.core.text import html_environment, keep_units
from skindx.data.publish.published_rows import web_address

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: Any) -> str:
    """Return a template filled in; a value that it misses is an error, never a gap."""
    return keep_units(_environment().get_template(template).render(**values))


def data_url(data: bytes, kind: str) -> str:
    """Return bytes as an address that holds them: no file is kept for the browser to fetch."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def sentence(message: str) -> str:
    """Return a message with a capital letter at its start."""
    return message[:1].upper() + message[1:]


@cache
def _environment() -> "Environment":
    environment = html_environment("skindx.ui")
    environment.filters["web_address"] = web_address
    return environment
