import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_dataset import class_vectors, tiny_dataset, with_embeddings

from skindx.core.errors import UserError
from skindx.data.decisions import Flag, read_flags, write_flags
from skindx.data.image_tables import Embeddings
from skindx.data.manifest import Record, read_manifest
from skindx.review.label_doubts import (
    TABLE,
    Recovery,
    plant_errors,
    review_labels,
    siblings_by_chance,
    siblings_in_train,
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


def test_planted_errors_are_found_again_and_counted() -> None:
    records = records_of(200, classes=4)
    halves = plant_errors(records, class_vectors(records, noise=0.1), 0.05, seed=1)
    assert [(share.looked, share.planted) for share in halves] == [(5, 10), (10, 10), (20, 10)]
    assert halves[1].recovered >= 9
    assert plant_errors(records, class_vectors(records, noise=0.1), 0.05, seed=1) == halves
    alone = records_of(200, classes=4, group=1)  # a copy of another label would tell
    blind = plant_errors(alone, class_vectors(alone, noise=50), 0.05, seed=1)
    assert blind[1].recovered <= 4
    recovery = Recovery(looked=20, recovered=5, planted=10, images=200)
    assert (recovery.precision, recovery.recall, recovery.by_chance) == (0.25, 0.5, 0.05)


def test_missing_embeddings_and_one_class_are_reported() -> None:
    records = records_of(20)
    embeddings = class_vectors(records)
    with pytest.raises(UserError, match="1 of 21 images have no embedding"):
        review_labels([*records, replace(records[0], sha256="f" * 64)], embeddings)
    with pytest.raises(UserError, match="two classes"):
        review_labels([replace(record, label="a") for record in records], embeddings)
    alone = [replace(records[0], label="z"), replace(records[1], label="z"), *records[2:]]
    with pytest.raises(UserError, match="all its images in one group"):
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


def test_leakage_by_hand() -> None:
    def split(groups: str, splits: str) -> list[Record]:
        names = {"r": "train", "e": "test"}
        return [
            replace(records_of(1)[0], group=group, split=names[side])
            for group, side in zip(groups, splits, strict=True)
        ]

    assert siblings_in_train(split("aabb", "rree")) == 0
    assert siblings_in_train(split("aabb", "rere")) == 1
    assert siblings_in_train(split("aabc", "reee")) == 1 / 3
    assert siblings_in_train(split("ab", "rr")) == 0
    # One pair: a random split that tests one of four images meets its sibling in train always.
    assert siblings_by_chance(split("aaaa", "rrre")) == 1
    assert siblings_by_chance(split("abcd", "rrre")) == 0


def test_the_leakage_by_chance_of_pairs_is_that_of_the_hypergeometric(tmp_path: Path) -> None:
    records = with_embeddings(tmp_path, 40)
    train = sum(record.split == "train" for record in records)
    assert siblings_in_train(records) == 0
    assert abs(siblings_by_chance(records) - train / 39) < 0.12


@pytest.mark.real
def test_planted_errors_in_real_images(real: Path) -> None:
    """Colour alone tells dermoscopic classes a little: the ranking must beat chance by far."""
    from skindx.imaging.decode import decode

    records, vectors = [], []
    for number, folder in enumerate(sorted((real / "isic9" / "Train").iterdir())[1:5]):
        for n, file in enumerate(sorted(folder.glob("*.jpg"))[:60]):
            pixels = decode(file.read_bytes()).reshape(-1, 3).astype(float) / 255
            sha256 = f"{number}{n:063x}"
            record = records_of(1)[0]
            records.append(replace(record, sha256=sha256, label=folder.name, group=sha256))
            spread = np.concatenate([np.quantile(pixels, q, axis=0) for q in (0.02, 0.1, 0.5, 0.9)])
            vectors.append(spread - 0.5)
    made = np.array(vectors, np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    embeddings = Embeddings(tuple(record.sha256 for record in records), made, "colours")
    found = [plant_errors(records, embeddings, 0.05, seed)[2] for seed in range(3)]
    assert sum(trial.recall for trial in found) / 3 > 2 * 2 * found[0].by_chance
