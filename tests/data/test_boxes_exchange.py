"""Export and import of a dataset's boxes: nobody's work is lost, nothing half is written."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from box_strategies import by_name
from boxed_dataset import boxed_dataset
from command_line import Skindx
from paint_images import paint, save

from skindx.core.errors import UserError
from skindx.data.box import Box, BoxedImage
from skindx.data.boxes.annotations import (
    ANNOTATIONS,
    BUILT,
    PROPOSALS,
    Annotation,
    read_annotations,
    read_proposals,
    write_proposals,
)
from skindx.data.boxes.box_exchange import export_boxes, import_boxes
from skindx.data.boxes.box_formats import BoxSource, read_boxes
from skindx.data.boxes.coco import write_coco
from skindx.data.boxes.labelstudio import read_answers
from skindx.data.boxes.voc import write_voc
from skindx.data.build.build_dataset import BuildSettings, build
from skindx.data.layout import MANIFEST
from skindx.data.manifest import read_issues, read_manifest, write_manifest

MOLE = Box(10, 20, 60, 70, "mole", "boxes.json")
OTHER = Box(30.5, 0, 120, 96, "scar", "boxes.json")
SIZE = (120, 96)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Return a dataset: 0 and 3 with boxes, 1 looked at without any, the rest unseen."""
    boxed_dataset(tmp_path / "data", {0: (MOLE,), 3: (MOLE, OTHER), 1: ()})
    return tmp_path / "data"


def drawn(path: Path, images: dict[str, tuple[Box, ...]], size: tuple[int, int] = SIZE) -> Path:
    write_coco(path, {name: BoxedImage(*size, boxes) for name, boxes in images.items()})
    return path


def boxes_of(dataset: Path) -> dict[str, Any]:
    return {Path(r.source_url).stem: r.boxes for r in read_manifest(dataset)}


@pytest.mark.parametrize("kind", ["coco", "yolo", "voc", "labelstudio"])
def test_what_was_looked_at_goes_out_and_comes_back(
    dataset: Path, tmp_path: Path, kind: Any
) -> None:
    out = tmp_path / ("out.json" if kind in ("coco", "labelstudio") else "out")
    done = export_boxes(dataset, out, kind)
    assert (done.boxes, done.empty, done.waiting) == (3, 1, 5)
    read = by_name(read_boxes(BoxSource(path=out)))
    records = {Path(r.path).name: r for r in read_manifest(dataset) if r.boxes is not None}
    assert read.keys() == records.keys()
    for name, image in read.items():
        assert image.sha256 == records[name].sha256
        boxes = records[name].boxes or ()
        assert len(image.boxes) == len(boxes)
        for mine, theirs in zip(image.boxes, boxes, strict=True):
            corners = [(b.x1, b.y1, b.x2, b.y2) for b in (mine, theirs)]
            np.testing.assert_allclose(*corners, atol=0.01)
            assert mine.label == theirs.label
    # It joins by the hash, and says nothing of what nobody looked at.
    import_boxes(dataset, out, by="me")
    after = boxes_of(dataset)
    assert [len(after[n]) for n in "013"] == [1, 0, 2]
    assert after["2"] is None


def test_one_split_and_the_tasks_for_all(dataset: Path, tmp_path: Path) -> None:
    assert export_boxes(dataset, tmp_path / "val.json", "coco", split="val").images == 2
    done = export_boxes(dataset, tmp_path / "tasks.json", "labelstudio", prefix="/d/?d=")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert done.images == len(tasks) == 8
    assert sorted(len(task["annotations"]) for task in tasks) == [0] * 5 + [1] * 3
    assert tasks[0]["data"]["image"] == f"/d/?d={read_manifest(dataset)[0].path}"


def test_proposals_go_along_the_least_confident_first(dataset: Path, tmp_path: Path) -> None:
    shas = [record.sha256 for record in read_manifest(dataset)]
    score = {2: 0.9, 4: 0.2, 5: None}
    rows = [
        Annotation(
            shas[n],
            "m@1",
            "",
            () if s is None else (dataclasses.replace(MOLE, score=s, label="lesion"),),
        )
        for n, s in score.items()
    ]
    write_proposals(dataset, rows)
    assert [row.sha256 for row in read_proposals(dataset)] == [shas[5], shas[4], shas[2]]
    done = export_boxes(dataset, tmp_path / "tasks.json", "labelstudio", proposals=True)
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert (done.proposed, done.labels) == (3, ("lesion", "mole", "scar"))
    assert [task["data"]["sha256"] for task in tasks[:3]] == [shas[5], shas[4], shas[2]]
    prediction = tasks[1]["predictions"][0]
    assert (prediction["model_version"], prediction["result"][0]["score"]) == (
        "m@1",
        pytest.approx(0.2),
    )
    # A proposal is no answer: nobody completed these tasks.
    answered = {entry.image.sha256 for entry in read_answers(tmp_path / "tasks.json").entries}
    assert answered == {shas[0], shas[1], shas[3]}


def test_people_are_kept_apart_and_the_latest_is_accepted(dataset: Path, tmp_path: Path) -> None:
    one = Box(1, 2, 3, 4, "mole")
    import_boxes(dataset, drawn(tmp_path / "a.json", {"0.jpg": (one,), "2.jpg": ()}), by="Ann")
    import_boxes(dataset, drawn(tmp_path / "b.json", {"0.jpg": (OTHER, one)}), by="Bob")
    assert [box.drawn_by for box in boxes_of(dataset)["0"]] == ["Bob", "Bob"]
    assert boxes_of(dataset)["2"] == ()
    assert boxes_of(dataset)["3"] == (MOLE, OTHER)
    done = import_boxes(dataset, drawn(tmp_path / "c.json", {"0.jpg": (OTHER,)}), by="Ann")
    assert done.replaced == 1
    by = {(row.annotator, len(row.boxes)) for row in read_annotations(dataset)}
    assert by == {(BUILT, 1), ("Ann", 1), ("Ann", 0), ("Bob", 2)}
    (accepted,) = boxes_of(dataset)["0"]
    assert (accepted.x1, accepted.drawn_by, accepted.score) == (30.5, "Ann", None)
    assert accepted.drawn_at.endswith("+00:00")


def test_what_does_not_fit_is_refused_and_counted(dataset: Path, tmp_path: Path) -> None:
    out = Box(100, 50, 119, 90, "mole")
    path = drawn(tmp_path / "a.json", {"0.jpg": (out,), "2.jpg": (out,), "who.jpg": (out,)})
    raw = json.loads(path.read_text())
    raw["annotations"][1]["bbox"] = [100, 50, 30, 40]
    unfit = {"id": 9, "file_name": "3.jpg", "width": 60, "height": 96, "reviewed": True}
    raw["images"].append(unfit)
    path.write_text(json.dumps(raw))
    done = import_boxes(dataset, path, by="Ann")
    assert done.refused == {
        "it has boxes that are empty or reach outside the image, or shapes that are not boxes": (
            "2.jpg",
        ),
        "the dataset has no such image": ("who.jpg",),
        "the dataset has the image in another size": ("3.jpg",),
    }
    assert boxes_of(dataset)["2"] is None
    before = {name: (dataset / name).read_bytes() for name in (MANIFEST, ANNOTATIONS)}
    with pytest.raises(UserError, match=r"no annotation"):
        import_boxes(dataset, drawn(tmp_path / "b.json", {"who.jpg": ()}), by="Ann")
    assert before == {name: (dataset / name).read_bytes() for name in before}


def test_a_name_that_two_images_bear_is_refused(tmp_path: Path) -> None:
    records = boxed_dataset(tmp_path, {})
    twins = [dataclasses.replace(r, source_url=f"{n % 2}/x.jpg") for n, r in enumerate(records)]
    write_manifest(tmp_path, twins)
    with pytest.raises(UserError, match=r"several images .* this file name"):
        import_boxes(tmp_path, drawn(tmp_path / "a.json", {"x.jpg": ()}), by="Ann")


def test_labelstudio_keeps_its_people_apart(dataset: Path, tmp_path: Path) -> None:
    export_boxes(dataset, tmp_path / "tasks.json", "labelstudio")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    region = tasks[0]["annotations"][0]["result"]
    tasks[2]["annotations"] = [
        {"result": region, "completed_by": {"email": "a@x"}, "updated_at": "2026-03-01T00:00:00Z"},
        {"result": [], "completed_by": 7, "updated_at": "2026-02-01T00:00:00Z"},
    ]
    for task in (tasks[0], tasks[1], tasks[3]):
        task["annotations"] = []
    path = tmp_path / "answers.json"
    path.write_text(json.dumps(tasks))
    done = import_boxes(dataset, path)
    assert done.annotators == {"a@x": 1, "labelstudio:7": 1}
    assert len(boxes_of(dataset)["2"]) == 1  # a@x answered later
    with pytest.raises(UserError, match="remove --by"):
        import_boxes(dataset, path, by="Ann")


def test_what_labelstudio_only_passed_on_is_nobodys_answer(dataset: Path, tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    export_boxes(dataset, path, "labelstudio")
    with pytest.raises(UserError, match=r"annotated in Label Studio"):
        import_boxes(dataset, path)
    # Label Studio forgets who drew what it imports, and names the account that imported it.
    tasks = json.loads(path.read_text())
    opened, *others = [task["annotations"][0] for task in tasks if task["annotations"]]
    for annotation in (opened, *others):
        del annotation["drawn_by"], annotation["drawn_at"]
        annotation |= {"completed_by": {"email": "a@x"}, "lead_time": None}
    opened["lead_time"] = 4.2
    path.write_text(json.dumps(tasks))
    done = import_boxes(dataset, path)
    assert done.annotators == {"a@x": 1}
    assert [(why, len(names)) for why, names in done.refused.items()] == [
        ("not annotated in Label Studio", 2)
    ]
    assert {(row.annotator, row.when == "") for row in read_annotations(dataset)} == {
        (BUILT, True),
        ("a@x", False),
    }
    # Read as a box file of a recipe, what is in it counts and not who drew it.
    assert len(read_boxes(BoxSource(path=path)).entries) == 3


def test_a_kill_between_the_two_tables_is_mended(dataset: Path, tmp_path: Path) -> None:
    path = drawn(tmp_path / "a.json", {"2.jpg": (MOLE,)})
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from skindx.data.boxes import annotations, box_exchange\n"
        "annotations.write_manifest = lambda *_: os._exit(9)\n"
        "box_exchange.import_boxes(Path(sys.argv[1]), Path(sys.argv[2]), by='Ann')\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(dataset), str(path)], check=False)
    assert killed.returncode == 9
    assert boxes_of(dataset)["2"] is None
    import_boxes(dataset, drawn(tmp_path / "b.json", {"4.jpg": ()}), by="Bob")
    assert len(boxes_of(dataset)["2"]) == 1


def test_a_build_takes_any_format_and_keeps_what_people_drew(tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    for label, seed in (("nevus", 0), ("scar", 20)):
        for n in range(6):
            save(root / label / f"{label}{n}.jpg", paint(seed + n))
    save(root / "nevus" / "same.jpg", paint(40))
    save(root / "scar" / "same.jpg", paint(41))
    said = {
        "nevus0.jpg": BoxedImage(*SIZE, (MOLE,)),
        "scar1.jpg": BoxedImage(*SIZE, ()),
        "same.jpg": BoxedImage(*SIZE, (MOLE,)),
        "nevus5.jpg": BoxedImage(*SIZE, (Box(500, 500, 600, 600),)),
    }
    write_voc(tmp_path / "voc", said, dict.fromkeys(said, root / "nevus" / "nevus0.jpg"))
    settings = BuildSettings.parse(
        {
            "name": "x",
            "workers": 1,
            "sources": [{"path": str(root), "kind": "folder"}],
            "boxes": {"kind": "voc", "path": str(tmp_path / "voc")},
        }
    )
    out = tmp_path / "out"
    summary = build(settings, out)
    boxes = {Path(r.source_url).name: r.boxes for r in read_manifest(out) if r.boxes is not None}
    assert {name: len(each) for name, each in boxes.items()} == {"nevus0.jpg": 1, "scar1.jpg": 0}
    assert any("same.jpg" in note for note in summary.notes)
    assert any("refused 1" in n and "nevus5.jpg" in n for n in summary.notes)
    assert summary.boxes is not None
    assert (summary.boxes.named, summary.boxes.joined, summary.boxes.boxes) == (4, 2, 1)

    import_boxes(out, drawn(tmp_path / "a.json", {"scar1.jpg": (OTHER,), "scar2.jpg": ()}), by="A")
    build(settings, out)
    again = {Path(r.source_url).name: r.boxes for r in read_manifest(out) if r.boxes is not None}
    assert {name: len(each) for name, each in again.items()} == {
        "nevus0.jpg": 1,
        "scar1.jpg": 1,
        "scar2.jpg": 0,
    }


def yolo_folder(root: Path) -> None:
    """Paint a Roboflow export: five originals a class in two copies, and two without a class."""
    for number, label in enumerate(("benign", "malignant")):
        for n in range(5):
            for copy in range(2):
                name = f"{label}{n}.rf.{copy}"
                save(root / "train/images" / f"{name}.jpg", paint(number * 100 + n * 10 + copy))
                text = root / "train/labels" / f"{name}.txt"
                text.parent.mkdir(exist_ok=True)
                text.write_text(f"{number} 0.5 0.5 0.25 0.5\n")
    both = "0 0.5 0.5 0.2 0.2\n1 0.5 0.5 0.2 0.2\n"
    for seed, (name, lines) in enumerate({"empty": "", "mixed": both}.items(), start=500):
        save(root / "train/images" / f"{name}.jpg", paint(seed))
        (root / "train/labels" / f"{name}.txt").write_text(lines)
    (root / "data.yaml").write_text("names: [benign, malignant]\n")


def test_a_yolo_folder_is_a_source(tmp_path: Path) -> None:
    yolo_folder(tmp_path / "yolo")
    source = {
        "kind": "folder",
        "path": str(tmp_path / "yolo"),
        "layout": "yolo",
        "group_pattern": r"^(.+?)\.rf\.",
    }
    recipe = {
        "name": "x",
        "workers": 1,
        "urgency": {"malignant": "urgent"},
        "sources": [source],
        "boxes": str(tmp_path / "yolo"),
    }
    build(BuildSettings.parse(recipe), tmp_path / "out")
    records = read_manifest(tmp_path / "out")
    assert len(records) == 20
    for record in records:
        name = Path(record.source_url).name
        assert name.startswith(record.label)
        assert record.group.endswith(f"/{name.split('.rf.')[0]}")
        assert [(b.x1, b.y1, b.x2, b.y2, b.label) for b in record.boxes or ()] == [
            (45, 24, 75, 72, record.label)
        ]
    assert {(i.reason, i.detail) for i in read_issues(tmp_path / "out")} == {
        ("no-class", "it has no box, so its class is not known"),
        ("no-class", "its boxes are of benign and malignant, so its class is not known"),
    }
    with pytest.raises(UserError, match="one pair of brackets"):
        BuildSettings.parse({**recipe, "sources": [{**source, "group_pattern": "x"}]})


@pytest.mark.real
@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.long)])
def test_the_real_lesion_boxes_build(
    real: Path, tmp_path: Path, monkeypatch: Any, step: int
) -> None:
    """The three copies of each ninth original in the suite, those of all in the long run."""
    files = sorted((real / "boxes/train/images").iterdir())
    named = sorted({file.name.split(".rf.")[0] for file in files})
    chosen = {*named[::step], *(name for name in named if name.startswith("b2-78-"))}
    given, found = tmp_path / "boxes", 3 * len(chosen)
    for folder, end in (("images", ".jpg"), ("labels", ".txt")):
        (given / "train" / folder).mkdir(parents=True)
        for file in files:
            if file.name.split(".rf.")[0] in chosen:
                name = file.with_suffix(end).name
                shutil.copy(real / "boxes/train" / folder / name, given / "train" / folder)
    shutil.copy(real / "boxes/data.yaml", given)
    monkeypatch.setenv("SKINDX_REAL", str(tmp_path))
    overrides = ["workers=1", "dedup.copies='off'"]
    settings = BuildSettings.load(Path("data/lesion-boxes.yaml"), overrides)
    out = tmp_path / "out"
    summary = build(settings, out)
    assert summary.found == found >= 96
    assert found == summary.kept + sum(summary.issues.values())
    assert summary.boxed == summary.kept
    assert summary.issues["no-class"] == 3
    originals: dict[str, set[str]] = {}
    for record in read_manifest(out):
        assert {box.label for box in record.boxes or ()} == {record.label}
        original = Path(record.source_url).name.split(".rf.")[0]
        originals.setdefault(original, set()).add(record.split)
    assert all(len(splits) == 1 for splits in originals.values())
    assert not (out / PROPOSALS).exists()


def test_the_verbs(skindx: Skindx, dataset: Path, tmp_path: Path) -> None:
    for verb in ("export", "import", "agree", "propose"):
        code, out, _ = skindx("boxes", verb, "--help")
        assert code == 0
        assert "Example: skindx boxes" in " ".join(out.split())
    code, out, _ = skindx(
        "boxes", "export", dataset, "--format", "voc", "--out", tmp_path / "voc", "--copy"
    )
    assert (code, "3 images with 3 boxes" in out) == (0, True)
    code, out, _ = skindx(
        "boxes", "export", dataset, "-f", "labelstudio", "-o", tmp_path / "t.json"
    )
    assert (code, '<Label value="mole"/>' in out) == (0, True)
    code, out, _ = skindx("boxes", "import", dataset, tmp_path / "voc", "--by", "Dr. Mole")
    assert (code, "Dr. Mole: 3 images" in out) == (0, True)
    code, out, _ = skindx("boxes", "agree", dataset, "Dr. Mole", "recipe")
    assert code == 0
    assert "1.000 [" in out  # three images that agree leave room below 1
    assert "1.000 [1.000" not in out


def test_no_file_of_the_dataset_is_replaced(dataset: Path) -> None:
    (dataset / "summary.json").touch()
    with pytest.raises(UserError, match="a file of the dataset; give"):
        export_boxes(dataset, dataset / "summary.json", "coco")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("export", "DATA", "-f", "coco", "-o", "out"), "must end in .json for"),
        (("export", "DATA", "-f", "yolo", "-o", "DATA"), "is not empty"),
        (("export", "DATA", "-f", "coco", "-o", "o.json", "--proposals"), "cannot hold proposals"),
        (("export", "DATA", "-f", "coco", "-o", "o.json", "--copy"), "remove --copy"),
        (
            ("export", "DATA", "-f", "labelstudio", "-o", "o.json", "--proposals"),
            "no proposed boxes",
        ),
        (("export", "nowhere", "-f", "coco", "-o", "o.json"), "is not a dataset"),
        (("import", "DATA", "nowhere.json", "--by", "me"), "does not exist"),
        (("import", "DATA", "DRAWN"), "add --by NAME"),
        (("import", "DATA", "DRAWN", "--by", "recipe"), "give another name with --by"),
        (("agree", "DATA"), "name two annotators"),
        (("agree", "DATA", "me", "you"), "no boxes by 'me'"),
        (("agree", "DATA", "--threshold", "2"), "it must be above 0"),
        (("propose", "DATA", "nowhere"), "does not exist"),
    ],
)
def test_mistakes_are_one_sentence(
    skindx: Skindx, dataset: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    path = drawn(tmp_path / "drawn.json", {"0.jpg": ()})
    before = sorted(tmp_path.rglob("*"))
    places = {"DATA": str(dataset), "DRAWN": str(path)}
    filled = [places.get(word, word) for word in arguments]
    code, _, err = skindx(
        "boxes", *(str(tmp_path / w) if w in ("out", "o.json") else w for w in filled)
    )
    assert (code, err.count("\n"), err.startswith("error: ")) == (2, 1, True), err
    assert said in err
    assert sorted(tmp_path.rglob("*")) == before
