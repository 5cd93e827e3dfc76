"""What no class is for is not fetched: a polite crawl asks only for what it can use."""

from pathlib import Path

import pytest
from local_site import Answer, LocalSite, category, figures, html
from paint_images import encode, paint

from skindx.core.errors import UserError
from skindx.data.build.build_dataset import build
from skindx.data.crawl.fetch_settings import OriginPolicy
from skindx.data.manifest import read_issues, read_manifest
from skindx.data.recipe import BuildSettings
from skindx.taxonomy import Taxonomy

LABELS = ("Acne", "Rosacea", "Keloid", "Zebra")
PER_CLASS = 4


@pytest.fixture
def site() -> LocalSite:
    pages = {"/": html("".join(category(f"/{label}/", label) for label in LABELS))}
    for i, label in enumerate(LABELS):
        names = [f"/{label}/{n}.jpg" for n in range(PER_CLASS)]
        pages[f"/{label}/"] = html(figures(*names))
        for n, name in enumerate(names):
            pages[name] = Answer(encode(paint(10 * i + n), quality=92))
    return LocalSite(pages)


def recipe(site: LocalSite, tmp_path: Path, **settings: object) -> BuildSettings:
    taxonomy = Taxonomy.parse(
        {
            "name": "two",
            "title": "Two",
            "classes": [{"key": "Acne", "name": "Acne"}, {"key": "Rosacea", "name": "Rosacea"}],
            "unmapped": {"keloid": "not one of the two"},
        }
    )
    taxonomy.save(tmp_path / "two.yaml")
    fetch = {
        "allow_private": [site.origin.removeprefix("http://")],
        "origins": {site.origin: OriginPolicy(concurrency=8, delay_s=0).model_dump()},
    }
    raw = {
        "name": "site",
        "taxonomy": str(tmp_path / "two.yaml"),
        "sources": [{"kind": "atlas", "start": f"{site.origin}/"}],
        "fetch": fetch,
    }
    return BuildSettings.parse(raw | settings)


def test_only_images_of_a_class_are_fetched(site: LocalSite, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with site:
        build(recipe(site, tmp_path), out)
        asked = {path for path in site.asked if path.endswith(".jpg")}
        assert asked == {f"/{label}/{n}.jpg" for label in LABELS[:2] for n in range(PER_CLASS)}
        assert {record.label for record in read_manifest(out)} == {"Acne", "Rosacea"}
        reasons = {(issue.label, issue.reason) for issue in read_issues(out)}
        assert reasons == {("Keloid", "unmapped-label"), ("Zebra", "unknown-label")}
        # The labels as they are: the same folder fetches what it lacks, and only that.
        site.asked.clear()
        build(recipe(site, tmp_path, taxonomy=None), out)
        asked = {path for path in site.asked if path.endswith(".jpg")}
        assert asked == {f"/{label}/{n}.jpg" for label in LABELS[2:] for n in range(PER_CLASS)}
        assert {record.label for record in read_manifest(out)} == set(LABELS)


def test_labels_that_were_not_fetched_count_against_the_taxonomy(
    site: LocalSite, tmp_path: Path
) -> None:
    with site:
        strict = recipe(site, tmp_path, min_known=0.8)
        with pytest.raises(UserError, match="does not have the labels of 8 of 16 images"):
            build(strict, tmp_path / "out")


def test_where_nothing_came_the_taxonomy_is_not_to_blame(site: LocalSite, tmp_path: Path) -> None:
    with site:
        for path in [path for path in site.pages if path.endswith(".jpg")]:
            del site.pages[path]
        with pytest.raises(UserError, match=r"none of the 16 images .*dead-link"):
            build(recipe(site, tmp_path), tmp_path / "out")
