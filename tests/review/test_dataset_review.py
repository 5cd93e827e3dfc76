"""The review of a dataset: order, what settles what, boxes, two reviewers, what a build obeys."""

import csv
from pathlib import Path

import pytest
from boxed_dataset import boxed_dataset
from copies_of_three import three_images
from flagged_images import flagged_images
from gallery_fakes import gallery_dataset
from paint_images import paint, save

from skindx.cli.boxes import review as review_verb
from skindx.core.atomic_files import only_writer
from skindx.core.errors import UserError
from skindx.data.answer_log import DECISIONS, AnsweredMeanwhileError, answer_now
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
from skindx.data.build.build_dataset import build, load_build_settings
from skindx.data.decisions import Flag, undecided, write_flags
from skindx.data.layout import MANIFEST
from skindx.data.manifest import Record, read_issues, read_manifest
from skindx.review.box_review import unseen
from skindx.review.dataset_review import DatasetReview, exported, summary

OLD = Box(1.0, 2.0, 30.0, 40.0, "lesion", "file")


def place(review: DatasetReview, *sha256s: str) -> int:
    return next(at for at, item in enumerate(review.items) if item.key == sha256s)


def answer(
    review: DatasetReview, verdict: str, *sha256s: str, by: str = "me", **about: object
) -> None:
    at = place(review, *sha256s)
    revision = review.state(at)["answers"].get(_question(verdict), {}).get("revision", 0)
    review.answer(at, verdict, by, revision, **about)  # type: ignore[arg-type]


def _question(verdict: str) -> str:
    from skindx.data.answer_log import QUESTION_OF

    return QUESTION_OF[verdict]


def undo(review: DatasetReview, question: str, *sha256s: str) -> None:
    at = place(review, *sha256s)
    revision = review.state(at)["answers"][question]["revision"]
    review.undo(at, question, revision - 1, "me", revision)  # type: ignore[arg-type]


def test_what_waits_comes_first_the_most_urgent_reason_first(tmp_path: Path) -> None:
    shas = flagged_images(tmp_path)
    (face,) = {item.sha256 for item in read_manifest(tmp_path)} - set(shas)
    review = DatasetReview(tmp_path)
    # The least certain of those that may show no skin, and last what was taken out.
    assert [item.key[0] for item in review.items] == [face, shas[1], shas[2], shas[0]]
    assert [item.kept for item in review.items] == [True, True, False, True]
    assert review.detail(2)["why"] == [["no skin", "flat colours"]]
    assert summary(review).startswith("0 of 4 items are answered; waiting: 2 no skin, 1 ")
    whole = review.whole()
    assert [row[3] for row in whole["items"]] == [row[2] for row in whole["items"]]
    assert ["<b>wart", "<b>wart"] in whole["labels"]


def test_what_a_build_left_out_is_shown_with_its_reason_and_asks_nothing(tmp_path: Path) -> None:
    review = DatasetReview(gallery_dataset(tmp_path))
    issues = {issue.reason: issue for issue in read_issues(tmp_path)}
    copy = issues["near-duplicate"]
    at = place(review, copy.sha256)
    item, shown = review.items[at], review.detail(at)
    assert (item.kept, item.reasons, shown["waiting"]) == (False, ("left-out",), ())
    assert shown["why"] == [["near-duplicate", "shows the same"]]
    assert ["copy of", copy.kept_sha256] in shown["facts"]
    assert not review.asks(item)
    with pytest.raises(UserError, match="change the recipe"):
        answer(review, "remove", copy.sha256)
    answer(review, "note", copy.sha256, note="seen")
    conflict = review.items[place(review, issues["conflicting-duplicate"].sha256)]
    assert set(conflict.reasons) == {"text", "left-out"}
    # Bytes that no decoder liked are not tried again.
    assert issues["damaged"].sha256 not in {item.key[0] for item in review.items}


def test_what_settles_what(tmp_path: Path) -> None:
    shas = flagged_images(tmp_path)
    write_flags(
        tmp_path, [Flag(shas[0], "label", 0.9), Flag(shas[0], "face", 0.9)], ["label", "face"]
    )
    review = DatasetReview(tmp_path)
    at = place(review, shas[0])
    assert set(review.state(at)["waiting"]) == {"off-topic", "label", "face"}
    answer(review, "skin", shas[0])
    answer(review, "relabel", shas[0], label="acne")
    assert review.state(at)["waiting"] == ("face",)
    assert undecided(tmp_path, ["face", "label", "off-topic"]).keys() == {shas[0]}
    answer(review, "note", shas[0], note="=HYPERLINK(1)\nask her")
    answer(review, "withhold", shas[0])
    assert review.state(at)["waiting"] == ()
    assert undecided(tmp_path, ["face", "label", "off-topic"]) == {}
    undo(review, "image", shas[0])
    assert DatasetReview(tmp_path).state(at)["waiting"] == ("face",)
    rows = [row for row in exported(tmp_path) if row[0] == shas[0]]
    assert {row[7] for row in rows} == {"skin", "relabel", "note"}
    assert "'=HYPERLINK(1) ask her" in {row[-1] for row in rows}


@pytest.mark.parametrize(
    ("verdict", "about", "message"),
    [
        ("same", {}, "is unknown; reload the page"),
        ("perhaps", {}, "is unknown; reload the page"),
        ("undone", {}, "is unknown; reload the page"),
        ("relabel", {"label": "evil"}, "'evil' is no class of this dataset"),
        ("keep", {"by": " "}, "the name of the reviewer"),
        ("keep", {"by": "recipe"}, "another name"),
        ("box right", {"boxes": [Box(0, 0, 9, 9, "evil")]}, "no label 'evil'; choose"),
        ("box right", {"boxes": [Box(500, 0, 900, 9)]}, "empty or outside"),
    ],
)
def test_a_wrong_answer_writes_nothing(
    tmp_path: Path, verdict: str, about: dict[str, object], message: str
) -> None:
    boxed_dataset(tmp_path, {}, count=2)
    review, before = DatasetReview(tmp_path), (tmp_path / MANIFEST).read_bytes()
    by = str(about.pop("by", "me"))
    with pytest.raises(UserError, match=message):
        review.answer(0, verdict, by, 0, **about)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no longer in the dataset"):
        review.answer(99, "keep", "me", 0)
    assert (tmp_path / MANIFEST).read_bytes() == before
    assert not (tmp_path / DECISIONS).exists()


def test_pairs_wait_where_the_build_was_unsure(tmp_path: Path) -> None:
    unsure, sure = three_images(tmp_path)
    review = DatasetReview(tmp_path)
    pairs = [item for item in review.items if len(item.key) > 1]
    assert [item.key for item in pairs] == [unsure, sure]
    assert [review.waiting(item) for item in pairs] == [("copy",), ()]
    answer(review, "different", *unsure)
    answer(review, "same", *sure)
    answer(review, "note", *sure, note="the same spot, a year later")
    again = DatasetReview(tmp_path)
    assert {pair: one.verdict for pair, one in again.log.answers("copy").items()} == {
        unsure: "different", sure: "same",
    }  # fmt: skip
    with pytest.raises(UserError, match="is unknown; reload the page"):
        answer(again, "keep", *sure)


def test_copies_of_several_classes_wait_as_doubtful_labels(tmp_path: Path) -> None:
    _, sure = three_images(tmp_path)
    review = DatasetReview(tmp_path)
    waiting = {item.key: review.waiting(item) for item in review.items if review.waiting(item)}
    assert {key: waiting.get((key,)) for key in sure} == dict.fromkeys(sure, ("label",))
    of = {key: review.records[key].label for key in sure}
    for key, other in (sure, sure[::-1]):
        why = f"its copy {other[:12]} is called {of[other]}"
        assert ["doubtful label", why] in review.detail(place(review, key))["why"]
    answer(review, "relabel", sure[0], label=of[sure[1]])
    answer(review, "keep", sure[1])
    assert not any("label" in review.waiting(item) for item in DatasetReview(tmp_path).items)
    undo(review, "label", sure[0])
    answer(review, "different", *sure)
    assert not any("label" in item.reasons for item in DatasetReview(tmp_path).items)


@pytest.fixture
def proposed(tmp_path: Path) -> tuple[Path, list[str]]:
    """Return a dataset: 0 has a box, 1 none, nobody looked at the others; 3, 4, 5 proposals."""
    folder = tmp_path / "data"
    records = boxed_dataset(folder, {0: (OLD,), 1: ()}, count=6)
    shas = [record.sha256 for record in records]
    scores = {3: (0.9, 0.2), 4: (0.1,), 5: ()}
    write_proposals(
        folder,
        [
            Annotation(shas[n], "m", "", tuple(Box(0, 0, 9, 9, "lesion", "m", s) for s in row))
            for n, row in scores.items()
        ],
    )
    return folder, shas


def boxes(folder: Path) -> dict[str, tuple[Box, ...] | None]:
    return {record.sha256: record.boxes for record in read_manifest(folder)}


def test_boxes_are_decided_on_disk_at_once_and_signed(proposed: tuple[Path, list[str]]) -> None:
    folder, shas = proposed
    review = DatasetReview(folder)
    waiting = [item.key[0] for item in review.items if review.waiting(item)]
    assert waiting == [shas[5], shas[4], shas[3]], "the least confident comes first"
    assert review.detail(place(review, shas[3]))["boxes_are"] == "proposed"
    answer(review, "box right", shas[3], boxes=[Box(1, 2, 3.5, 4.25, "Nevus")])
    answer(review, "box right", shas[5])
    answer(review, "box wrong", shas[4])
    stored = boxes(folder)
    (box,) = stored[shas[3]] or ()
    assert (box.x1, box.y1, box.x2, box.y2, box.label) == (1, 2, 3.5, 4.25, "Nevus")
    assert (box.drawn_by, box.score) == ("me", None)
    # Looked at and none is not the same as not looked at.
    assert (stored[shas[5]], stored[shas[4]], stored[shas[2]]) == ((), None, None)
    assert unseen(folder) == 2
    assert not any(review.waiting(item) for item in DatasetReview(folder).items)
    # What the dataset was built with is kept beside.
    answer(review, "box right", shas[0])
    rows = [(row.annotator, len(row.boxes)) for row in read_annotations(folder)]
    assert rows.count((BUILT, 1)) == 1


def test_undoing_gives_every_box_back(proposed: tuple[Path, list[str]]) -> None:
    folder, shas = proposed
    review, before = DatasetReview(folder), boxes(folder)
    for sha256, verdict in ((shas[0], "box wrong"), (shas[0], "box right"), (shas[3], "box right")):
        answer(review, verdict, sha256, boxes=[OLD])
    assert boxes(folder)[shas[0]] is not None
    undo(review, "box", shas[0])
    assert boxes(folder)[shas[0]] is None
    at = place(review, shas[0])
    review.undo(at, "box", 0, "me", 3)
    undo(review, "box", shas[3])
    assert boxes(folder) == before
    assert read_annotations(folder) == []
    with pytest.raises(UserError, match="decided before this page was"):
        undo(review, "box", shas[3])


def test_a_build_at_work_refuses_boxes_and_nothing_else(proposed: tuple[Path, list[str]]) -> None:
    folder, shas = proposed
    review = DatasetReview(folder)
    with only_writer(folder):
        with pytest.raises(UserError, match="another review or build is running in"):
            answer(review, "box right", shas[3])
        answer(review, "keep", shas[3])
    assert not (folder / ANNOTATIONS).exists()


def test_two_reviewers_see_each_other(proposed: tuple[Path, list[str]]) -> None:
    folder, shas = proposed
    ours, theirs = DatasetReview(folder), DatasetReview(folder)
    cursor = ours.whole()["cursor"]
    answer(theirs, "box right", shas[3], by="Dr. B", boxes=[OLD])
    answer(theirs, "remove", shas[2], by="Dr. B")
    told = ours.changes(cursor)
    assert {change["at"] for change in told["changes"]} == {
        place(ours, shas[3]),
        place(ours, shas[2]),
    }
    assert ours.records[shas[3]].boxes is not None
    with pytest.raises(AnsweredMeanwhileError, match=r"Dr\. B has answered 'remove'"):
        ours.answer(place(ours, shas[2]), "keep", "Dr. A", 0)
    answer(ours, "box right", shas[4], boxes=[OLD])
    assert {row.annotator for row in read_annotations(folder)} == {"me", "Dr. B"}
    assert ours.changes(told["cursor"])["changes"][0]["at"] == place(ours, shas[4])


@pytest.mark.parametrize("kind", ["coco", "yolo", "labelstudio"])
def test_what_is_drawn_leaves_in_every_format(tmp_path: Path, kind: str) -> None:
    dataset, out = tmp_path / "data", tmp_path / ("out" if kind == "yolo" else "out.json")
    shas = [record.sha256 for record in boxed_dataset(dataset, {}, count=3)]
    review = DatasetReview(dataset)
    answer(
        review, "box right", shas[0], boxes=[Box(1, 2, 33.5, 44.25, "Nevus"), Box(50, 60, 70, 80)]
    )
    answer(review, "box right", shas[1])
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


def test_the_next_build_obeys_every_answer(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    for number in range(12):
        save(source / ("acne", "wart")[number % 2] / f"{number}.jpg", paint(number))
    settings = load_build_settings(source, ["dedup.copies=off"])
    build(settings, out)
    shas = {record.source_url.rpartition("/")[2]: record.sha256 for record in read_manifest(out)}
    review = DatasetReview(out)
    answer(review, "relabel", shas["0.jpg"], label="wart")
    answer(review, "remove", shas["1.jpg"])
    answer(review, "box right", shas["2.jpg"], boxes=[OLD])
    answer(review, "box right", shas["3.jpg"], boxes=[OLD])
    answer(review, "box wrong", shas["3.jpg"], by="Dr. B")
    summary_of_build = build(settings, out)
    records: dict[str, Record] = {record.sha256: record for record in read_manifest(out)}
    assert records[shas["0.jpg"]].label == "wart"
    assert shas["1.jpg"] not in records
    assert [(one.sha256, one.reason) for one in read_issues(out)] == [(shas["1.jpg"], "reviewed")]
    assert records[shas["2.jpg"]].boxes is not None
    assert records[shas["3.jpg"]].boxes is None
    review = DatasetReview(out)
    review.log.add((shas["4.jpg"],), answer_now("relabel", "me", label="gone"))
    summary_of_build = build(settings, out)
    assert any("relabelled images as gone" in note for note in summary_of_build.notes)
    assert {record.label for record in read_manifest(out)} == {"acne", "wart"}


def test_an_export_has_a_row_an_answer(tmp_path: Path) -> None:
    unsure, _ = three_images(tmp_path / "data")
    review = DatasetReview(tmp_path / "data")
    answer(review, "same", *unsure, by="@me")
    review.log.add(("9" * 64,), answer_now("keep", "me"))  # of an image that is gone
    review_verb(tmp_path / "data", export=tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [(row["verdict"], row["by"]) for row in rows] == [("keep", "me"), ("same", "'@me")]
    assert (rows[1]["sha256"], rows[1]["sha256_b"], rows[1]["reasons"]) == (*unsure, "copy")
    for wrong in (tmp_path, tmp_path / "data" / DECISIONS):
        with pytest.raises(UserError, match="a CSV file outside"):
            review_verb(tmp_path / "data", export=wrong)
