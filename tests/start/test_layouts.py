"""Known layouts: each look-alike of a public set is recognised, and none is built wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from look_alikes import GENERATOR, differences, gathered, write_look_alikes

from skindx.core.errors import UserError
from skindx.data.layouts import known_layouts as layouts_module
from skindx.data.layouts.folder_contents import FolderContents
from skindx.data.layouts.known_layouts import known_layouts
from skindx.data.recipe import BuildSettings
from skindx.start.image_folder import propose
from skindx.start.source_look import look_at_sources

needs_generator = pytest.mark.skipif(
    GENERATOR is None, reason="the look-alikes' generator is not beside the checkout"
)
NAMES = [
    "ham10000_kaggle",
    "ham10000_dataverse",
    "isic2016",
    "isic2018",
    "isic2019",
    "isic2024",
    "isic_cli",
    "isic_snapshot",
    "bcn20000",
    "pad_ufes_20",
    "ddi",
    "ph2",
    "fitzpatrick17k",
    "scin",
    "msld_v2",
    "dermnet_kaggle",
    "isic9_kaggle",
    "melanoma10000",
    "dermamnist",
    "hf_jsonl",
    "hf_parquet",
    "roboflow_yolov8",
    "roboflow_coco",
    "img2dataset_files",
    "img2dataset_webdataset",
    "bing_image_downloader",
    "icrawler",
    "dermnet_scraper",
    "commons_dump",
    "gallery_dl",
    "openverse_dump",
    "excel_semicolon",
    "excel_xlsx",
]
NO_LAYOUT = {"excel_semicolon", "excel_xlsx"}
"""Tables of a clinic, which have no name."""


@pytest.fixture(scope="module")
def look_alikes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, Any]]:
    out = tmp_path_factory.mktemp("look_alikes")
    return out, write_look_alikes(out, 28)


def gathered_of(folder: Path, dataset: Path) -> tuple[str, list[Any]]:
    """Return the layout's name, and the rows of the recipe that is proposed."""
    contents = FolderContents.listed(folder)
    proposal = propose(contents)
    look_at_sources(proposal.raw, folder.name, contents)
    settings = BuildSettings.parse({"name": folder.name, **proposal.raw})
    return proposal.name, gathered(settings, dataset)


@needs_generator
@pytest.mark.parametrize("name", NAMES)
def test_a_public_set_is_recognised_and_all_that_it_says_arrives(
    look_alikes: tuple[Path, Mapping[str, Any]], tmp_path: Path, name: str
) -> None:
    folder, expected = look_alikes
    known, rows = gathered_of(folder / name, tmp_path)
    assert differences(rows, expected[name]) == []
    assert bool(known) == (name not in NO_LAYOUT | {"hf_jsonl"})


@needs_generator
@pytest.mark.parametrize("name", NAMES)
def test_without_known_layouts_none_is_built_wrong(
    look_alikes: tuple[Path, Mapping[str, Any]],
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layouts_module, "LAYOUTS", tmp_path)
    folder, expected = look_alikes
    try:
        _, rows = gathered_of(folder / name, tmp_path / "dataset")
    except UserError:
        return  # a question
    # Splits of folders are merged, which `new` says, and what is known of a set alone may lack.
    odd = [one for one in differences(rows, expected[name]) if not one.startswith("split")]
    assert odd == []


@needs_generator
def test_all_look_alikes_are_tested(look_alikes: tuple[Path, Mapping[str, Any]]) -> None:
    assert set(look_alikes[1]) == set(NAMES)


@pytest.mark.parametrize("name", sorted(known_layouts()))
def test_each_layout_can_be_shown_and_its_recipe_is_one(name: str) -> None:
    layout = known_layouts()[name]
    places = dict.fromkeys(layout.marks, "/somewhere/x") | {"folder": "/somewhere"}
    if layout.recipe:
        match = layouts_module.LayoutMatch(name, layout, places, {})
        settings = BuildSettings.parse({"name": name, **match.recipe()})
        assert settings.sources
    for sentence in (layout.about, layout.groups, layout.confirmed, *layout.faults):
        assert sentence.endswith((".", ")"))
