"""What the page of all benches shows of each: its figures in words, and the tables behind them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WORDS = {
    "devices": {
        "memory bandwidth": "memory: the faster of copy and triad",
        "end_over_start": "speed at the end of the run over that at its beginning (1: no drift)",
    },
    "exchange": {
        "gtopk_over_fp32": "gTop-k (lossy) over the dense exchange",
        "gtopk_over_bf16": "gTop-k over the dense exchange in bf16",
        "gtopk_over_powersgd4": "gTop-k over PowerSGD of rank 4",
        "local_ms": "what gTop-k computes, on one core",
        "select_over_memory_limit": "gTop-k's selection over one pass over the memory",
    },
    "loader": {
        "loader_over_decode": "loader over decoding alone",
        "loader_over_imagefolder": "loader over torchvision's ImageFolder",
        "cache_over_imagefolder": "cached images over ImageFolder",
        "cache_over_resize_limit": "cached images over resizing alone",
        "resize_over_opencv": "resizing over OpenCV's",
        "resize_over_copy": "resizing over copying as many pixels",
    },
    "serve": {
        "direct_over_http_cpu": "processor time of a direct call over that of an answer by HTTP",
        "page_12mp_s": "from the click to the whole page, a photo of 12 megapixels",
    },
}
"""Bench -> what its figures are; "over" is how many times faster, or what is said."""

_CONTAINER = {
    "container_over_host": "{}: container over host",
    "sham_over_host": "{}: a second process of the host over the first (must hold 1)",
    "planted_over_host": "{}: the same, made slower on purpose (must lie below 1)",
}


@dataclass(frozen=True)
class Row:
    """A figure as the page shows it."""

    name: str
    value: float
    unit: str
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Table:
    """Some figures under a title; those of `more` are folded away."""

    title: str
    rows: tuple[Row, ...]
    more: bool = False


def tables(written: Mapping[str, Any]) -> list[Table]:
    """Return the tables of one bench's JSON, what says most first."""
    bench = written["bench"]
    rows = {key: _row(words(bench, key), figure) for key, figure in written["figures"].items()}
    folded = [key for key in rows if bench == "devices" and re.search(r": \w[\w ]*$", key)]
    shown = Table("", tuple(row for key, row in rows.items() if key not in folded))
    found = [*_exchanges(written), *_parts(written), shown]
    if folded:
        found.append(Table("Operators and networks", tuple(rows[key] for key in folded), more=True))
    return [table for table in found if table.rows]


def words(bench: str, key: str) -> str:
    """Return what a figure is, in words where there are some."""
    task, _, kind = key.rpartition(": ")
    if bench == "container" and kind in _CONTAINER:
        return _CONTAINER[kind].format(task)
    return WORDS.get(bench, {}).get(key, key)


def _exchanges(written: Mapping[str, Any]) -> list[Table]:
    """Return a table of each part of bench exchange: what an exchange takes."""
    if written["bench"] != "exchange":
        return []
    parts: dict[str, list[Row]] = {}
    for row in written.get("models", {}).values():
        figure = {**row["total_ms"], "unit": "ms"}
        parts.setdefault(row["part"], []).append(_row(row["name"], figure))
    return [Table(part, tuple(rows)) for part, rows in parts.items()]


def _parts(written: Mapping[str, Any]) -> list[Table]:
    """Return what a bench measured on the way: a loader's images/s, the stages of an answer."""
    titles = {"rates": "Images a second", "stages": "Processor time of an answer, by stage"}
    return [
        Table(title, tuple(_row(name, figure) for name, figure in written["parts"][part].items()))
        for part, title in titles.items()
        if part in written.get("parts", {})
    ]


def _row(name: str, figure: Mapping[str, Any]) -> Row:
    value, unit, (low, high) = figure["value"], figure["unit"], figure["spread"]
    if unit == "s" and max(value, high) < 1:
        value, low, high, unit = 1000 * value, 1000 * low, 1000 * high, "ms"
    return Row(name, value, unit, low, high, figure["n"])
