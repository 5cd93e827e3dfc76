"""Boxes go out and come back at IoU 1.0, in each format and under all eight EXIF orientations."""

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
from skindx.data.boxes.box_formats import FORMATS, format_of
from skindx.data.boxes.box_join import turn_upright
from skindx.data.boxes.coco import write_coco
from skindx.data.boxes.labelstudio import Drawing, LabelTask, write_labelstudio
from skindx.data.boxes.voc import write_voc
from skindx.data.layout import store_bytes
from skindx.data.manifest import Record, read_manifest, write_manifest

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
    else:
        tasks = [
            LabelTask(name, "", (image.width, image.height), name, (Drawing("x", "", image.boxes),))
            for name, image in images.items()
        ]
        write_labelstudio(out, tasks)
        out.write_text(out.read_text().replace('"drawn_by": "x"', '"completed_by": 7'))
    return out


@pytest.mark.parametrize("kind", ["coco", "voc", "labelstudio"])
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


@pytest.mark.parametrize(
    ("name", "text", "tool"),
    [
        ("annotations.xml", "<?xml version='1.0'?><annotations><image/></annotations>", "CVAT"),
        ("labels.json", '{"classes": ["mole"], "labels": {"a": []}}', "FiftyOne"),
    ],
)
def test_a_format_that_is_gone_says_what_to_do(
    tmp_path: Path, name: str, text: str, tool: str
) -> None:
    (tmp_path / name).write_text(text)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(UserError, match=f"has {tool}'s own format, gone since 1.0; export it"):
            format_of(path)


def test_an_archive_is_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "task.zip").touch()
    with pytest.raises(UserError, match="is an archive; unpack it, and give the folder"):
        format_of(tmp_path / "task.zip")
