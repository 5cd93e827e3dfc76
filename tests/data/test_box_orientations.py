"""Boxes go out and come back at IoU 1.0, in each format and under all eight EXIF orientations."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from box_strategies import labels as box_labels
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from skindx.core.errors import UserError
from skindx.data.box import Box, BoxedImage
from skindx.data.boxes.box_exchange import export_boxes, import_boxes
from skindx.data.boxes.box_file import BoxFormat, WrittenFormat
from skindx.data.boxes.box_formats import FORMATS, BoxSource, format_of
from skindx.data.boxes.box_join import turn_upright
from skindx.data.boxes.coco import write_coco
from skindx.data.boxes.cvat import read_cvat, write_cvat
from skindx.data.boxes.labelstudio import Drawing, LabelTask, write_labelstudio
from skindx.data.boxes.voc import write_voc
from skindx.data.layout import store_bytes
from skindx.data.manifest import Record, read_manifest, write_manifest
from skindx.data.sources.folder import FolderSource

WIDTH, HEIGHT = 100, 80
"""Of the stored pixels."""
BACK = {6: 8, 8: 6}
"""Orientation -> the one that turns upright pixels into stored ones; the others undo themselves."""
WRITTEN: tuple[WrittenFormat, ...] = get_args(WrittenFormat)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """Return a dataset of one photo n.jpg for each orientation n."""
    folder = tmp_path_factory.mktemp("photos")
    records = []
    for orientation in range(1, 9):
        pixels = np.random.default_rng(orientation).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
        exif = Image.Exif()
        exif[274] = orientation
        Image.fromarray(pixels).save(folder / "photo.jpg", exif=exif)
        sha256, path = store_bytes(folder, (folder / "photo.jpg").read_bytes(), ".jpg")
        width, height = (HEIGHT, WIDTH) if orientation >= 5 else (WIDTH, HEIGHT)
        url = f"p/{orientation}.jpg"
        record = Record(path, sha256, "0" * 16, width, height, "Nevus", url, "train")
        records.append(replace(record, source_url=url))
    return folder, records


@st.composite
def eight(draw: st.DrawFn, fewest: int = 0) -> list[tuple[Box, ...]]:
    """Draw the boxes of each photo, in shares of 1/16 of its sides, that is exact in binary."""

    def box() -> tuple[int, int, int, int]:
        (x1, x2), (y1, y2) = (
            sorted(draw(st.lists(st.integers(0, 16), min_size=2, max_size=2, unique=True)))
            for _ in range(2)
        )
        return x1, y1, x2, y2

    drawn = []
    for orientation in range(1, 9):
        w, h = (HEIGHT, WIDTH) if orientation >= 5 else (WIDTH, HEIGHT)
        shares = [box() for _ in range(draw(st.integers(fewest, 2)))]
        label = draw(box_labels)
        drawn.append(
            tuple(
                Box(x1 * w / 16, y1 * h / 16, x2 * w / 16, y2 * h / 16, label)
                for x1, y1, x2, y2 in shares
            )
        )
    return drawn


def iou(a: Box, b: Box) -> float:
    width = min(a.x2, b.x2) - max(a.x1, b.x1)
    height = min(a.y2, b.y2) - max(a.y1, b.y1)
    both = max(width, 0.0) * max(height, 0.0)
    areas = [(c.x2 - c.x1) * (c.y2 - c.y1) for c in (a, b)]
    return both / (sum(areas) - both)


def assert_back(dataset: Path, boxes: list[tuple[Box, ...]]) -> None:
    """Assert that the manifest holds the boxes of each photo, at IoU 1.0."""
    after = {record.source_url: record.boxes for record in read_manifest(dataset)}
    for orientation, expected in enumerate(boxes, start=1):
        read = after[f"p/{orientation}.jpg"]
        assert len(read or ()) == len(expected), orientation
        for a, b in zip(read or (), expected, strict=True):
            assert (iou(a, b), a.label) == (pytest.approx(1.0, abs=1e-6), b.label), orientation


@pytest.mark.parametrize("kind", WRITTEN)
@settings(max_examples=6)
@given(boxes=eight())
def test_an_export_comes_back(
    photos: tuple[Path, list[Record]],
    kind: WrittenFormat,
    boxes: list[tuple[Box, ...]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    dataset, records = photos
    for file in dataset.glob("annotations*"):
        file.unlink()
    write_manifest(dataset, [replace(r, boxes=b) for r, b in zip(records, boxes, strict=True)])
    out = tmp_path_factory.mktemp("out") / f"boxes{FORMATS[kind].suffix}"
    export_boxes(dataset, out, kind)
    write_manifest(dataset, records)
    assert format_of(out) == kind
    if kind == "labelstudio":  # as if a person had handed the tasks in
        out.write_text(out.read_text().replace('"drawn_by": "recipe"', '"drawn_by": "Ann"'))
    import_boxes(dataset, out, by="" if kind == "labelstudio" else "Ann")
    assert_back(dataset, boxes)


def stored(boxes: list[tuple[Box, ...]]) -> dict[str, BoxedImage]:
    """Return the boxes as a tool draws them that ignores EXIF."""
    size = (WIDTH, HEIGHT)
    return {
        f"p/{n}.jpg": turn_upright(BoxedImage(*size, of_one), size, BACK.get(n, n))
        for n, of_one in enumerate(boxes, start=1)
    }


def by_a_stranger(kind: str, folder: Path, images: Mapping[str, BoxedImage]) -> Path:
    """Write a file as another tool would: by name, without our marks."""
    out = folder / f"boxes{FORMATS[kind].suffix}"  # type: ignore[index]
    if kind == "coco":
        write_coco(out, images)
        out.write_text(re.sub(r',\s*"sha256": "",\s*"reviewed": true', "", out.read_text()))
    elif kind == "voc":
        bare = {Path(name).name: image for name, image in images.items()}
        write_voc(out, bare, dict.fromkeys(bare, folder))
    elif kind == "cvat":
        write_cvat(out, images, sorted({b.label for image in images.values() for b in image.boxes}))
    else:
        tasks = [
            LabelTask(name, "", (image.width, image.height), name, (Drawing("x", "", image.boxes),))
            for name, image in images.items()
        ]
        write_labelstudio(out, tasks)
        out.write_text(out.read_text().replace('"drawn_by": "x"', '"completed_by": 7'))
    return out


@pytest.mark.parametrize("kind", ["coco", "voc", "cvat", "labelstudio"])
@settings(max_examples=6)
@given(boxes=eight(1))
def test_a_tool_that_ignores_exif_is_understood_by_its_sizes(
    photos: tuple[Path, list[Record]],
    kind: BoxFormat,
    boxes: list[tuple[Box, ...]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    dataset, records = photos
    for file in dataset.glob("annotations*"):
        file.unlink()
    write_manifest(dataset, records)
    file = by_a_stranger(kind, tmp_path_factory.mktemp("other"), stored(boxes))
    import_boxes(dataset, file, by="Ann")
    assert_back(dataset, boxes)


CVAT = """<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta><task><id>7</id><name>moles</name><size>5</size><mode>annotation</mode></task></meta>
  <image id="0" name="nevus/a.jpg" width="100" height="80">
    <box label="mole" source="manual" occluded="0" xtl="10.00" ytl="20.00" xbr="30.00" ybr="60.00"
      z_order="0"><attribute name="sure">yes</attribute></box>
    <box label="scar" source="manual" occluded="0" xtl="40.00" ytl="30.00" xbr="80.00" ybr="50.00"
      rotation="90.0" z_order="0"></box>
  </image>
  <image id="1" name="b.jpg" width="100" height="80"></image>
  <image id="2" name="c.jpg" width="100" height="80">
    <polygon label="mole" points="1,1;9,1;5,9" z_order="0"></polygon></image>
  <image id="3" name="d.jpg" width="100" height="80">
    <box label="mole" xtl="no" ytl="1" xbr="2" ybr="3"/></image>
  <image id="4" name="e.jpg" width="0" height="80"/>
</annotations>
"""


def test_cvat_of_others(tmp_path: Path) -> None:
    """Its documentation's example: images nobody opened, a rotated box, shapes, broken rows."""
    path = tmp_path / "annotations.xml"
    path.write_text(CVAT)
    assert format_of(path) == format_of(tmp_path) == "cvat"
    file = BoxSource(path=tmp_path).read()
    first, polygon, broken = file.entries
    assert first.name == "nevus/a.jpg"
    mole, scar = first.image.boxes
    assert (mole.x1, mole.y1, mole.x2, mole.y2, mole.label) == (10, 20, 30, 60, "mole")
    # 40 x 20 pixels about the middle (60, 40), upright after a right angle.
    assert (scar.x1, scar.y1, scar.x2, scar.y2) == pytest.approx((50, 20, 70, 60))
    assert (polygon.image.boxes, polygon.image.refused) == ((), 1)
    assert (broken.image.boxes, broken.image.unread) == ((), 1)
    assert [(f.reason, f.first) for f in file.findings.list()] == [
        ("box: xtl is not a number", ("d.jpg",)),
        ("an image of 0 x 80 pixels", ("e.jpg",)),
    ]
    assert [f.first for f in file.waiting.list()] == [("b.jpg",)]
    looked = BoxSource(path=path, unannotated="negative").read()
    assert looked.images["b.jpg"].boxes == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<annotations><track id='0'/></annotations>", "is for video; export again in CVAT as"),
        ("<annotations>", "is not valid XML"),
        ('<!DOCTYPE a [<!ENTITY x "y">]><annotations>&x;</annotations>', "declares a document"),
        ("<annotation/>", "is <annotation>; export again in CVAT as"),
    ],
)
def test_bad_cvat_is_one_sentence(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(UserError, match=why):
        read_cvat(tmp_path / "a.xml")
    with pytest.raises(UserError, match="character that XML cannot"):
        write_cvat(tmp_path / "b.xml", {}, ["a\0b"])
    assert not (tmp_path / "b.xml").exists()
    (tmp_path / "task.zip").touch()
    with pytest.raises(UserError, match="is an archive; unpack it and give the unpacked folder"):
        format_of(tmp_path / "task.zip")


def fiftyone(folder: Path, content: object) -> Path:
    """Write a folder of FiftyOne with images a.jpg and deep/b.png of 40 x 20 pixels."""
    (folder / "data" / "deep").mkdir(parents=True)
    for name in ("a.jpg", "deep/b.png", "c.png"):
        Image.new("RGB", (40, 20)).save(folder / "data" / name)
    (folder / "labels.json").write_text(json.dumps(content))
    return folder


def test_fiftyone_of_others(tmp_path: Path) -> None:
    quarter = {"label": 1, "bounding_box": [0.25, 0.5, 0.5, 0.25], "confidence": 0.5}
    table = {
        "a": [quarter, {"label": 9, "bounding_box": [0, 0, 1, 1]}, {"label": 0}],
        "deep/b": [],
        "c": None,
        "../../etc/passwd": [quarter],
        "/etc/passwd": [quarter],
    }
    folder = fiftyone(tmp_path / "x", {"classes": ["mole", "scar"], "labels": table})
    assert format_of(folder) == format_of(folder / "labels.json") == "fiftyone"
    file = BoxSource(path=folder).read()
    assert file.images["a.jpg"].boxes == (Box(10, 10, 30, 15, "scar", "x", 0.5),)
    assert (file.images["a.jpg"].unread, file.images["deep/b.png"].boxes) == (2, ())
    assert file.findings.list()[0].first == ("../../etc/passwd", "/etc/passwd")
    assert [f.first for f in file.waiting.list()] == [("c.png",)]


@pytest.mark.parametrize("content", [[], {}, {"labels": []}, {"labels": {}, "classes": "mole"}])
def test_bad_fiftyone_is_one_sentence(tmp_path: Path, content: object) -> None:
    with pytest.raises(
        UserError, match="is not a labels file of FiftyOne; export the dataset again"
    ):
        BoxSource(path=fiftyone(tmp_path / "x", content)).read()
    with pytest.raises(UserError, match=r"has no data/ and labels\.json"):
        BoxSource(path=tmp_path, kind="fiftyone").read()


def test_a_folder_of_fiftyone_is_a_source(tmp_path: Path) -> None:
    """By number, by name, with a confidence, by boxes; several, none, and no such image."""
    box = {"bounding_box": [0, 0, 1, 1]}
    table = {
        "a": 1, "b": {"label": "mole", "confidence": 0.5}, "c": [box | {"label": 0}],
        "d": [box | {"label": 0}, box | {"label": 1}], "e": None, "f": "mole", "g": 9,
        "../../etc/passwd": 1, "h": "scar", "i": "scar",
    }  # fmt: skip
    for split in ("train", "val"):
        (tmp_path / "x" / split / "data").mkdir(parents=True)
        for name in "abcdefghi":
            Image.new("RGB", (9, 9)).save(tmp_path / "x" / split / "data" / f"{name}.png")
        text = json.dumps({"classes": ["mole", "scar"], "labels": table})
        (tmp_path / "x" / split / "labels.json").write_text(text)
    source = FolderSource(path=tmp_path / "x", layout="fiftyone")
    (note,) = source.preview().notes
    assert note.endswith("train and val are merged; the split is made again.")
    rows = source.gather(tmp_path / "out")
    assert [(row.url, row.label or row.status) for row in rows[:10]] == [
        ("train/data/a.png", "scar"), ("train/data/b.png", "mole"), ("train/data/c.png", "mole"),
        ("train/data/d.png", "no-class"), ("train/data/e.png", "no-class"),
        ("train/data/f.png", "mole"), ("train/data/g.png", "no-class"),
        ("train/data/h.png", "scar"), ("train/data/i.png", "scar"),
        ("train/data/passwd", "unreadable"),
    ]  # fmt: skip
    assert rows[4].detail == "labels.json has no class of it, so its class is not known"
