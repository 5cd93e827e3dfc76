"""The attribute `srcset`: addresses with a width or a pixel density, as the HTML standard has it.

"Parsing a srcset attribute", https://html.spec.whatwg.org/multipage/images.html
"""

import re
from dataclasses import dataclass

_SPACES = " \t\n\f\r"
_DENSITY = re.compile(r"-?(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+)?x")


@dataclass(frozen=True, slots=True)
class SrcsetEntry:
    """One address of a srcset; `width_px` or `density` is None where the other one is given."""

    address: str
    width_px: int | None = None
    density: float | None = None


def parse_srcset(text: str) -> list[SrcsetEntry]:
    """Return the usable entries in their order; one with an invalid descriptor is left out.

    An address may hold commas, also a data: URL; only commas at its end separate. An entry
    without a descriptor has the density 1.
    """
    entries: list[SrcsetEntry] = []
    at = 0
    while True:
        while at < len(text) and text[at] in _SPACES + ",":
            at += 1
        if at == len(text):
            return entries
        start = at
        while at < len(text) and text[at] not in _SPACES:
            at += 1
        address = text[start:at]
        if address.endswith(","):
            entry = _entry(address.rstrip(","), [])
        else:
            descriptors, at = _descriptors(text, at)
            entry = _entry(address, descriptors)
        if entry:
            entries.append(entry)


def _descriptors(text: str, at: int) -> tuple[list[str], int]:
    """Return the descriptors from position `at` on, and where the next entry begins."""
    found, current, depth = [], "", 0
    while at < len(text):
        char = text[at]
        at += 1
        if depth == 0 and char in _SPACES + ",":
            if current:
                found.append(current)
                current = ""
            if char == ",":
                return found, at
            continue
        depth += {"(": 1, ")": -1 if depth else 0}.get(char, 0)
        current += char
    return [*found, current] if current else found, at


def _entry(address: str, descriptors: list[str]) -> SrcsetEntry | None:
    width_px: int | None = None
    density: float | None = None
    height = False
    for descriptor in descriptors:
        number = descriptor[:-1]
        is_count = number.isascii() and number.isdigit() and len(number) < 10 and int(number) > 0
        if descriptor[-1] == "w" and is_count and width_px is None and density is None:
            width_px = int(number)
        elif descriptor[-1] == "h" and is_count and not height and density is None:
            height = True  # kept for later versions of the standard, and needs a width
        elif _DENSITY.fullmatch(descriptor) and (width_px, density, height) == (None, None, False):
            density = float(number)
        else:
            return None
    if (height and width_px is None) or (density is not None and not 0 <= density < 1e6):
        return None
    return SrcsetEntry(address, width_px, 1.0 if (width_px, density) == (None, None) else density)
