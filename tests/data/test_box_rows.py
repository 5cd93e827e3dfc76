"""What a row of a box file means, and that an odd one costs only itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from box_strategies import by_name
from boxed_dataset import boxed_dataset
from command_line import Skindx
from hypothesis import given
from hypothesis import strategies as st
from paint_images import save

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.boxes.box_exchange import import_boxes
from skindx.data.boxes.box_file import BoxFile
from skindx.data.boxes.box_formats import BoxSource, read_boxes
from skindx.data.boxes.yolo import meaning_of, read_values
from skindx.data.manifest import read_manifest

BOX, SQUARE = "0 0.5 0.5 0.4 0.3", "0 0.5 0.5 0.6 0.5 0.6 0.6 0.5 0.6"
BOX_CORNERS, SQUARE_CORNERS = (30, 35, 70, 65), (50, 50, 60, 60)


def yolo(folder: Path, lines: str | bytes, data: str = "names: [lesion]\n") -> Path:
    """Write a YOLO folder of one image of 100 x 100 pixels."""
    save(folder / "images" / "a.png", np.zeros((100, 100, 3), np.uint8))
    (folder / "labels").mkdir()
    raw = lines if isinstance(lines, bytes) else lines.encode()
    (folder / "labels" / "a.txt").write_bytes(raw)
    (folder / "data.yaml").write_text(data)
    return folder


def corners(file: BoxFile) -> list[tuple[int, ...]]:
    (image,) = file.images.values()
    return [tuple(round(v) for v in (b.x1, b.y1, b.x2, b.y2)) for b in image.boxes]


CLEAR = {
    "box": (BOX, "", [BOX_CORNERS], [None]),
    "confidence": (f"{BOX} 0.87", "", [BOX_CORNERS], [0.87]),
    "track id": (f"{BOX} 7", "", [BOX_CORNERS], [None]),
    "one, or certain": (f"{BOX} 1", "", [BOX_CORNERS], [None]),
    "confidence and id": (f"{BOX} 0.87 2", "", [BOX_CORNERS], [0.87]),
    "another line has an id": (f"{BOX} 0.87 1\n{BOX} 0.5 3", "", [BOX_CORNERS] * 2, [0.87, 0.5]),
    "rectangle": (SQUARE, "", [SQUARE_CORNERS], [None]),
    "rectangle and confidence": (f"{SQUARE} 0.91", "", [SQUARE_CORNERS], [0.91]),
    "no box": ("0 0.1 0.2 0.6 0.2 0.3 0.7", "", [(10, 20, 60, 70)], [None]),
    "ring": ("0 .5 .5 .6 .55 .5 .7 .5 .5", "", [(50, 50, 60, 70)], [None]),
    "keypoints": (f"{BOX} .4 .4 2 .6 .6 0", "kpt_shape: [2, 3]\n", [BOX_CORNERS], [None]),
    "keypoints without v": (f"{BOX} .45 .45 .9 .9", "kpt_shape: [2, 2]\n", [BOX_CORNERS], [None]),
    "keypoints, confidence, id": (
        f"{BOX} .4 .4 .8 3", "kpt_shape: [1, 2]\n", [BOX_CORNERS], [0.8],
    ),
    "a class with a point": ("0.0 0.5 0.5 0.4 0.3", "", [BOX_CORNERS], [None]),
    "a mark": ("\ufeff" + BOX, "", [BOX_CORNERS], [None]),
}  # fmt: skip


@pytest.mark.parametrize("name", CLEAR)
def test_columns_that_have_one_meaning(tmp_path: Path, name: str) -> None:
    lines, data, expected, scores = CLEAR[name]
    file = read_boxes(BoxSource(path=yolo(tmp_path, lines, f"names: [lesion]\n{data}")))
    assert corners(file) == expected
    assert [box.score for box in next(iter(file.images.values())).boxes] == scores
    assert not file.all_findings()


UNCLEAR = {
    "confidence and id, or a triangle": (f"{BOX} 0.87 1", "columns 6 to 7"),
    "two keypoints, or four corners": (f"{BOX} 0.45 0.45 0.9 0.9", "columns 6 to 9"),
    "three keypoints and a confidence": (f"{BOX} .4 .4 .5 .6 .45 .5 .8", "columns 6 to 12"),
    "keypoints with visibility": (f"{BOX} .4 .4 2 .6 .6 1", "columns 6 to 11"),
    "per cent": (f"{BOX} 87.5", "column 6 is neither"),
    "short": ("0 0.5 0.5 0.4", "must be `class x y width height`"),
    "no number": (f"{BOX} nan", "must be `class x y width height`"),
    "half a class": ("0.5 0.5 0.5 0.4 0.3", "class 0.5 is no whole number"),
    "no class": ("4 0.5 0.5 0.4 0.3", "class 4 is not in `names`"),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_unclear_columns_are_refused_by_number(tmp_path: Path, name: str) -> None:
    lines, said = UNCLEAR[name]
    with pytest.raises(UserError, match=said) as caught:
        read_boxes(BoxSource(path=yolo(tmp_path / "one", lines)))
    assert "labels/a.txt, line 1" in str(caught.value)
    # Beside a line that is clear it costs only itself, and nobody takes the rest for all.
    folder = yolo(tmp_path / "two", f"{BOX}\n{lines}")
    file = read_boxes(BoxSource(path=folder))
    assert corners(file) == [BOX_CORNERS]
    assert by_name(file)["a.png"].unread == 1
    with pytest.raises(UserError, match=r"remove --strict"):
        read_boxes(BoxSource(path=folder, strict=True))


def test_a_person_says_what_columns_are(tmp_path: Path) -> None:
    folder = yolo(tmp_path, f"{BOX} 0.45 0.45 0.9 0.9")
    assert corners(read_boxes(BoxSource(path=folder, columns="box"))) == [BOX_CORNERS]
    assert corners(read_boxes(BoxSource(path=folder, columns="polygon"))) == [(40, 30, 90, 90)]
    with pytest.raises(UserError, match=r"kpt_shape. is 5; write \[points, 2\] or"):
        read_boxes(BoxSource(path=yolo(tmp_path / "x", BOX, "names: [a]\nkpt_shape: 5\n")))


@given(st.lists(st.floats(0.05, 0.3), min_size=8, max_size=60))
def test_contours_of_several_lengths_are_polygons(radii: list[float]) -> None:
    angles = np.linspace(0, 2 * np.pi, len(radii), endpoint=False)
    points = [
        (0.4 + r * np.cos(a), 0.4 + r * np.sin(a)) for r, a in zip(radii, angles, strict=True)
    ]
    values = [round(float(v), 6) for point in points for v in point]
    meaning = meaning_of([values, values[2:]], None, 0)
    assert meaning.kind == "polygon"
    assert read_values(values, meaning).corners[0] == min(values[::2])


SIZE = {"width": 120, "height": 96}
GOOD = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [10, 20, 50, 50]}


def coco(*annotations: object, images: list[Any] | None = None, **more: Any) -> str:
    """Return a COCO file of 0.jpg, which has a good box, and 2.jpg with further annotations."""
    rows = [{"id": 0, "file_name": "0.jpg", **SIZE}, {"id": 2, "file_name": "2.jpg", **SIZE}]
    return json.dumps(
        {
            "images": rows + (images or []),
            "annotations": [GOOD, *annotations],
            "categories": [{"id": 1, "name": "mole"}],
            **more,
        }
    )


def region(**changes: Any) -> dict[str, Any]:
    value = {"x": 10, "y": 20, "width": 30, "height": 40, "rectanglelabels": ["mole"]}
    size = {"original_width": 120, "original_height": 96, "image_rotation": 0}
    return {"type": "rectanglelabels", **size, "value": {**value, **changes}}


def tasks(*others: Any) -> str:
    good = {
        "data": {"image": "/data/upload/1/0a1b2c3d-0.jpg"},
        "annotations": [{"result": [region()], "completed_by": {"email": "a@b"}, "lead_time": 1}],
    }
    return json.dumps([good, *others])


def task(result: Any, image: str = "2.jpg") -> dict[str, Any]:
    answer = {"result": result, "completed_by": {"email": "a@b"}, "lead_time": 1}
    return {"data": {"image": image}, "annotations": [answer]}


def xml(name: str, size: object = 96, box: str | None = "<xmin>5</xmin>") -> str:
    rest = "<ymin>5</ymin><xmax>60</xmax><ymax>60</ymax>"
    drawn = f"<object><name>mole</name><bndbox>{box}{rest}</bndbox></object>" if box else ""
    return (
        f"<annotation><filename>{name}</filename><size><width>120</width>"
        f"<height>{size}</height></size>{drawn}</annotation>"
    )


def voc(second: str) -> dict[str, str]:
    return {"box/a.xml": xml("0.jpg"), "box/b.xml": second}


ODD: dict[str, tuple[str | dict[str, str], str]] = {
    "coco orphan": (coco({**GOOD, "image_id": 9}), "image that the file does not have"),
    "coco polygon": (
        coco({"id": 7, "image_id": 2, "category_id": 1, "segmentation": [[1, 1, 9, 1, 5, 9]]}),
        "a polygon or mask without bbox (x, y, width, height), such as annotation 7",
    ),
    "coco empty bbox": (coco({**GOOD, "image_id": 2, "bbox": []}), "without bbox"),
    "coco category": (coco({**GOOD, "image_id": 2, "category_id": 5}), "of a category"),
    "coco half id": (coco({**GOOD, "image_id": 0.5}), "an id is neither"),
    "coco no object": (coco("x"), "a row is not a JSON object"),
    "coco no size": (coco(images=[{"id": 5, "file_name": "5.jpg"}]), "without width and height"),
    "coco size 0": (coco(images=[{"id": 5, "file_name": "5.jpg", "width": 0, "height": 9}]), "0 x"),
    "coco no name": (coco(images=[{"id": 5, **SIZE}]), "an image without file_name"),
    "coco twice": (
        coco(images=[{"id": n, "file_name": "2.jpg", **SIZE} for n in (5, 6)],
             annotations=[GOOD, {**GOOD, "image_id": 5}, {**GOOD, "image_id": 6}]),
        "the file names this image more than once",
    ),
    "coco one id": (coco(images=[{"id": 2, "file_name": "5.jpg", **SIZE}]), "images have one id"),
    "tasks empty label": (tasks(task([region(rectanglelabels=[])])), "a rectangle without a label"),
    "tasks no label": (tasks(task([region(rectanglelabels=None)])), "a rectangle without a label"),
    "tasks no width": (tasks(task([region(width=None)])), "without x, y, width, height"),
    "tasks size 0": (tasks(task([{**region(), "original_width": 0}])), "of 0 x 96 pixels"),
    "tasks text": (tasks("2.jpg"), "a task that cannot be read"),
    "tasks no image": (tasks({"data": {"n": 3}}), "a task that names no image"),
    "tasks polygon": (
        tasks(task([{"type": "polygonlabels", "value": {"points": [[1, 1]]}}])),
        "shapes that are not boxes",
    ),
    "voc size 0": (voc(xml("2.jpg", 0)), "size/height is 0), such as b.xml"),
    "voc no corner": (voc(xml("2.jpg", box=" ")), "no bndbox/xmin"),
    "voc words": (voc(xml("2.jpg", box="<xmin>left</xmin>")), "bndbox/xmin is no number"),
    "voc no xml": (voc("<annotation>"), "cannot be read as XML"),
}  # fmt: skip


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Return a copier of one painted dataset without boxes."""
    import shutil

    made = tmp_path_factory.mktemp("made")
    boxed_dataset(made, {}, 4)
    return lambda to: Path(shutil.copytree(made, to))


def written(folder: Path, content: str | dict[str, str]) -> Path:
    if isinstance(content, str):
        (folder / "box.json").write_text(content)
        return folder / "box.json"
    for name, text in content.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder / "box"


@pytest.mark.parametrize("name", ODD)
def test_an_odd_row_costs_only_itself(
    tmp_path: Path, records: Callable[[Path], Path], name: str
) -> None:
    content, said = ODD[name]
    dataset, path = records(tmp_path / "data"), written(tmp_path, content)
    by = "" if name.startswith("tasks") else "Ann"
    before = read_manifest(dataset)
    with pytest.raises(UserError, match="remove --strict"):
        import_boxes(dataset, path, by=by, strict=True)
    assert read_manifest(dataset) == before
    done = import_boxes(dataset, path, by=by)
    assert any(said in finding.line() for finding in done.findings), done.findings
    boxes = {record.source_url: record.boxes for record in read_manifest(dataset)}
    assert len(boxes["folder/0.jpg"] or ()) == 1
    # What was odd says nothing of its image: not that there is no lesion.
    assert boxes["folder/2.jpg"] is None


def test_an_image_keeps_the_rows_that_can_be_used(
    tmp_path: Path, records: Callable[[Path], Path]
) -> None:
    dataset = records(tmp_path / "data")
    done = import_boxes(dataset, written(tmp_path, coco({**GOOD, "category_id": 5})), by="Ann")
    assert [(f.kind, f.count, f.first) for f in done.findings[-1:]] == [("cut", 1, ("0.jpg",))]
    assert len(read_manifest(dataset)[0].boxes or ()) == done.boxes == 1


def test_a_file_of_many_reasons_says_few(tmp_path: Path) -> None:
    good = f"{BOX}\n"
    odd = "".join(f"0.{n:03d} 0.5 0.5 0.4 0.3\n" for n in range(1, 100))
    folder = yolo(tmp_path, good + odd)
    save(folder / "images" / f"{'b' * 150}.png", np.zeros((9, 9, 3), np.uint8))
    (folder / "labels" / f"{'b' * 150}.txt").write_text(BOX)
    found = read_boxes(BoxSource(path=folder)).all_findings()
    assert (len(found), sum(finding.count for finding in found)) == (31, 99)


def test_ids_are_the_same_as_numbers_and_as_text(tmp_path: Path) -> None:
    text = coco({**GOOD, "image_id": "2", "category_id": 1.0})
    for mark, coding in ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le")):
        (tmp_path / "box.json").write_bytes(mark + text.encode(coding))
        file = read_boxes(BoxSource(path=tmp_path / "box.json"))
        assert [len(image.boxes) for image in file.images.values()] == [1, 1]


def test_images_without_annotation_are_no_negatives(
    tmp_path: Path, records: Callable[[Path], Path], skindx: Skindx
) -> None:
    dataset, path = records(tmp_path / "data"), written(tmp_path, coco())
    code, out, _ = skindx("boxes", "import", dataset, path, "--by", "Ann")
    assert code == 0
    assert "skipped 1: images without annotation; --unannotated negative" in out
    assert "2.jpg" in out
    assert "0 images without a lesion" in out
    code, out, _ = skindx(
        "boxes", "import", dataset, path, "--by", "Ann", "--unannotated", "negative", "--strict"
    )
    assert (code, "1 images without a lesion" in out) == (0, True)
    tasks_path = tmp_path / "tasks.json"
    tasks_path.write_text(tasks({"data": {"image": "2.jpg"}, "annotations": []}))
    done = import_boxes(records(tmp_path / "other"), tasks_path, strict=True)
    assert [f.line() for f in done.findings] == [
        "skipped 1: tasks that nobody has completed, such as 2.jpg"
    ]
    for more, said in (
        (("--unannotated", "negative"), "does not apply to the format labelstudio"),
        (("--columns", "box"), "does not apply to the format labelstudio"),
    ):
        code, _, err = skindx("boxes", "import", dataset, tasks_path, *more)
        assert (code, said in err, err.count("\n")) == (2, True, 1)


def test_a_yolo_image_without_label_file_waits(tmp_path: Path) -> None:
    folder = yolo(tmp_path, BOX)
    save(folder / "images" / "b.png", np.zeros((9, 9, 3), np.uint8))
    (folder / "labels" / "gone.txt").write_text(BOX)
    (folder / "labels" / "classes.txt").write_text("lesion")
    (folder / "images" / "notes.txt").write_text("no picture")
    file = read_boxes(BoxSource(path=folder))
    assert [(f.kind, f.count, f.first) for f in file.all_findings()] == [
        ("skipped", 1, ("labels/gone.txt",)),
        ("skipped", 1, ("images/b.png",)),
    ]
    file = read_boxes(BoxSource(path=folder, unannotated="negative"))
    assert [len(image.boxes) for image in file.images.values()] == [1, 0]


def test_an_older_export_of_ours_holds_what_was_looked_at(tmp_path: Path) -> None:
    """Exports of 0.1 name a SHA-256 with each image and do not say `reviewed`."""
    rows = [{"id": n, "file_name": f"{n}.jpg", **SIZE, "sha256": f"{n}" * 64} for n in (0, 2)]
    raw = {"images": rows, "annotations": [GOOD], "categories": [{"id": 1, "name": "mole"}]}
    (tmp_path / "box.json").write_text(json.dumps(raw))
    file = read_boxes(BoxSource(path=tmp_path / "box.json"))
    assert [len(image.boxes) for image in file.images.values()] == [1, 0]
    assert file.images["0.jpg"].boxes == (Box(10, 20, 60, 70, "mole", "box.json"),)
