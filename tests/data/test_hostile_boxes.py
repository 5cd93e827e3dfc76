"""Box files of strangers, and labels that would like to be paths, tags or formulas."""

import json
from pathlib import Path

import pytest
from box_strategies import by_name
from boxed_dataset import boxed_dataset
from paint_images import paint, save

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.boxes.box_exchange import export_boxes, import_boxes
from skindx.data.boxes.box_formats import BoxSource, read_boxes
from skindx.data.manifest import read_manifest, write_manifest

LABELS = (
    "../../../etc/passwd",
    "/tmp/owned",
    "a/b\\c",
    "..",
    "</name><name>x",
    "]]>&x;<!--",
    "{{ 7 * 7 }}",
    "!!python/object/apply:os.system [id]",
    "- a: *b",
    "\u202elabel",
)


@pytest.mark.parametrize(
    ("kind", "copy"),
    [("coco", False), ("yolo", False), ("yolo", True), ("voc", True), ("labelstudio", False)],
)
def test_labels_name_no_file_and_come_back_as_they_were(
    tmp_path: Path, kind: str, copy: bool
) -> None:
    boxes = {n: (Box(1, 2, 30, 40, label),) for n, label in enumerate(LABELS)}
    records = boxed_dataset(tmp_path / "data", boxes, len(LABELS))
    write_manifest(tmp_path / "data", records)
    before = set(tmp_path.rglob("*"))
    out = tmp_path / "out" / ("boxes.json" if kind in ("coco", "labelstudio") else "boxes")
    export_boxes(tmp_path / "data", out, kind, copy=copy)
    new = set(tmp_path.rglob("*")) - before
    assert all(path.is_relative_to(tmp_path / "out") for path in new)
    stems = {path.stem for path in new if path.is_file() and path != out}
    assert stems <= {record.sha256 for record in records} | {"data"}
    read = by_name(read_boxes(BoxSource(path=out, kind=kind)))
    labels = {name.partition(".")[0]: image.boxes[0].label for name, image in read.items()}
    assert labels == {record.sha256: LABELS[n] for n, record in enumerate(records)}


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    "<annotation><filename>&b;</filename></annotation>"
)
OUTSIDE = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    "<annotation><filename>&a;</filename></annotation>"
)


@pytest.mark.parametrize("text", [BOMB, OUTSIDE, "<a>" * 200_000])
def test_xml_that_grows_or_reaches_out_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(UserError, match=r"document type|cannot be read as XML"):
        read_boxes(BoxSource(path=tmp_path / "a.xml"))


def test_names_that_unfold_without_end_are_refused(tmp_path: Path) -> None:
    """Ten aliases of ten aliases …: 400 bytes of YAML, 10^9 words once they are text."""
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (tmp_path / "data.yaml").write_text("\n".join([*lines, "names: {0: *a8}"]))
    save(tmp_path / "images" / "a.jpg", paint(1))
    with pytest.raises(UserError, match=r"must be one word or number|after its YAML aliases"):
        read_boxes(BoxSource(path=tmp_path))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e308", "-1e308"])
@pytest.mark.parametrize("place", range(4))
def test_coordinates_beyond_all_bounds_are_refused_or_cut(
    tmp_path: Path, number: str, place: int
) -> None:
    bbox = ["10", "10", "20", "20"]
    bbox[place] = number
    (tmp_path / "coco.json").write_text(
        '{"images": [{"id": 1, "file_name": "0.jpg", "width": 120, "height": 96}],'
        '"categories": [{"id": 1, "name": "mole"}], "annotations": '
        f'[{{"image_id": 1, "category_id": 1, "bbox": [{", ".join(bbox)}]}}]}}'
    )
    (image,) = read_boxes(BoxSource(path=tmp_path / "coco.json")).images.values()
    for box in image.boxes:
        assert 0 <= box.x1 < box.x2 <= 120
        assert 0 <= box.y1 < box.y2 <= 96
    assert image.refused == 1
    write_manifest(tmp_path / "data", boxed_dataset(tmp_path / "data", {}))
    with pytest.raises(UserError, match="nothing was imported"):
        import_boxes(tmp_path / "data", tmp_path / "coco.json", by="me")


def test_foreign_ids_reach_no_other_image_and_no_file(tmp_path: Path) -> None:
    records = boxed_dataset(tmp_path / "data", {})
    write_manifest(tmp_path / "data", records)
    region = {
        "type": "rectanglelabels",
        "original_width": 120,
        "original_height": 96,
        "value": {"x": 1, "y": 1, "width": 9, "height": 9, "rectanglelabels": ["mole"]},
    }
    ids = ("f" * 64, "../" * 22 + "etc/passwd", 7, None, {"$oid": 1})
    tasks = [
        {
            "data": {"sha256": each, "file_name": f"../../{n}.png", "image": "x"},
            "annotations": [{"result": [region], "completed_by": {"email": "a@b"}}],
        }
        for n, each in enumerate(ids)
    ]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    with pytest.raises(UserError, match=r"no such image \(5, such as"):
        import_boxes(tmp_path / "data", tmp_path / "tasks.json")
    assert read_manifest(tmp_path / "data") == records


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.jpg", "store/../../x.jpg"])
def test_a_manifest_that_leads_out_of_its_folder_is_refused(tmp_path: Path, path: str) -> None:
    records = boxed_dataset(tmp_path, {})
    object.__setattr__(records[0], "path", path)
    write_manifest(tmp_path, records)
    with pytest.raises(UserError, match="which lies outside its folder"):
        read_manifest(tmp_path)
