"""Every link has a text and leads to what exists; CONTRIBUTING's map is that of the tree."""

import re
from pathlib import Path

import pytest
import yaml
from guide_pages import GENERATED, PAGES, ROOT, prose_of

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", [*PAGES, *GENERATED], ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_exist(page: Path) -> None:
    prose = re.sub(r"`[^`]*\]\([^`]*`", "", prose_of(page))  # a pattern that reads like a link
    for _, _, link in LINK.findall(prose):
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        if anchor:
            assert anchor in _anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_text(page: Path) -> None:
    """Sphinx fills an empty text with the page's title; everywhere else the link is invisible."""
    assert [link for _, text, link in LINK.findall(prose_of(page)) if not text.strip()] == []


def test_generated_pages_have_no_link_without_a_text() -> None:
    files = [*(ROOT / "docs/generators").glob("*.py"), *(ROOT / "docs/blocks").glob("*.py")]
    assert [file for file in files if "[](" in file.read_text(encoding="utf-8")] == []


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    slugs = [re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings]
    return {
        f"{slug}-{n}" if (n := slugs[:at].count(slug)) else slug for at, slug in enumerate(slugs)
    }


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_no_folder_that_readme_makes_hides_a_bundle_that_it_names() -> None:
    """A folder `ham10000` would stand in the way of `skindx diagnose ham10000` below it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    made = re.findall(r"(?:--path|--out|skindx new) (\S+)", text)
    named = re.findall(r"skindx (?:serve|diagnose) ([\w-]+)(?![\w/])", text)
    assert len(made) > 3
    assert "ham10000" in named
    assert not {folder.split("/")[0] for folder in made} & set(named)


def test_every_path_that_contributing_names_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_.]+(?:/[\w.-]+)*)`", text))
    paths = {name for name in named if "/" in name or (ROOT / name.split("/")[0]).is_dir()}
    assert len(paths) > 30
    assert {path for path in paths if not (ROOT / path).exists()} == set()


def test_every_room_is_on_the_map() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (ROOT / "skindx").glob("*/__init__.py")}
    assert {room for room in rooms if f"`skindx/{room}`" not in text} == set()


def test_citation_is_valid() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == "Apache-2.0"
