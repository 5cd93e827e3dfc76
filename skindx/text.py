"""Text for a reader: untrusted text without control characters, numbers with their noun."""

import re


def printable(text: str) -> str:
    """Return text that gives no orders to a terminal and is read in the order of its letters.

    Control characters and those that turn the direction of writing become U+FFFD.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, whose plural takes an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def cell(text: str) -> str:
    """Return text for a cell of one of rich's tables, which would read [brackets] as markup."""
    from rich.markup import escape

    return escape(printable(text))


def without_password(text: str) -> str:
    """Return text with URLs of databases as it may be shown."""
    text = re.sub(r"(:/*[^/:@\s]*):\S*@", r"\1:***@", text)
    return re.sub(r"(?i)(\b(?:ssl)?pass(?:word|wd)?=)[^&\s'\"]*", r"\1***", text)
