"""The recipes that ship in data/."""

import csv
import re
import shlex
from pathlib import Path

import pytest
import typer
from local_site import LocalSite, category, figures, html
from scrapy.http import HtmlResponse

from skindx.cli import app
from skindx.core.errors import UserError
from skindx.data.build.acquire import acquire
from skindx.data.build.build_dataset import build
from skindx.data.crawl.fetch_settings import FetchSettings, OriginPolicy
from skindx.data.recipe import load_build_settings
from skindx.data.sources.api import ApiSource
from skindx.data.sources.atlas import AtlasSource
from skindx.data.sources.image_source import Page, WebSource
from skindx.data.sources.url_table import TableSource
from skindx.taxonomy import load_taxonomy

DATA = Path(__file__).parents[2] / "data"
RECIPES = sorted(DATA.glob("*.yaml"))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKINDX_REAL", "/nowhere")
    monkeypatch.setenv("SKINDX_CONTACT", "me@example.org")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads_and_is_polite(path: Path) -> None:
    settings = load_build_settings(path)
    web = [source for source in settings.sources if isinstance(source, WebSource)]
    assert settings.name
    assert settings.fetch.origins == {}
    assert settings.fetch.allow_private == ()
    assert bool(settings.fetch.contact) == bool(web)


@pytest.mark.parametrize("name", ["openverse", "wikimedia", "isic"])
def test_searches_are_for_classes_of_the_taxonomy(name: str) -> None:
    settings = load_build_settings(DATA / f"{name}.yaml")
    (source,) = settings.sources
    assert isinstance(source, ApiSource)
    assert settings.taxonomy
    assert set(source.searches) == set(load_taxonomy(settings.taxonomy).keys)


@pytest.mark.parametrize("name", ["skin10", "skin100"])
def test_the_seed_recipes_aim_at_every_class(name: str) -> None:
    settings = load_build_settings(DATA / f"{name}.yaml")
    keys = load_taxonomy(name).keys
    assert tuple(settings.targets) == keys
    asked = [source for source in settings.sources if isinstance(source, ApiSource)]
    assert {source.kind for source in asked} == {"isic", "wikimedia", "openverse"}  # type: ignore[attr-defined]
    assert all(set(source.searches) <= set(keys) for source in asked)
    assert all(set(source.searches) == set(keys) for source in asked if len(source.searches) > 9)


@pytest.mark.parametrize(("name", "total"), [("skin10", 10_218), ("skin100", 19_807)])
def test_targets_are_the_published_counts_scaled(name: str, total: int, real: Path) -> None:
    with (real / "taxonomy" / "skin100_train_counts_derived.csv").open() as file:
        rows = {row["class"]: int(row["derived_train_count"]) for row in csv.DictReader(file)}
    targets = load_build_settings(DATA / f"{name}.yaml").targets
    trained = sum(rows[key] for key in targets)
    assert targets == {key: round(rows[key] * total / trained) for key in targets}
    assert sum(targets.values()) == pytest.approx(total, rel=1e-3)


def test_a_recipe_without_the_contact_says_what_to_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKINDX_CONTACT")
    with pytest.raises(UserError, match="export SKINDX_CONTACT="):
        load_build_settings(DATA / "isic.yaml")


def test_no_image_of_fitzpatrick17k_has_a_licence() -> None:
    (source,) = load_build_settings(DATA / "fitzpatrick17k.yaml").sources
    assert isinstance(source, TableSource)
    assert source.licence == source.columns.licence == ""
    assert source.columns.skin_type == "fitzpatrick_scale"


def test_dermnet_refuses_without_permission(tmp_path: Path) -> None:
    settings = load_build_settings(DATA / "dermnetnz.yaml")
    with pytest.raises(UserError, match=r"is disabled \(its terms forbid .*permission: \"who"):
        build(settings, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    blank = load_build_settings(DATA / "dermnetnz.yaml", ["sources.0.permission='  '"])
    with pytest.raises(UserError, match="is disabled"):
        build(blank, tmp_path / "out")


def test_with_permission_a_disabled_source_is_fetched(tmp_path: Path) -> None:
    with LocalSite({"/": html(category("/c/", "Acne")), "/c/": html(figures("/1.jpg"))}) as site:
        source = AtlasSource(
            kind="atlas",
            start=site.origin + "/",
            disabled="its terms say no",
            permission="A. Editor, 2026-02-03",
        )
        fast = OriginPolicy(concurrency=8, delay_s=0)
        fetch = FetchSettings(origins={site.origin: fast}, allow_private=(site.netloc,))
        (row,) = acquire([source], fetch, tmp_path)
    assert row.status == "dead-link"  # asked for, and not there


def test_the_selectors_for_dermnet_read_both_forms_of_its_pages() -> None:
    (source,) = load_build_settings(DATA / "dermnetnz.yaml").sources
    assert isinstance(source, AtlasSource)
    item = (
        '<div class="imageList" data-leter="A"><div class="imageList__group"><div class="flex">'
        '<a class="imageList__group__item" href="/images/acne-images">'
        '<div class="imageList__group__item__image"><img src="/assets/a__FillWz.jpg"></div>'
        '<div class="imageList__group__item__copy"><h6>Acne images</h6></div></a></div></div></div>'
    )
    start = "https://dermnetnz.org/images"
    index = HtmlResponse(start, body=f"<body>{item}</body>".encode(), encoding="utf-8")
    (topic,) = source.read(Page(start), index)
    assert topic == Page("https://dermnetnz.org/images/acne-images", "Acne images")
    before = '<div class="imageLinkBlock__item"><div class="imageLinkBlock__item__image">'
    before += '<img src="/assets/acne/_resampled/Fill/1.jpg" alt="Acne"></div></div>'
    now = '<div class="gallery"><img class="js-gallery-image" src="/assets/2__FillWz.jpg"></div>'
    body = f'<body><img src="/assets/logo.png">{before}{now}</body>'
    page = HtmlResponse(topic.url, body=body.encode(), encoding="utf-8")
    rows = [row for choice in source.read(topic, page) for row in choice]  # type: ignore[union-attr]
    assert [row.url.rpartition("/assets/")[2] for row in rows] == [
        "acne/_resampled/Fill/1.jpg",
        "2__FillWz.jpg",
    ]
    assert {row.licence for row in rows} == {"CC BY-NC-ND 3.0 NZ"}


def readme_commands() -> list[list[str]]:
    """Return the words of each `skindx` command that the guide names."""
    text = (DATA / "README.md").read_text()
    lines = re.findall(r"^ *(skindx .+)$", text, re.M) + re.findall(r"`(skindx [^`]+)`", text)
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_the_guide_s_commands_are_those_of_the_command_line() -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    whole = [words for words in readme_commands() if len(words) > 1]
    assert {words[0] for words in whole} >= {"build", "review", "audit", "train", "publish"}
    for verb, *arguments in whole:
        given = (
            verbs[verb].make_context(verb, list(arguments)).params
        )  # no unknown option, none missing
        source = given.get("source") if verb == "build" else None
        assert source is None or (DATA.parent / source).exists(), source
        if verb == "publish":
            assert given["contact"]


def test_every_recipe_is_in_the_guide() -> None:
    text = (DATA / "README.md").read_text()
    assert {path.name for path in RECIPES if f"`{path.name}`" not in text} == set()
