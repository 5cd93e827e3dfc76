"""Features beside those of peers, from `peers.yaml`: a test or a link for each cell."""

from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Feature:
    """What users look for: the tests of it here, and each peer's (answer, link)."""

    name: str
    tests: tuple[str, ...]
    peers: dict[str, tuple[str, str]]


def peers() -> dict[str, str]:
    """Return each peer's name and the address of its documentation, in the table's order."""
    return dict(_written()["peers"])


def features() -> list[Feature]:
    """Return the rows of the table."""
    return [
        Feature(
            row["feature"],
            tuple(row["tests"]),
            {name: tuple(cell) for name, cell in row.get("peers", {}).items()},
        )
        for row in _written()["features"]
    ]


def peers_page() -> str:
    """Return the page with the table, for the generated reference."""
    names = peers()
    lines = [
        _LEAD.format(date=_written()["date"]),
        f"| feature | skindx | {' | '.join(f'[{name}]({url})' for name, url in names.items())} |",
        f"|---|---|{'---|' * len(names)}",
    ]
    for feature in features():
        tests = "<br>".join(f"`{test}`" for test in feature.tests)
        cells = [_cell(*feature.peers.get(name, ("", ""))) for name in names]
        lines.append(f"| {feature.name} | {tests} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _cell(answer: str, link: str) -> str:
    return f"[{answer}]({link})" if link else "–"


def _written() -> dict:  # type: ignore[type-arg]
    file = Path(__file__).with_suffix(".yaml")
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")))


_LEAD = """# Beside other tools

The column of skindx names the tests that hold a feature. In the other columns a link leads to the
tool's documentation of it ({date}); `make docs-links` asks whether the links still answer. A dash
means that we did not find the feature there, which is no proof that it is absent. Tools with
another purpose have few of these features, and many that are not listed.
"""
