"""A measured figure stands in a block that is rendered from a JSON.

The rule is strict, and what is no measurement is listed: every share in percent, every factor, and
every time or rate with a unit must stand in a rendered block, in a shell block, or among the
exceptions below. A page of the part Measured has little but such blocks.
"""

import re
import sys
from pathlib import Path

import pytest
from guide_pages import PAGES, ROOT, prose_of

sys.path.insert(0, str(ROOT / "docs"))

from reading import MOST_HOW_TO_PAGES, MOST_WORDS, RENDERED, count, pages, part_of, prose

NUMBER = r"[-−+]?\d[\d,.]*"

FIGURES = {
    "an interval": re.compile(rf"\[{NUMBER}( ?%)?, {NUMBER}( ?%)?\]"),
    "a share": re.compile(r"\d ?%"),
    "a factor": re.compile(r"\d ?×(?! ?\d)"),
    "a rate": re.compile(r"\d ?(images|photos|pictures)? ?(/s|a second|per second)\b"),
    "a time": re.compile(r"\d ?(µs|ms|s|min|h|seconds?|minutes?|hours?|days?)\b"),
}

SETTINGS = {
    "README.md": ("in 30 minutes",),
    "data/README.md": ("every 15 seconds",),
    "docs/index.md": ("images in 30 minutes",),
    "docs/start/images.md": ("in 30 minutes",),
    "docs/howto/serve.md": ("has 10 seconds", "first 20 seconds"),
    "docs/measured/index.md": ("are 95 % intervals",),
    "docs/reference/methods.md": (
        "100 % [97.0, 100.0]",  # arithmetic, not measured: 120 of 120
        "at most 1.5 %",
    ),
}
"""Page -> phrases that are settings, promises or what was asked for: no measurements."""


def figures_of(page: Path) -> list[str]:
    """Return each figure of a page outside its blocks, with the words around it."""
    text = RENDERED.sub("", prose_of(page))
    for phrase in SETTINGS.get(page.relative_to(ROOT).as_posix(), ()):
        text = re.sub(r"\s+".join(map(re.escape, phrase.split())), "", text)
    text = re.sub(r"`[^`]*`", "", text)
    return [
        f"{name}: …{' '.join(text[max(0, found.start() - 40) : found.end() + 20].split())}…"
        for name, pattern in FIGURES.items()
        for found in pattern.finditer(text)
    ]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page != ROOT / "CHANGELOG.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_no_measured_figure_stands_outside_a_rendered_block(page: Path) -> None:
    assert figures_of(page) == []


@pytest.mark.parametrize(
    "figure",
    [
        "the ensemble reaches 76.3 % [71.7, 80.5]",
        "it is 3.9 × imagehash",
        "1,150 images/s on a core",
        "a photo takes 0.47 s",
        "the merge takes 20 ms",
        "it was 0.041 [0.000, 0.078]",
        "the demo takes 3 minutes",
    ],
)
def test_the_rule_finds_a_measured_figure(figure: str, tmp_path: Path) -> None:
    assert any(pattern.search(figure) for pattern in FIGURES.values())


def test_exceptions_are_needed() -> None:
    for name, phrases in SETTINGS.items():
        text = " ".join(RENDERED.sub("", prose_of(ROOT / name)).split())
        assert [phrase for phrase in phrases if phrase not in text] == []
        found = [any(rule.search(phrase) for rule in FIGURES.values()) for phrase in phrases]
        assert all(found), name


def test_the_guide_is_short() -> None:
    words = {page: count(prose(page)) for page in pages()}
    assert sum(words.values()) <= MOST_WORDS, "python docs/reading.py names the longest pages"
    assert len([page for page in words if part_of(page) == "howto"]) <= MOST_HOW_TO_PAGES


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs/measured").glob("*.md")), ids=lambda page: page.stem
)
def test_a_measured_page_has_little_but_rendered_blocks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    sections = text.count("\n## ") + 1
    assert page.stem == "index" or RENDERED.search(text)
    assert count(prose(page)) <= 160 or count(prose(page)) <= 30 * sections
