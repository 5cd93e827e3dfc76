"""What others make of a published folder: datasets, mlcroissant, and people who read the card."""

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image
from published import OPEN, Free, formats, settings, with_withheld
from small_dataset import LABELS, free_dataset

from skindx.data.publish.assemble import publish
from skindx.data.publish.publish_formats import Format

LOAD = """
import datasets, sys
for folder in sys.argv[1:3]:
    found = datasets.load_dataset(folder)
    assert list(found) == ['train', 'val', 'calibration', 'test'], found
    assert isinstance(found['train'].features['image'], datasets.Image)
    assert isinstance(found['train'].features['boxes'], datasets.List)
    label = found['train'].features['label']
    assert label.names == ['Acne', 'Eczema']
    for split in found:
        for row in found[split]:
            assert row['image'].size == (120, 96), row
            name = label.int2str(row['label'])
            print(folder, row['sha256'], split, name, row['skin_type'], row['boxes'])
"""


def test_datasets_loads_every_format_as_it_stands(tmp_path: Path, free: Free) -> None:
    folders = {free[1]["hub"]: free[0], free[1]["imagefolder"]: free[0]}
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    arguments = [sys.executable, "-c", LOAD, *folders]
    done = subprocess.run(
        arguments, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (line.split(" ", 2) for line in done.stdout.splitlines())
    reported = {(folder, sha256): said for folder, sha256, said in lines}
    assert len(reported) == 16 + 16
    for folder, small in folders.items():
        for record in small.records:
            boxes = "[{'x1': 10.0" if record.boxes else {None: "None", (): "[]"}[record.boxes]
            said = f"{record.split} {record.label} {record.skin_type} {boxes}"
            assert reported[str(folder), record.sha256].startswith(said)


@pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame.reset_index")
@pytest.mark.usefixtures("quick")
@formats
def test_mlcroissant_validates_and_reads_records(tmp_path: Path, form: Format) -> None:
    mlc = pytest.importorskip("mlcroissant")
    small = free_dataset(tmp_path / "data")
    small.add(licence="")
    publish(small.write(name='odd "name" / <b>'), tmp_path / "pub", settings(form))
    dataset = mlc.Dataset(jsonld=tmp_path / "pub" / "croissant.json")
    assert not dataset.metadata.issues.errors
    listed = {record["manifest/sha256"].decode() for record in dataset.records("manifest")}
    assert listed == {record.sha256 for record in small.records}
    assert [r["labels/key"] for r in dataset.records("labels")] == list(LABELS)
    if form == "hub":
        first = next(iter(dataset.records("pictures")))
        assert isinstance(first["pictures/image"], Image.Image)
        assert first["pictures/image"].size == (120, 96)
    distribution = json.loads((tmp_path / "pub" / "croissant.json").read_text())["distribution"]
    for file in distribution:
        if "sha256" in file:
            data = (tmp_path / "pub" / file["contentUrl"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == file["sha256"]
    assert {"manifest.parquet", "splits.csv"} <= {file["@id"] for file in distribution}


def test_the_card_counts_and_survives_hostile_words(tmp_path: Path) -> None:
    dataset, _, free = with_withheld(tmp_path / "data")
    recipe = yaml.safe_load((dataset / "recipe.yaml").read_text())
    hostile = "evil | <script>alert(1)</script> ![x](https://evil.example/pixel.png)\n# big"
    recipe["name"] = hostile
    recipe["sources"][0]["licence"] = hostile
    (dataset / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    publish(dataset, tmp_path / "pub", settings(unaudited=False))
    card = (tmp_path / "pub" / "README.md").read_text()
    _, front, body = card.split("---\n", 2)
    meta = yaml.safe_load(front)
    assert meta["pretty_name"] == hostile
    assert meta["license"] == "cc-by-4.0"
    counted = {split["name"]: split["num_examples"] for split in meta["dataset_info"]["splits"]}
    assert sum(counted.values()) == len(free)
    assert "<script>" not in body
    assert "](https://evil" not in body
    assert "\n# big" not in body
    assert f"{len(free)} images of skin in 2 classes" in body
    assert "down@example.org" in body
    assert "| licence-no-derivatives | 1 |" in body
    for name in ("classes", "sizes", "skin_types", "licences"):
        assert f"(plots/{name}.png)" in body
        with Image.open(io.BytesIO((tmp_path / "pub" / f"plots/{name}.png").read_bytes())) as plot:
            assert plot.width > 500


@pytest.mark.usefixtures("quick")
def test_several_licences_are_named_image_by_image(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data")
    small.add(licence="CC0")
    publish(small.write(), tmp_path / "pub", OPEN)
    front = yaml.safe_load((tmp_path / "pub" / "README.md").read_text().split("---\n")[1])
    assert (front["license"], front["license_name"]) == ("other", "per-picture")
