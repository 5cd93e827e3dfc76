"""Text for a reader: printable, in HTML and Markdown, and in what two settings differ."""

import hashlib
import re
import unicodedata
from base64 import b64encode
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def printable(text: str) -> str:
    """Return text that gives no orders to a terminal and is read in the order of its letters.

    Control characters and those that turn the direction of writing become U+FFFD.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


@lru_cache(maxsize=4096)  # each answer compares the same few hundred names
def folded_name(text: str) -> str:
    """Return the form in which names are compared: names with the same form are one name.

    Case, composed letters, full width, circles and raised digits do not count (NFKC, casefold),
    nor invisible signs and runs of blanks, nor the dot of an i: Turkish and other keyboards write
    the same name with and without it. Marks, which are the vowels of many scripts, do.
    """
    seen = (char for char in text if unicodedata.category(char) != "Cf")
    small = unicodedata.normalize("NFKC", "".join(seen)).casefold()
    return " ".join(_DOTS.sub("i", unicodedata.normalize("NFKC", small)).split())


def is_word_sign(char: str) -> bool:
    """Tell whether a character is a letter, a mark on one, or a digit.

    Not `str.isalnum`, which drops the vowels of Hindi and Thai and takes ⅓ for a digit.
    """
    kind = unicodedata.category(char)
    return kind[0] in "LM" or kind in ("Nd", "Nl")


_DOTS = re.compile("i\u0307|\u0131")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, whose plural takes an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def cell(text: str) -> str:
    """Return text for a cell of one of rich's tables, which would read [brackets] as markup."""
    from rich.markup import escape

    return escape(printable(text))


def without_password(text: str) -> str:
    """Return text with URLs of databases as it may be shown."""
    text = re.sub(r"(\w://[^/:@\s]*)(?::[^\n]*|@\S*)@", r"\1:***@", text)
    text = re.sub(r"(:/*[^/:@\s]*):\S*@", r"\1:***@", text)
    return re.sub(r"(?i)(\b(?:ssl)?pass(?:word|wd)?=)[^&\s'\"]*", r"\1***", text)


MADE_FROM = "made_from"
"""The key of plain settings beside the fingerprint that was made of them."""

_MOST, _LONGEST = 3, 40


def differences(before: Any, now: Mapping[str, Any], names: Mapping[str, str] | None = None) -> str:
    """Return in words how `now` differs from `before`: the keys, and short values.

    `names` gives other words to keys, or to all that stands below one; an empty one leaves it out.
    Without anything to compare with, as in what older versions wrote, that is said.
    """
    if not isinstance(before, Mapping):
        return "an older version wrote it, which did not keep which"
    every = (_words(path, old, new, names or {}) for path, old, new in _walk(before, now, ""))
    changes = [words for words in dict.fromkeys(every) if words]
    first, more = changes[:_MOST], len(changes) - _MOST
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def _walk(before: Any, now: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*now, *before]):
            below = f"{path}.{key}" if path else str(key)
            yield from _walk(before.get(key), now.get(key), below)
    elif before != now:
        yield path, before, now


def _words(path: str, old: Any, new: Any, names: Mapping[str, str]) -> str:
    shown = path
    for key, name in names.items():
        if path == key or path.startswith(f"{key}."):
            shown = f"{name}{path[len(key) :]}" if name else ""
            break
    if not shown:
        return ""
    was, is_now = ("none" if value is None else str(value) for value in (old, new))
    if " " in shown or max(len(was), len(is_now)) > _LONGEST:  # a hash, or a name in words
        return shown
    return f"{shown} was {was} and is {is_now}"


def html_environment(package: str) -> "Environment":
    """Return an environment for the HTML templates of a package; values are escaped.

    Each may include report.css, the style sheet of all reports.
    """
    return _environment(package, escape=True)


def inlined(package: str, name: str) -> str:
    """Return a style or script of a package's templates as part of HTML and of XML alike.

    A style follows page.css, which all such pages share.
    """
    files = [resources.files(package) / "templates" / name]
    if name.endswith(".css"):
        files.insert(0, resources.files("skindx.core") / "templates/page.css")
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    return f"/*<![CDATA[*/\n{text}/*]]>*/"


def csp_hash(text: str) -> str:
    """Return the source expression that a Content-Security-Policy allows a text by."""
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode()


def markdown_environment(package: str) -> "Environment":
    """Return an environment for Markdown, which nothing escapes: filter each untrusted value."""
    return _environment(package, escape=False)


def keep_units(html: str) -> str:
    """Return HTML in which no line breaks between a number and its percent sign."""
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", html)


def _environment(package: str, *, escape: bool) -> "Environment":
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("skindx.core")]),
        autoescape=escape,  # noqa: S701  (HTML is always escaped, Markdown has no escape)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not escape,
    )


# Numbers as a person reads them.


def seconds(value: float) -> str:
    """Return a time: 12 ms, 3.4 s, 2 h 05 min."""
    if value < 1:
        return f"{1000 * value:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    minutes = round(value / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{value / 86400:.1f} days"


def size(value: float) -> str:
    """Return bytes."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"
