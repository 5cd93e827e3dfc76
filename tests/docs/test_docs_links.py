"""README and its fellows link to what exists; CONTRIBUTING's map is that of the tree."""

import re
from pathlib import Path

import pytest
import yaml
from guide_pages import PAGES, ROOT, prose_of

FILES = [page for page in PAGES if page.parent == ROOT or page.name == "README.md"]


@pytest.mark.parametrize("page", FILES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        if anchor:
            assert anchor in _anchors(target), link


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


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
