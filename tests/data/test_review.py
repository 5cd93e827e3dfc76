"""A reviewer's walk: order, what is stored, undo, and one reviewer at a time."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from boxed_dataset import boxed_dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.boxes.annotations import (
    ANNOTATIONS,
    BUILT,
    Annotation,
    read_annotations,
    write_proposals,
)
from skindx.data.boxes.box_exchange import export_boxes
from skindx.data.boxes.box_formats import BoxSource, read_boxes
from skindx.data.boxes.labelstudio import read_answers
from skindx.data.layout import MANIFEST
from skindx.data.manifest import Record, read_manifest, write_manifest
from skindx.review.box_review import Review, reviewing, unseen

OLD = Box(1.0, 2.0, 30.0, 40.0, "lesion", "file")


def _sha(n: int) -> str:
    return f"{n:064x}"


def _dataset(folder: Path, count: int = 6) -> Path:
    """Write a manifest: 0 has a box, 1 none, the others nobody looked at; 3, 4, 5 proposals."""
    looked = {0: (OLD,), 1: ()}
    records = [
        Record(
            f"store/{n}.jpg", _sha(n), "0" * 16, 100, 80, "ab"[n % 2], f"g{n}", "train",
            boxes=looked.get(n), source_url=f"http://x/{n}.jpg",
        )
        for n in range(count)
    ]  # fmt: skip
    write_manifest(folder, records)
    scores = {3: (0.9, 0.2), 4: (0.1,), 5: ()}
    write_proposals(
        folder,
        [
            Annotation(
                _sha(n), "m", "", tuple(Box(0, 0, 9, 9, "lesion", "m", score) for score in row)
            )
            for n, row in scores.items()
        ],
    )
    return folder


def _tables(folder: Path) -> dict[str, object]:
    return {
        "manifest": {record.sha256: record.boxes for record in read_manifest(folder)},
        "annotations": sorted(map(str, read_annotations(folder))),
    }


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return _dataset(tmp_path / "data")


def test_least_confident_comes_first_then_what_nobody_proposed(dataset: Path) -> None:
    review = Review(dataset, "me")
    assert [int(digest, 16) for digest in review.order] == [5, 4, 3, 2, 0, 1]
    assert review.first == _sha(5)
    assert (review.looked_at, unseen(dataset)) == (2, 4)
    assert [box.score for box in review.boxes(_sha(3))] == pytest.approx([0.9, 0.2])
    assert (review.boxes(_sha(0)), review.boxes(_sha(2))) == ((OLD,), ())
    assert "confidence 0.90" in review.state(_sha(3))
    assert review.step(review.order[-1], 1) == review.order[0]
    assert review.labels == ("lesion", "a", "b")


def test_a_save_is_on_disk_at_once_and_signed(dataset: Path) -> None:
    review = Review(dataset, "me")
    review.save(_sha(2), [Box(1, 2, 3.5, 4.25, "b", "m", 0.5)])
    review.save(_sha(4), [])
    stored = {record.sha256: record.boxes for record in read_manifest(dataset)}
    (box,) = stored[_sha(2)] or ()
    assert (box.x1, box.y1, box.x2, box.y2, box.label) == (1, 2, 3.5, 4.25, "b")
    assert (box.drawn_by, box.score) == ("me", None)
    # Looked at and none is not the same as not looked at.
    assert (stored[_sha(4)], stored[_sha(5)]) == ((), None)
    assert review.looked_at == 4
    again = Review(dataset, "me")
    assert (again.first, again.looked_at) == (_sha(5), 4)


def test_what_the_dataset_was_built_with_is_kept_beside(dataset: Path) -> None:
    Review(dataset, "me").save(_sha(0), [])
    assert [(row.annotator, len(row.boxes)) for row in read_annotations(dataset)] == [
        ("me", 0),
        (BUILT, 1),
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(work=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=5))
def test_undoing_everything_leaves_what_was_there(
    tmp_path_factory: pytest.TempPathFactory, work: list[tuple[int, bool]]
) -> None:
    folder = _dataset(tmp_path_factory.mktemp("undo") / "data")
    review = Review(folder, "me")
    states = []
    for n, empty in work:
        states.append(_tables(folder))
        review.save(_sha(n), [] if empty else [OLD])
    for (n, _), before in zip(reversed(work), reversed(states), strict=True):
        assert review.undo() == _sha(n)
        assert _tables(folder) == before
    assert review.undo() is None


def test_a_strange_label_or_image_writes_nothing(dataset: Path) -> None:
    review = Review(dataset, "me")
    before = (dataset / MANIFEST).read_bytes()
    with pytest.raises(UserError, match=r"label 'evil' .*choose one of lesion, a"):
        review.save(_sha(2), [dataclasses.replace(OLD, label="evil")])
    with pytest.raises(UserError, match="no such image"):
        review.save("../../etc/passwd", [])
    assert (dataset / MANIFEST).read_bytes() == before
    assert not (dataset / ANNOTATIONS).exists()
    assert review.undo() is None


def test_one_reviewer_at_a_time_even_after_a_kill(dataset: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from skindx.review.box_review import reviewing\n"
        "with reviewing(Path(sys.argv[1]), 'other'):\n"
        "    print('at work', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, dataset], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "at work\n"
        with (
            pytest.raises(UserError, match="another review or build is at work in"),
            reviewing(dataset, "me"),
        ):
            pass
        other.kill()
    with reviewing(dataset, "me") as review:
        review.save(_sha(2), [])


def test_bad_beginnings_are_reported(tmp_path: Path, dataset: Path) -> None:
    with pytest.raises(UserError, match="does not exist"), reviewing(tmp_path / "none", "me"):
        pass
    with pytest.raises(UserError, match="needs a name"), reviewing(dataset, " "):
        pass
    with pytest.raises(UserError, match="another name"), reviewing(dataset, "recipe"):
        pass
    write_manifest(dataset, [])
    with pytest.raises(UserError, match="holds no images"), reviewing(dataset, "me"):
        pass


@pytest.mark.parametrize("kind", ["coco", "yolo", "labelstudio"])
def test_what_is_drawn_leaves_in_every_format(tmp_path: Path, kind: str) -> None:
    dataset, out = tmp_path / "data", tmp_path / ("out" if kind == "yolo" else "out.json")
    shas = [record.sha256 for record in boxed_dataset(dataset, {}, count=3)]
    review = Review(dataset, "me")
    review.save(shas[0], [Box(1, 2, 33.5, 44.25, "Nevus"), Box(50, 60, 70, 80)])
    review.save(shas[1], [])
    export_boxes(dataset, out, kind)  # type: ignore[arg-type]
    if kind == "labelstudio":
        read = {image.sha256: image for image in read_answers(out).values()}
    else:
        found = read_boxes(BoxSource(path=out, kind=kind))  # type: ignore[arg-type]
        read = {each.sha256 or Path(name).stem: each for name, each in found.items()}
    drawn = read[shas[0]]
    assert [box.label for box in drawn.boxes] == ["Nevus", "lesion"]
    corners = [value for box in drawn.boxes for value in (box.x1, box.y1, box.x2, box.y2)]
    assert corners == pytest.approx([1, 2, 33.5, 44.25, 50, 60, 70, 80], abs=1e-2)
    assert read[shas[1]].boxes == ()
    assert shas[2] not in read
