"""Tables, inline code and links in Markdown."""

import re
from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [_row(headings), "|---" * len(headings) + "|", *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def code(text: object) -> str:
    """Return inline code."""
    return f"`{text}`"


def prose(text: str) -> str:
    """Return a docstring as Markdown paragraphs; angle brackets and braces stay as they are."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    return "\n\n".join(escape(paragraph) for paragraph in paragraphs if paragraph)


def escape(text: str) -> str:
    """Escape what Markdown would read as HTML, a link or emphasis, outside inline code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([\[\]<>*_{}$])", r"\\\1", part)
        for part in parts
    )
