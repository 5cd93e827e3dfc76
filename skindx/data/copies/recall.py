"""How much of planted copies the search finds, as `skindx bench clean` measured it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "recall.json"


@cache
def _read() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return read


def measured() -> dict[str, dict[str, Any]]:
    """Return found, n, low and high by kind of copy; `skindx_bench.clean.recall` writes them."""
    recall: dict[str, dict[str, Any]] = _read()["recall"]
    return recall


def false_links() -> tuple[int, int]:
    """Return how many links of the same runs join different images, and how many links they are."""
    counted = _read()["false_links"]
    return counted["false"], counted["links"]


def sentence() -> str:
    """Say which share of which kinds is found, and how many links are false."""
    recall = measured()
    whole = [row for row in recall.values() if row["found"] == row["n"]]
    parts = []
    if whole:
        low = 100 * min(row["low"] for row in whole)
        parts.append(f"all of {len(whole)} of {len(recall)} kinds (lower bound {low:.0f} %)")
    parts += [
        f"{100 * row['found'] / row['n']:.0f} % of {kind.replace('_', ' ')} "
        f"[{100 * row['low']:.0f}, {100 * row['high']:.0f}]"
        for kind, row in recall.items()
        if row["found"] < row["n"]
    ]
    false, links = false_links()
    return (
        f"Of planted copies this search finds {', '.join(parts)}; {false or 'none'} of its "
        f"{links:,} links there joined different images."
    )
