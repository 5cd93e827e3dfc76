import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_dataset import class_vectors, tiny_dataset

from skindx.core.errors import UserError
from skindx.data.decisions import Flag, read_flags, write_flags
from skindx.data.embedding_files import Embeddings
from skindx.data.manifest import Record, read_manifest
from skindx.review.label_doubts import (
    TABLE,
    review_labels,
    write_review,
)


def records_of(count: int, classes: int = 2, group: int = 2) -> list[Record]:
    return [
        Record(
            f"store/{n}.jpg", f"{n:064x}", "0" * 16, 9, 9, "abcdef"[(n // group) % classes],
            f"g{n // group}", "train", source_url=f"{n}.jpg",
        )
        for n in range(count)
    ]  # fmt: skip


def test_a_swapped_label_is_found_and_the_true_one_suggested() -> None:
    records = records_of(80, classes=4)
    embeddings = class_vectors(records)
    swapped = [replace(records[5], label="d"), replace(records[40], label="b")]
    assert [records[5].label, records[40].label] == ["c", "a"]
    review = review_labels([*records[:5], swapped[0], *records[6:40], swapped[1], *records[41:]],
                           embeddings)  # fmt: skip
    assert {(d.sha256, d.given, d.suggested) for d in review.doubts[:2]} == {
        (records[5].sha256, "d", "c"),
        (records[40].sha256, "b", "a"),
    }
    assert [doubt.rank for doubt in review.doubts] == list(range(1, len(review.doubts) + 1))
    assert review.doubts[0].flag.reason == "label"
    assert review.doubts[0].flag.score == 1 - review.doubts[0].score
    assert (review.images, review.model) == (80, "made up")


def test_the_list_is_no_longer_than_a_person_can_look_at() -> None:
    records = records_of(80, classes=4)
    embeddings = class_vectors(records, noise=5)
    review = review_labels(records, embeddings, listed=0.05)
    assert len(review.doubts) == 4 < review.suspected


def test_missing_embeddings_and_one_class_are_reported() -> None:
    records = records_of(20)
    embeddings = class_vectors(records)
    with pytest.raises(UserError, match="1 of 21 images have no embedding"):
        review_labels([*records, replace(records[0], sha256="f" * 64)], embeddings)
    with pytest.raises(UserError, match="two classes"):
        review_labels([replace(record, label="a") for record in records], embeddings)
    alone = [replace(records[0], label="z"), replace(records[1], label="z"), *records[2:]]
    with pytest.raises(UserError, match="all images of one class are in one group"):
        review_labels(alone, embeddings)


def test_without_cleanlab_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"cleanlab.*\[audit\]"):
        review_labels([], Embeddings((), np.empty((0, 1), np.float32), ""))


def test_table_and_flags_stand_in_the_dataset(tmp_path: Path) -> None:
    tiny_dataset(tmp_path)
    records = read_manifest(tmp_path)
    write_flags(tmp_path, [Flag("aa", "face", 0.5), Flag("bb", "label", 0.5)], ["face", "label"])
    review = review_labels(records, class_vectors(records, noise=2), listed=0.2)
    write_review(tmp_path, review)
    rows = list(csv.DictReader(io.StringIO((tmp_path / TABLE).read_text())))
    assert [row["sha256"] for row in rows] == [doubt.sha256 for doubt in review.doubts]
    assert [row["source_url"] for row in rows] == [doubt.source_url for doubt in review.doubts]
    assert float(rows[0]["score"]) == review.doubts[0].score
    flags = read_flags(tmp_path)
    assert Flag("aa", "face", 0.5) in flags
    assert {f.sha256 for f in flags if f.reason == "label"} == {d.sha256 for d in review.doubts}
    assert read_manifest(tmp_path) == records, "nothing is removed"
