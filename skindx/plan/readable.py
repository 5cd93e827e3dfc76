"""Numbers as a person reads them."""

import math


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


def within(value: float, half_width: float) -> str:
    """Return a time with its interval."""
    low, high = value / (1 + half_width), value * (1 + half_width)
    return f"{seconds(value)} [{seconds(low)}, {seconds(high)}]"


def size(value: float) -> str:
    """Return bytes."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"


def count(number: int, noun: str) -> str:
    """Return 1 node, 2 nodes."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float, *, signed: bool = False) -> str:
    """Return a share: 12 %, or +12 %."""
    return f"{100 * share:{'+' if signed else ''}.0f} %"


def rounded(value: float, digits: int = 3) -> str:
    """Return a number of so many digits, with commas and without powers of ten."""
    places = digits - 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, places):,.{max(0, places)}f}"
