"""What a dataset says of its images: photographs or paintings, dermoscopic or clinical."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_dataset import SmallDataset

from skindx.data.build.build_run import with_modalities
from skindx.data.manifest import Record, read_manifest
from skindx.data.origin import SYNTHETIC_ATTRIBUTION, ImageOrigin, origin_of
from skindx.data.recipe import BuildSettings
from skindx.models.bundle.bundle_index import BundleSpec, origin_of_bundle
from skindx.models.bundle.model_card import model_card
from skindx.taxonomy import load_taxonomy

ISIC9 = load_taxonomy("isic9")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    small = SmallDataset(tmp_path_factory.mktemp("origin"))
    for number in range(4):
        small.add(source_url=f"Train/nevus/ISIC_{number:07d}.jpg")
    return read_manifest(small.write())


def with_sources(folder: Path, *sources: dict[str, Any]) -> Path:
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"name": "n", "sources": list(sources)}))
    return folder


@pytest.mark.parametrize(
    ("sources", "painted", "modality"),
    [
        ([{"kind": "folder"}], "none", "dermoscopic"),  # by the names of the files
        ([{"modality": "clinical"}], "none", "clinical"),
        ([{"modality": "clinical"}, {"modality": "dermoscopic"}], "none", "mixed"),
        ([{"modality": "clinical"}, {}], "none", ""),
        ([{"modality": "mixed"}], "none", "mixed"),
        ([{"synthetic": True}], "all", "dermoscopic"),
        ([{"synthetic": True}, {}], "some", "dermoscopic"),
        (["no source"], "none", "dermoscopic"),
    ],
)
def test_sources_say_what_their_images_are(
    records: list[Record], tmp_path: Path, sources: list[Any], painted: str, modality: str
) -> None:
    origin = origin_of(with_sources(tmp_path, *sources), records)
    assert (origin.painted, origin.modality) == (painted, modality)


def test_older_demos_are_recognised(records: list[Record], tmp_path: Path) -> None:
    painted = [replace(record, attribution=SYNTHETIC_ATTRIBUTION) for record in records]
    assert origin_of(tmp_path, painted).painted == "all"
    assert origin_of(tmp_path, [*painted, *records]).painted == "some"
    member = {"name": "a", "classifier": {"model": "m", "preprocess": {"size": 64}}}
    raw = {"name": "skindx-demo", "created": "2026", "skindx": "0.1", "members": [member]}
    spec = BundleSpec.parse(raw)
    assert origin_of_bundle(spec).painted == "all"
    assert "images" not in spec.model_dump(mode="json")  # its version must not change
    assert origin_of_bundle(BundleSpec.parse({**raw, "name": "mine"})) == ImageOrigin()
    said = BundleSpec.parse({**raw, "images": {"painted": "none", "modality": "clinical"}})
    assert origin_of_bundle(said).warning == ""
    assert "- learned from: photographs, clinical" in model_card(said, ISIC9, None)
    assert "answers nothing about people" in model_card(spec, ISIC9, None)


def test_a_table_states_the_modality_line_by_line(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    cases = {
        "dermoscopic": "dermoscopic\nDermatoskopie",
        "clinical": "clinical: close-up\nTBP tile: overview",
        "mixed": "dermoscopic\nclinical",
        "": "dermoscopic\n?",
    }
    for modality, cells in cases.items():
        lines = [f"{n}.jpg,nevus,http://a.example/{n},{c}" for n, c in enumerate(cells.split("\n"))]
        table.write_text("\n".join(["file,label,url,type", *lines]))
        for kind in ("table", "files"):
            columns = {"modality": "type"}
            if kind == "files":
                columns |= dict.fromkeys(("licence", "attribution", "group", "skin_type"), "")
            source = {"kind": kind, "path": str(table), "columns": columns}
            settings = BuildSettings.parse({"name": "n", "sources": [source]})
            assert with_modalities(settings).sources[0].modality == modality
            said = BuildSettings.parse({"name": "n", "sources": [source | {"modality": "mixed"}]})
            assert with_modalities(said).sources[0].modality == "mixed"
