"""Which image a box lands on: the one its file names, turned as the tool showed it, or none."""

import dataclasses
import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from skindx.data.box import Box, BoxedImage
from skindx.data.boxes.annotations import read_annotations
from skindx.data.boxes.box_exchange import import_boxes
from skindx.data.boxes.box_file import BoxEntry, BoxFile
from skindx.data.boxes.box_formats import BoxSource, read_boxes
from skindx.data.boxes.box_join import FramedEntry, place, turn_upright
from skindx.data.boxes.coco import write_coco
from skindx.data.boxes.image_names import (
    AMBIGUOUS,
    CLAIMED,
    COPY,
    DOUBTFUL,
    ELSEWHERE,
    UNKNOWN,
    match_entries,
)
from skindx.data.boxes.voc import read_voc
from skindx.data.layout import store_bytes
from skindx.data.manifest import SPLITS, Issue, Record, read_manifest, write_issues, write_manifest
from skindx.imaging.decode import turned

NFC, NFD = (unicodedata.normalize(form, "läsion 1.jpg") for form in ("NFC", "NFD"))
LOCAL = "/data/local-files/?d="


def matched(paths: Sequence[str | tuple[str, ...]], images: Sequence[str]) -> list[str]:
    """Match one entry a path to images named by their own paths; return image or reason."""
    entries = [
        BoxEntry((path,) if isinstance(path, str) else path, BoxedImage(9, 9, ())) for path in paths
    ]
    found = match_entries(entries, [(name.partition("=")[0], name.partition("=")[2] or name)
                                    for name in images])  # fmt: skip
    return [found.image.get(n) or found.refused[n] for n in range(len(paths))]


SAME: Mapping[str, tuple[Sequence[str | tuple[str, ...]], Sequence[str], Sequence[str]]] = {
    "file name": (["x.jpg"], ["nevus/x.jpg"], ["nevus/x.jpg"]),
    "windows": (["C:\\p\\nevus\\x.jpg"], ["nevus/x.jpg", "scar/x.jpg"], ["nevus/x.jpg"]),
    "two folders": (
        ["all/nevus/x.jpg", "all/scar/x.jpg"],
        ["scar/x.jpg", "nevus/x.jpg"],
        ["nevus/x.jpg", "scar/x.jpg"],
    ),
    "deeper": (["a/b/x.jpg"], ["z/b/x.jpg", "a/b/x.jpg"], ["a/b/x.jpg"]),
    "no folder": (["x.jpg"], ["nevus/x.jpg", "scar/x.jpg"], [AMBIGUOUS]),
    "neither": (["p/x.jpg"], ["nevus/x.jpg", "scar/x.jpg"], [AMBIGUOUS]),
    "the other one": (["nevus/x.jpg", "scar/x.jpg"], ["scar/x.jpg"], [UNKNOWN, "scar/x.jpg"]),
    "both claim": (["p/x.jpg", "q/x.jpg"], ["nevus/x.jpg"], [CLAIMED, CLAIMED]),
    "folders are shared": (
        ["nevus/x.jpg", "scar/y.jpg"],
        ["nevus/x.jpg", "nevus/y.jpg"],
        ["nevus/x.jpg", ELSEWHERE],
    ),
    "a web address": (["nevus/x.jpg", "scar/y.jpg"], ["nevus/x.jpg", "https://h/p/y.jpg"],
                      ["nevus/x.jpg", "https://h/p/y.jpg"]),
    "nowhere": (["y.jpg"], ["x.jpg"], [UNKNOWN]),
    "upload": (["/data/upload/3/1a2b3c4d-x.jpg"], ["n/x.jpg"], ["n/x.jpg"]),
    "converted upload": (["images/1a2b3c4d-x.jpg"], ["images/x.jpg"], ["images/x.jpg"]),
    "two uploads": (["u/1a2b3c4d-x.jpg", "u/ffffffff-x.jpg"], ["n/x.jpg"], [CLAIMED, CLAIMED]),
    "upload of two": (["u/1a2b3c4d-x.jpg"], ["n/x.jpg", "s/x.jpg"], [AMBIGUOUS]),
    "no upload": (["u/1a2b3c4d-x.jpg"], ["1a2b3c4d-x.jpg", "x.jpg"], ["1a2b3c4d-x.jpg"]),
    "no hexadecimal": (["my-image-x.jpg"], ["x.jpg"], [UNKNOWN]),
    "upload of signs": (["1a2b3c4d-my_mole_1.jpg"], ["n/my mole (1).jpg"], ["n/my mole (1).jpg"]),
    "upload decomposed": (["1a2b3c4d-lasion_1.jpg"], [f"n/{NFD}"], [f"n/{NFD}"]),
    "upload composed": (["1a2b3c4d-läsion_1.jpg"], [f"n/{NFD}"], [f"n/{NFD}"]),
    "composed": ([NFC], [f"n/{NFD}"], [f"n/{NFD}"]),
    "decomposed": ([f"n/{NFD}"], [f"n/{NFC}", f"s/{NFC}"], [f"n/{NFC}"]),
    "encoded": (["n/l%C3%A4sion%201.jpg"], [f"n/{NFC}"], [f"n/{NFC}"]),
    "local": ([f"{LOCAL}all/n/x.jpg"], ["n/x.jpg", "s/x.jpg"], ["n/x.jpg"]),
    "local encoded": ([f"{LOCAL}n%2Fl%C3%A4sion%201.jpg"], [f"n/{NFD}", f"s/{NFD}"], [f"n/{NFD}"]),
    "local plus": ([f"{LOCAL}n/a+b.jpg"], ["n/a+b.jpg", "n/a b.jpg"], ["n/a+b.jpg"]),
    "no ending": (["n/x", "s/x"], ["s/x.jpg", "n/x.PNG"], ["n/x.PNG", "s/x.jpg"]),
    "upload without ending": (["images/1a2b3c4d-my_x"], ["n/my x.jpg"], ["n/my x.jpg"]),
    "another ending": (["x.png"], ["x.jpg"], [UNKNOWN]),
    "a per cent": (["n/5%20.jpg"], ["n/5%20.jpg", "n/5 .jpg"], ["n/5%20.jpg"]),
    "bucket": (["s3://b/n/x.jpg"], ["n/x.jpg", "s/x.jpg"], ["n/x.jpg"]),
    "signed": (["https://h/n/x%20y.jpg?sig=a/b"], ["https://h/n/x%20y.jpg"],
               ["https://h/n/x%20y.jpg"]),
    "odd address": (["http://[/x.jpg"], ["x.jpg"], ["x.jpg"]),
    "several names of a row": ([("x.jpg", "C:\\p\\nevus\\x.jpg")], ["nevus/x.jpg", "scar/x.jpg"],
                               ["nevus/x.jpg"]),
    "several names of an image": (["n/x.jpg", "n/y.jpg"], ["A=n/x.jpg", "A=n/y.jpg"], ["A", COPY]),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_the_longest_common_path_counts(name: str) -> None:
    paths, images, expected = SAME[name]
    assert matched(paths, images) == expected
    if COPY not in expected:  # of two names of one image the first counts
        assert matched(paths[::-1], images[::-1]) == expected[::-1]


def test_a_hash_goes_before_all_names() -> None:
    sha = "a" * 64
    entries = [BoxEntry(("x.jpg",), BoxedImage(9, 9, (), s)) for s in (sha, "b" * 64, "")]
    found = match_entries(entries, [(sha, "other.jpg"), ("c" * 64, "x.jpg")])
    assert (found.image, found.refused) == ({0: sha, 2: "c" * 64}, {1: UNKNOWN})


def test_case_counts_only_where_two_images_differ_in_it() -> None:
    assert matched(["IMG_1.JPG"], ["a/img_1.jpg"]) == ["a/img_1.jpg"]
    assert matched(["X.jpg"], ["x.jpg", "X.jpg"]) == ["X.jpg"]
    assert matched(["X.JPG"], ["x.jpg", "X.jpg"]) == [AMBIGUOUS]
    assert matched(["x.jpg", "X.jpg"], ["X.jpg"]) == [CLAIMED, "X.jpg"]


def voc_file(folder: Path, stem: str, filename: str, path: str = "") -> None:
    (folder / f"{stem}.xml").write_text(
        f"<annotation><filename>{filename}</filename><path>{path}</path>"
        "<size><width>9</width><height>9</height></size></annotation>"
    )


def of_file(read: BoxFile, *images: str) -> dict[str, str]:
    matches = match_entries(read.entries, [(name, name) for name in images])
    return {
        entry.name: matches.image.get(n) or matches.refused[n]
        for n, entry in enumerate(read.entries)
    }


def test_a_voc_file_with_the_name_of_another_image_means_neither(tmp_path: Path) -> None:
    voc_file(tmp_path, "n0", "n1.jpg")  # as of n0.jpg that was called n1.jpg once
    read = read_voc(tmp_path)
    assert of_file(read, "n0.jpg", "n1.jpg") == {"n1.jpg": DOUBTFUL}
    assert of_file(read, "n1.jpg") == {"n1.jpg": "n1.jpg"}
    voc_file(tmp_path, "n0", "n0.jpg", "C:\\photos\\n1.jpg")
    assert of_file(read_voc(tmp_path), "n0.jpg", "n1.jpg") == {"n0.jpg": DOUBTFUL}
    voc_file(tmp_path, "0a1b2c3d-n0", "n0.jpg", "/old/N0.jpg")
    (tmp_path / "n0.xml").unlink()
    assert of_file(read_voc(tmp_path), "n0.jpg", "n1.jpg") == {"n0.jpg": "n0.jpg"}


def test_of_voc_files_named_as_their_images_one_that_is_not_is_left_out(tmp_path: Path) -> None:
    for name in "abc":
        voc_file(tmp_path, name, f"{name}.jpg")
    voc_file(tmp_path, "d", "e.jpg")
    read = read_voc(tmp_path)
    assert [entry.name for entry in read.entries] == ["a.jpg", "b.jpg", "c.jpg"]
    (finding,) = read.all_findings()
    assert "whose `filename` is another image than its name" in finding.reason
    assert finding.first == ("d (e.jpg)",)


def test_two_names_in_json_that_are_two_images_mean_neither(tmp_path: Path) -> None:
    size = {"width": 9, "height": 9}
    images = [
        {"id": 1, "file_name": "a.jpg", "coco_url": "http://h/b.jpg", **size, "reviewed": True},
        {"id": 2, "file_name": "c.jpg", "coco_url": "http://h/C.jpg", **size, "reviewed": True},
    ]
    coco = {"images": images, "annotations": [], "categories": []}
    (tmp_path / "c.json").write_text(json.dumps(coco))
    read = read_boxes(BoxSource(path=tmp_path / "c.json"))
    assert of_file(read, "a.jpg", "b.jpg", "c.jpg") == {"a.jpg": DOUBTFUL, "c.jpg": "c.jpg"}
    tasks = [
        {
            "data": {"image": f"/data/upload/1/{image}.jpg"},
            "file_upload": upload,
            "annotations": [{"result": []}],
        }
        for image, upload in (("a", "0a1b2c3d-a.jpg"), ("c", "b.jpg"))
    ]
    (tmp_path / "t.json").write_text(json.dumps(tasks))
    read = read_boxes(BoxSource(path=tmp_path / "t.json"))
    matches = match_entries(read.entries, [(name, name) for name in ("a.jpg", "b.jpg", "c.jpg")])
    assert (matches.image, matches.refused) == ({0: "a.jpg"}, {1: DOUBTFUL})


def photo(orientation: int, size: tuple[int, int], seed: int, kind: str = "JPEG") -> bytes:
    import io

    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)
    exif = Image.Exif()
    exif[274] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, exif=exif)
    return file.getvalue()


def photos(folder: Path, kinds: Sequence[tuple[int, tuple[int, int]]]) -> list[Record]:
    """Write a dataset of photos n.jpg of an EXIF orientation and a stored size."""
    records = []
    for n, (orientation, size) in enumerate(kinds):
        sha256, path = store_bytes(folder, photo(orientation, size, n), ".jpg")
        width, height = size[::-1] if orientation >= 5 else size
        url = f"p/{n}.jpg"
        records.append(
            Record(path, sha256, "0" * 16, width, height, "Nevus", f"g{n}", SPLITS[n % 2],
                   source_url=url)
        )  # fmt: skip
    write_manifest(folder, records)
    return records


def boxes_of(dataset: Path) -> list[Any]:
    by_url = {record.source_url: record.boxes for record in read_manifest(dataset)}
    return [
        boxes and [(round(b.x1), round(b.y1), round(b.x2), round(b.y2)) for b in boxes]
        for _, boxes in sorted(by_url.items())
    ]


STORED = Box(10, 20, 30, 60, "mole")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_turn_as_the_pixels_do(orientation: int) -> None:
    mask_HW = np.zeros((80, 100), np.uint8)
    mask_HW[20:60, 10:30] = 1
    upright_HW = turned(mask_HW, orientation)
    height, width = upright_HW.shape
    image = turn_upright(BoxedImage(100, 80, (STORED,)), (width, height), orientation)
    (box,) = image.boxes
    ys, xs = np.nonzero(upright_HW)
    assert (box.x1, box.y1, box.x2, box.y2) == (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
    assert (image.width, image.height) == (width, height)


def coco_of(path: Path, images: Mapping[str, tuple[int, int]]) -> Path:
    """Write a stranger's COCO file: a box in each image, of the size that the tool saw."""
    write_coco(path, {name: BoxedImage(*size, (STORED,)) for name, size in images.items()})
    raw = json.loads(path.read_text())
    for image in raw["images"]:
        del image["reviewed"], image["sha256"]
    path.write_text(json.dumps(raw))
    return path


def test_boxes_on_stored_pixels_are_turned(tmp_path: Path) -> None:
    kinds = [(6, (100, 80)), (3, (100, 80)), (1, (100, 80)), (8, (80, 80))]
    photos(tmp_path / "data", kinds)
    saw = {f"{n}.jpg": size for n, (_, size) in enumerate(kinds)}
    done = import_boxes(tmp_path / "data", coco_of(tmp_path / "a.json", saw), by="Ann")
    # Photo 0 shows that the tool does not heed EXIF; so it did not at 180 degrees and at squares.
    assert boxes_of(tmp_path / "data") == [
        [(20, 10, 60, 30)], [(70, 20, 90, 60)], [(10, 20, 30, 60)], [(20, 50, 60, 70)],
    ]  # fmt: skip
    assert [(f.kind, f.count) for f in done.findings] == [("turned", 3)]
    assert read_annotations(tmp_path / "data")[0].boxes


def test_a_tool_that_heeds_exif_is_believed(tmp_path: Path) -> None:
    kinds = [(6, (100, 80)), (3, (100, 80)), (8, (80, 80))]
    records = photos(tmp_path / "data", kinds)
    saw = {f"{n}.jpg": (r.width, r.height) for n, r in enumerate(records)}
    done = import_boxes(tmp_path / "data", coco_of(tmp_path / "a.json", saw), by="Ann")
    assert boxes_of(tmp_path / "data") == [[(10, 20, 30, 60)]] * 3
    assert not done.findings


def test_what_cannot_be_known_is_counted(tmp_path: Path) -> None:
    kinds = [(3, (100, 80)), (8, (80, 80)), (2, (100, 80)), (1, (100, 80))]
    photos(tmp_path / "data", kinds)
    saw = {f"{n}.jpg": size for n, (_, size) in enumerate(kinds)}
    path = coco_of(tmp_path / "a.json", saw)
    done = import_boxes(tmp_path / "data", path, by="Ann")
    assert boxes_of(tmp_path / "data") == [[(10, 20, 30, 60)]] * 4
    ((kind, count, first),) = [(f.kind, f.count, f.first) for f in done.findings]
    assert (kind, count, first) == ("uncertain", 3, ("0.jpg", "1.jpg", "2.jpg"))


def answer(name: str, size: tuple[int, int], rotation: int) -> dict[str, Any]:
    region = {
        "type": "rectanglelabels",
        "original_width": size[0],
        "original_height": size[1],
        "image_rotation": rotation,
        "value": {"x": 10, "y": 25, "width": 20, "height": 50, "rectanglelabels": ["mole"]},
    }
    done = {"result": [region], "completed_by": {"email": "a@b"}, "lead_time": 1}
    return {"data": {"image": name}, "annotations": [done]}


@pytest.mark.parametrize(
    ("boxes", "expected", "kind"),
    [
        ([(10, 20, 20, 75)], [(10, 20, 30, 95)], ""),  # stands out of the stored pixels
        ([(75, 20, 20, 40)], [(20, 75, 60, 95)], "turned"),  # and this one of the upright ones
        ([(10, 20, 20, 40)], [(10, 20, 30, 60)], "uncertain"),
        ([(70, 70, 20, 20)], [], "refused"),  # of both
    ],
)
def test_sizes_in_label_studios_coco_are_not_those_of_its_boxes(
    tmp_path: Path, boxes: Sequence[tuple[int, ...]], expected: list[Any], kind: str
) -> None:
    """Its converter asks Pillow for the size of a photo, and its page the browser for boxes."""
    photos(tmp_path / "data", [(6, (100, 80)), (1, (100, 80))])
    raw = {
        "info": {"contributor": "Label Studio"},
        "images": [
            {"id": n, "file_name": f"images/0a1b2c3d-{n}.jpg", "width": 100, "height": 80}
            for n in (0, 1)
        ],
        "annotations": [{"image_id": 0, "category_id": 0, "bbox": box} for box in boxes]
        + [{"image_id": 1, "category_id": 0, "bbox": [70, 20, 29, 20]}],
        "categories": [{"id": 0, "name": "mole"}],
    }
    (tmp_path / "a.json").write_text(json.dumps(raw))
    done = import_boxes(tmp_path / "data", tmp_path / "a.json", by="Ann")
    assert boxes_of(tmp_path / "data") == [expected or None, [(70, 20, 99, 40)]]
    assert [f.kind for f in done.findings] == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("orientation", "rotation", "expected", "kind"),
    [
        (3, 180, (70, 20, 90, 60), "turned"),  # the person turned what the tool showed as stored
        (3, 0, (10, 20, 30, 60), "uncertain"),
        (3, 90, (10, 20, 30, 60), "uncertain"),
        (1, 180, (10, 20, 30, 60), ""),  # the view alone was turned
        (1, 90, (10, 20, 30, 60), ""),
    ],
)
def test_a_turned_view_in_label_studio(
    tmp_path: Path, orientation: int, rotation: int, expected: tuple[int, ...], kind: str
) -> None:
    photos(tmp_path / "data", [(orientation, (100, 80))])
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([answer("0.jpg", (100, 80), rotation)]))
    done = import_boxes(tmp_path / "data", path)
    assert boxes_of(tmp_path / "data") == [[expected]]
    assert [f.kind for f in done.findings] == ([kind] if kind else [])


def test_yolo_has_no_sizes_to_tell(tmp_path: Path) -> None:
    (record,) = photos(tmp_path / "data", [(6, (100, 80))])
    for sub in ("images", "labels"):
        (tmp_path / "yolo" / sub).mkdir(parents=True)
    (tmp_path / "yolo/images/0.jpg").write_bytes((tmp_path / "data" / record.path).read_bytes())
    (tmp_path / "yolo/labels/0.txt").write_text("0 0.5 0.5 0.5 0.5")
    (tmp_path / "yolo/data.yaml").write_text("names: [mole]")
    done = import_boxes(tmp_path / "data", tmp_path / "yolo", by="Ann")
    assert boxes_of(tmp_path / "data") == [[(20, 25, 60, 75)]]
    assert [f.kind for f in done.findings] == ["uncertain"]


def test_a_box_of_an_image_that_was_left_out_lands_on_no_other(tmp_path: Path) -> None:
    records = photos(tmp_path, [(1, (100, 80)), (1, (100, 80))])
    kept = [dataclasses.replace(records[0], source_url="nevus/x.jpg"), records[1]]
    write_manifest(tmp_path, kept)
    write_issues(tmp_path, [
        Issue("scar/x.jpg", "e" * 64, "Scar", "near-duplicate"),
        Issue("nevus/copy.jpg", kept[0].sha256, "Nevus", "exact-duplicate"),
    ])  # fmt: skip
    saw = dict.fromkeys(("scar/x.jpg", "p/1.jpg"), (100, 80))
    done = import_boxes(tmp_path, coco_of(tmp_path / "a.json", saw), by="Ann")
    assert done.refused == {"the image was left out of the dataset": ("scar/x.jpg",)}
    saw = {"nevus/copy.jpg": (100, 80)}
    done = import_boxes(tmp_path, coco_of(tmp_path / "a.json", saw), by="Ann")
    assert len(boxes_of(tmp_path)[0]) == 1


def test_uncertain_frames_of_entries_alone() -> None:
    entry = BoxEntry(("x.jpg",), BoxedImage(100, 80, (STORED,)), frame="upright")
    (ours,) = place([(entry, "", (100, 80), 3)])
    assert (ours.frame, ours.image.boxes) == ("upright", (STORED,))
    other = dataclasses.replace(entry, image=BoxedImage(50, 80, (STORED,)), frame="sized")
    assert [each.frame for each in place([(other, "", (100, 80), 6)])] == ["missized"]
    mixed = [
        (dataclasses.replace(entry, frame="sized"), "", size, 6) for size in ((100, 80), (80, 100))
    ]
    square = dataclasses.replace(entry, image=BoxedImage(80, 80, (STORED,)), frame="sized")
    found: list[FramedEntry] = place([*mixed, (square, "", (80, 80), 6)])
    assert [each.frame for each in found] == ["upright", "stored", "unknown"]
