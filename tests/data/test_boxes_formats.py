"""Every format gives back what was written, and other people's tools read it."""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from box_strategies import assert_same, by_name, files
from hypothesis import given
from hypothesis import strategies as st
from paint_images import save

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.data.box import Box, BoxedImage, RawBox, boxed
from skindx.data.boxes.box_formats import BoxSource, format_of, read_boxes
from skindx.data.boxes.coco import read_coco, write_coco
from skindx.data.boxes.labelstudio import (
    Drawing,
    LabelTask,
    interface,
    read_answers,
    read_labelstudio,
    write_labelstudio,
)
from skindx.data.boxes.voc import read_voc, write_voc
from skindx.data.boxes.yolo import read_yolo, write_yolo

ALL = ("label", "drawn_by", "drawn_at", "score")
SHA = "ab" * 32
PLAIN = {
    "a.png": BoxedImage(
        101, 53, (Box(0, 0, 50.125, 53, "Nævus"), Box(20.3, 10.7, 101, 40.9, "メラノーマ"))
    ),
    "none.png": BoxedImage(64, 48, ()),
}


def saved(folder: Path, images: dict[str, BoxedImage]) -> dict[str, Path]:
    """Save pixels for the images; a constant one of any size takes next to no room."""
    return {
        name: save(folder / name, np.full((each.height, each.width, 3), 90, np.uint8))
        for name, each in images.items()
    }


@given(files)
def test_coco_round_trip(
    tmp_path_factory: pytest.TempPathFactory, images: dict[str, BoxedImage]
) -> None:
    path = tmp_path_factory.mktemp("coco") / "boxes.json"
    write_coco(path, images)
    assert_same(read_coco(path), images, ALL)


@given(files)
def test_voc_round_trip(
    tmp_path_factory: pytest.TempPathFactory, images: dict[str, BoxedImage]
) -> None:
    folder = tmp_path_factory.mktemp("voc")
    write_voc(folder, images, dict.fromkeys(images, Path("nowhere.png")))
    assert_same(read_voc(folder), images, ALL)


@given(files)
def test_labelstudio_round_trip(
    tmp_path_factory: pytest.TempPathFactory, images: dict[str, BoxedImage]
) -> None:
    path = tmp_path_factory.mktemp("tasks") / "tasks.json"
    tasks = [
        LabelTask(name, "", (each.width, each.height), "x", (Drawing("me", "", each.boxes),))
        for name, each in images.items()
    ]
    write_labelstudio(path, tasks)
    assert_same(read_labelstudio(path), images, ALL)


@given(files)
def test_yolo_round_trip(
    tmp_path_factory: pytest.TempPathFactory, images: dict[str, BoxedImage]
) -> None:
    folder = tmp_path_factory.mktemp("yolo")
    small = {name: shrunk(each) for name, each in images.items()}
    labels = sorted({box.label for image in small.values() for box in image.boxes}) or ["lesion"]
    sources = saved(folder / "store", small)
    write_yolo(folder / "out", [("train", small)], sources, labels)
    assert_same(read_yolo(folder / "out"), small, ("label",))


def shrunk(image: BoxedImage) -> BoxedImage:
    """Return the image at no more than 300 pixels a side: YOLO needs real pixels."""
    x, y = min(1, 300 / image.width), min(1, 300 / image.height)
    width, height = round(image.width * x), round(image.height * y)
    x, y = width / image.width, height / image.height
    boxes = [
        dataclasses.replace(b, x1=b.x1 * x, y1=b.y1 * y, x2=b.x2 * x, y2=b.y2 * y)
        for b in image.boxes
    ]
    wide = [b for b in boxes if b.x2 - b.x1 > 0.01 and b.y2 - b.y1 > 0.01]
    return BoxedImage(width, height, tuple(wide))


def test_yolo_of_a_huge_image_keeps_a_hundredth_of_a_pixel(tmp_path: Path) -> None:
    width, height = 99_991, 70_001
    box = Box(12345.67, 0.04, 98765.43, 69_999.99, "mole")
    huge = {"h.png": BoxedImage(width, height, (box,))}
    write_yolo(tmp_path, [("train", huge)], {"h.png": tmp_path / "nowhere"}, ["mole"])
    line = (tmp_path / "labels/train/h.txt").read_text()
    cx, cy, w, h = (float(word) for word in line.split()[1:])
    assert (cx - w / 2) * width == pytest.approx(box.x1, abs=0.001)
    assert (cy + h / 2) * height == pytest.approx(box.y2, abs=0.001)


@pytest.mark.parametrize("copy", [False, True])
def test_folders_link_or_copy(tmp_path: Path, copy: bool) -> None:
    sources = saved(tmp_path / "store", PLAIN)
    write_yolo(tmp_path / "yolo", [("train", PLAIN)], sources, ["Nævus", "メラノーマ"], copy=copy)
    write_voc(tmp_path / "voc", PLAIN, sources, copy=copy)
    for placed in (tmp_path / "yolo/images/train/a.png", tmp_path / "voc/JPEGImages/a.png"):
        assert placed.is_symlink() != copy
        assert placed.read_bytes() == sources["a.png"].read_bytes()


def test_pycocotools_reads_our_coco(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pycocotools.coco import COCO

    write_coco(tmp_path / "boxes.json", PLAIN)
    coco = COCO(str(tmp_path / "boxes.json"))
    capsys.readouterr()
    ids = {image["file_name"]: image["id"] for image in coco.dataset["images"]}
    assert ids.keys() == PLAIN.keys()
    found = coco.loadAnns(coco.getAnnIds(ids["a.png"]))
    assert [row["bbox"] for row in found] == [[0, 0, 50.125, 53], [20.3, 10.7, 80.7, 30.2]]
    names = {category["id"]: category["name"] for category in coco.loadCats(coco.getCatIds())}
    assert [names[annotation["category_id"]] for annotation in found] == ["Nævus", "メラノーマ"]
    assert coco.getAnnIds(ids["none.png"]) == []


@pytest.mark.parametrize("kind", ["coco", "yolo", "voc"])
def test_supervision_reads_ours(tmp_path: Path, kind: str) -> None:
    import supervision as sv

    sources = saved(tmp_path / "store", PLAIN)
    out = tmp_path / "out"
    images = str(tmp_path / "store")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "coco":
            write_coco(tmp_path / "boxes.json", PLAIN)
            read = sv.DetectionDataset.from_coco(images, str(tmp_path / "boxes.json"))
        elif kind == "yolo":
            data = write_yolo(out, [("train", PLAIN)], sources, ["Nævus", "メラノーマ"])
            read = sv.DetectionDataset.from_yolo(
                str(out / "images/train"), str(out / "labels/train"), str(data)
            )
        else:
            write_voc(out, PLAIN, sources)
            read = sv.DetectionDataset.from_pascal_voc(images, str(out / "Annotations"))
        found = {Path(path).name: each for path, _, each in read}
    assert len(found["none.png"]) == 0
    expected = [(b.x1, b.y1, b.x2, b.y2) for b in PLAIN["a.png"].boxes]
    np.testing.assert_allclose(found["a.png"].xyxy, expected, atol=0.01)
    assert [read.classes[i] for i in found["a.png"].class_id] == ["Nævus", "メラノーマ"]


def test_ultralytics_accepts_our_folder(tmp_path: Path) -> None:
    from ultralytics.data.utils import check_det_dataset

    sources = saved(tmp_path / "store", PLAIN)
    parts = [("train", PLAIN), ("val", PLAIN)]
    data = write_yolo(tmp_path / "out", parts, sources, ["Nævus", "メラノーマ"])
    read = check_det_dataset(str(data))
    assert read["names"] == {0: "Nævus", 1: "メラノーマ"}
    assert Path(read["train"]) == (tmp_path / "out/images/train").resolve()


def test_yolo_of_others(tmp_path: Path) -> None:
    """Roboflow's folders, a polygon, a score, EXIF-turned pixels; no label file: nobody looked."""
    from PIL import Image

    images, labels = tmp_path / "train/images", tmp_path / "train/labels"
    labels.mkdir(parents=True)
    saved(images, {f"{name}.png": BoxedImage(200, 100, ()) for name in "abcd"})
    exif = Image.Exif()
    exif[274] = 6
    Image.new("RGB", (200, 100)).save(images / "turned.jpg", exif=exif)
    (images / "broken.jpg").write_text("no picture")
    for name, text in {
        "a": "1 0.5 0.5 0.5 0.5\n\n",
        "b": "0 0.1 0.2 0.6 0.2 0.3 0.7\n",
        "c": "0 0.5 0.5 1 1 0.75\n",
        "turned": "0 0.5 0.5 1 1\n",
        "broken": "0 0.5 0.5 1 1\n",
    }.items():
        (labels / f"{name}.txt").write_text(text)
    (tmp_path / "data.yaml").write_text("path: /etc\ntrain: ../../etc\nnames: {0: mole, 1: scar}\n")
    read = by_name(read_boxes(BoxSource(path=tmp_path / "data.yaml")))
    assert read.keys() == {"a.png", "b.png", "c.png", "turned.jpg"}
    assert read["a.png"].boxes == (Box(50, 25, 150, 75, "scar", tmp_path.name),)
    assert read["b.png"].boxes == (Box(20, 20, 120, 70, "mole", tmp_path.name),)
    assert read["c.png"].boxes[0].score == 0.75
    assert (read["turned.jpg"].width, read["turned.jpg"].height) == (100, 200)


def test_voc_of_others_counts_from_one_and_reaches_nowhere(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text(
        "<annotation><filename>C:\\photos\\x.jpg</filename>"
        "<size><width>100</width><height>80</height><depth>3</depth></size>"
        "<object><name>mole</name><bndbox><xmin>1</xmin><ymin>11</ymin><xmax>100</xmax>"
        "<ymax>20</ymax></bndbox></object></annotation>"
    )
    (tmp_path / "._x.xml").write_bytes(b"\0\5\x16\7")  # of Finder, on a stick
    read = by_name(read_voc(tmp_path))
    assert list(read) == ["x.jpg"]
    assert read["x.jpg"].boxes == (Box(0, 10, 100, 20, "mole", tmp_path.name),)

    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    for doctype in (
        f'<!DOCTYPE a [<!ENTITY l0 "ha">{laughs}]>',
        f'<!DOCTYPE a [<!ENTITY l11 SYSTEM "file://{secret}">]>',
        '<!DOCTYPE a SYSTEM "http://127.0.0.1:9/a.dtd">',
    ):
        (tmp_path / "x.xml").write_text(f"{doctype}<annotation>&l11;</annotation>")
        with pytest.raises(UserError, match="declares a document type or entities"):
            read_boxes(BoxSource(path=tmp_path))


def test_labelstudio_of_others(tmp_path: Path) -> None:
    """The documented example's shape: by number, rotated, skipped, empty, several people."""

    def region(**changes: Any) -> dict[str, Any]:
        value = {"x": 10, "y": 20, "width": 30, "height": 40, "rectanglelabels": ["mole"]}
        return {
            "type": "rectanglelabels",
            "original_width": 200,
            "original_height": 100,
            "value": {**value, **changes},
            "meta": {"drawn_by": "a model"},
            "score": 0.4,
        }

    star = {"type": "polygonlabels", "value": {"points": [[1, 1], [9, 1], [5, 9]]}}
    choice = {"type": "choices", "value": {"choices": ["blurred"]}}
    tasks = [
        {
            "data": {"image": "/data/upload/1/0af-a.jpg", "sha256": SHA},
            "annotations": [
                {
                    "result": [region(), choice],
                    "completed_by": {"id": 3, "email": "eve@clinic"},
                    "created_at": "2026-01-01T00:00:00Z",
                },
                {"result": [], "completed_by": 10, "created_at": "2026-01-02T00:00:00Z"},
                {"result": [region()], "was_cancelled": True},
            ],
        },
        {
            "data": {"image": "s3://b/turned.jpg"},
            "annotations": [{"result": [region(x=50, y=0, rotation=90)], "completed_by": 10}],
        },
        {"data": {"image": "star.jpg"}, "annotations": [{"result": [star], "completed_by": 10}]},
        {"data": {"image": "untouched.jpg"}, "predictions": [{"result": [region()]}]},
    ]
    path = tmp_path / "export.json"
    path.write_text(json.dumps(tasks))
    file = read_answers(path)
    first, second, turned, other = file.entries
    address, when = "/data/upload/1/0af-a.jpg", "2026-01-01T00:00:00Z"
    assert (first.paths, first.by, first.at) == ((address,), "eve@clinic", when)
    assert [found.first for found in file.waiting.list()] == [("untouched.jpg",)]
    assert first.image.sha256 == SHA
    # She handed the model's box in: it is hers now, and has no score.
    assert first.image.boxes == (Box(20, 20, 80, 60, "mole", "eve@clinic", None, when),)
    assert (second.by, second.image.boxes) == ("labelstudio:10", ())
    # 60 x 40 pixels, turned by a right angle about its top left corner (100, 0).
    # Somebody drew, but no box: that does not say that there is nothing.
    assert (first.image.refused, other.image.boxes, other.image.refused) == (0, (), 1)
    box = turned.image.boxes[0]
    assert [box.x1, box.y1, box.x2, box.y2] == pytest.approx([60, 0, 100, 60])
    assert read_labelstudio(path).images[address].boxes == ()


def test_interface_escapes_labels() -> None:
    assert '<Label value="a&lt;&amp;b"/>' in interface(["a<&b"])


def test_content_says_the_format(tmp_path: Path) -> None:
    class Recipe(Settings):
        boxes: BoxSource | None = None

    sources = saved(tmp_path / "store", PLAIN)
    write_coco(tmp_path / "coco.json", PLAIN)
    write_labelstudio(tmp_path / "tasks.json", [])
    write_yolo(tmp_path / "yolo", [("train", PLAIN)], sources, ["Nævus", "メラノーマ"])
    write_voc(tmp_path / "voc", PLAIN, sources)
    assert format_of(tmp_path / "coco.json") == "coco"
    assert format_of(tmp_path / "tasks.json") == "labelstudio"
    assert format_of(tmp_path / "yolo") == format_of(tmp_path / "yolo/data.yaml") == "yolo"
    assert format_of(tmp_path / "voc") == "voc"
    with pytest.raises(UserError, match="has no annotations in a known format"):
        format_of(tmp_path / "store")
    with pytest.raises(UserError, match="is a file; give the folder"):
        read_boxes(BoxSource(path=tmp_path / "coco.json", kind="yolo"))
    with pytest.raises(UserError, match="is a folder; give a JSON file"):
        read_boxes(BoxSource(path=tmp_path / "yolo", kind="coco"))
    bare = Recipe.parse({"boxes": "a.json"})
    assert bare.boxes == BoxSource(path=Path("a.json"))
    assert Recipe.parse({"boxes": {"kind": "voc", "path": "a"}}).boxes == BoxSource(
        path=Path("a"), kind="voc"
    )
    with pytest.raises(UserError, match="'cvat', 'fiftyone', 'labelstudio' or 'masks'"):
        Recipe.parse({"boxes": {"kind": "pascal", "path": "a"}})
    bare.save(tmp_path / "recipe.yaml")
    assert Recipe.load(tmp_path / "recipe.yaml") == bare


BAD = {
    "yolo no names": ("data.yaml", "nc: 2", "has no `names`"),
    "yolo odd names": ("data.yaml", "names: {a: b}", "by whole numbers"),
    "yolo class": ("labels/a.txt", "9 0.5 0.5 0.5 0.5", "class 9 is not in `names`"),
    "yolo words": ("labels/a.txt", "0 zero 0.5 0.5 0.5", "must be `class x y width height`"),
    "yolo short": ("labels/a.txt", "0 0.5 0.5", "must be `class x y width height`"),
    "yolo bytes": ("labels/a.txt", "\udcff", "cannot be read"),
    "voc no xml": ("voc/a.xml", "<annotation>", "cannot be read as XML"),
    "voc no size": ("voc/a.xml", "<annotation/>", "no size/width"),
    "voc zero": (
        "voc/a.xml",
        "<a><size><width>0</width><height>5</height></size></a>",
        "size/width is 0",
    ),
    "voc infinite": (
        "voc/a.xml",
        "<a><size><width>inf</width><height>5</height></size></a>",
        "is no Pascal VOC annotation",
    ),
    "voc no name": (
        "voc/a.xml",
        "<a><size><width>9</width><height>5</height></size><object/></a>",
        "an object without name",
    ),
    "tasks min": ("tasks.json", '[{"image": "a.jpg"}]', "is not an export of Label Studio"),
    "tasks text": ("tasks.json", '["a.jpg"]', "is not an export of Label Studio"),
    "nested": ("coco.json", "[" * 100_000, "cannot be read as JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_sentence(tmp_path: Path, name: str) -> None:
    save(tmp_path / "images" / "a.png", np.zeros((9, 9, 3), np.uint8))
    (tmp_path / "data.yaml").write_text("names: [mole]")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 0.5 0.5 0.5 0.5")
    file, text, said = BAD[name]
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    source = tmp_path if name.startswith("yolo") else tmp_path / file
    with pytest.raises(UserError, match=said) as caught:
        read_boxes(BoxSource(path=source))
    assert "\n" not in str(caught.value)


def test_two_images_that_would_share_a_file_are_refused(tmp_path: Path) -> None:
    twins = {"a.png": PLAIN["none.png"], "a.jpg": PLAIN["none.png"]}
    with pytest.raises(UserError, match="differ only in their ending"):
        write_voc(tmp_path, twins, dict.fromkeys(twins, tmp_path))
    odd = {"a.png": BoxedImage(9, 9, (Box(0, 0, 1, 1, "a\0b"),))}
    with pytest.raises(UserError, match="character that XML cannot"):
        write_voc(tmp_path / "odd", odd, {"a.png": tmp_path})


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_a_box_that_stands_out_by_more_than_a_pixel_is_reported(left: float, over: float) -> None:
    image = boxed((10, 10), [RawBox(left, 1, 10 + over, 5, "mole")])
    assert image.refused == (left < -1 or over > 1)
    assert 0 <= image.boxes[0].x1 < image.boxes[0].x2 <= 10


@pytest.mark.real
def test_the_real_boxes_survive_every_format(real: Path, tmp_path: Path) -> None:
    read = by_name(read_boxes(BoxSource(path=real / "boxes")))
    assert len(read) == 855
    assert sum(len(image.boxes) for image in read.values()) == 960
    assert sum(not image.boxes for image in read.values()) == 3
    assert sum(image.refused for image in read.values()) == 0
    sources = {name: real / "boxes/train/images" / name for name in read}
    write_coco(tmp_path / "coco.json", read)
    write_yolo(tmp_path / "yolo", [("train", read)], sources, ["benign", "malignant"])
    write_voc(tmp_path / "voc", read, sources)
    write_labelstudio(
        tmp_path / "tasks.json",
        [
            LabelTask(name, "", (each.width, each.height), "x", (Drawing("me", "", each.boxes),))
            for name, each in read.items()
        ],
    )
    for out in ("coco.json", "yolo", "voc", "tasks.json"):
        assert_same(read_boxes(BoxSource(path=tmp_path / out)), read, ("label",))
