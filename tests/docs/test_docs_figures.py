"""A measured figure stands in a block that is rendered from a JSON, or among the earlier figures.

The rule is strict, and what is no measurement is listed: every share in percent, every factor, and
every time or rate with a unit must stand in a rendered block, in a shell block, on the page of
earlier figures, or among the exceptions below.
"""

import re
from pathlib import Path

import pytest
from guide_pages import PAGES, ROOT, prose_of

EARLIER = ROOT / "docs/measured/earlier.md"

RENDERED = re.compile(r"<!-- (?!end of|run)([^>]+?) -->.*?<!-- end of \1 -->", re.DOTALL)

NUMBER = r"[-−+]?\d[\d,.]*"

FIGURES = {
    "an interval": re.compile(rf"\[{NUMBER}( ?%)?, {NUMBER}( ?%)?\]"),
    "a share": re.compile(r"\d ?%"),
    "a factor": re.compile(r"\d ?×(?! ?\d)"),
    "a rate": re.compile(r"\d ?(images|photos|pictures)? ?(/s|a second|per second)\b"),
    "a time": re.compile(r"\d ?(µs|ms|s|min|h|seconds?|minutes?|hours?|days?)\b"),
}

SETTINGS = {
    "data/README.md": ("every 15 seconds",),
    "docs/explanation/statistics.md": (
        "a 95 % interval",
        "about 80 %",
        "about 99 %",
        "100 % [97.0, 100.0]",  # arithmetic, not measured: 120 of 120
        "at most 5 %",
        "at most 40 %",
        "1, 5 and 20 %",
        "80 and 88 %",
    ),
    "docs/explanation/ood.md": ("at most 1.5 %",),
    "docs/howto/boxes.md": ("more than 90 %",),
    "docs/howto/evaluate.md": ("a miss rate of 5 %",),
    "docs/howto/hardware.md": ("changed by more than 5 %",),
    "docs/howto/serve.md": ("has 10 seconds", "first 20 seconds"),
    "docs/measured/isic9.md": (
        "95 % intervals",
        "at most 55 %",
        "for 5 %",
        "for 10 %",
    ),
    "docs/measured/out-of-distribution.md": (
        "that 60 %",
        "that 95 % of the other kind",
        "at 2 % of one's own",
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
    [page for page in PAGES if page not in (EARLIER, ROOT / "CHANGELOG.md")],
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


def test_the_page_of_earlier_figures_says_what_they_are() -> None:
    text = " ".join(EARLIER.read_text(encoding="utf-8").split())
    assert "printed by an earlier version" in text
    assert "intervals are of earlier methods" in text
