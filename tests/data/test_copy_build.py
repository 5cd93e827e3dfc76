"""Copies that hashes miss in a build: grouped, reported across frozen splits, answered, removed."""

import json
import shutil
from collections import defaultdict
from pathlib import Path

import cv2
import numpy as np
import pytest
from answering import write_answer
from numpy.typing import NDArray
from paint_images import save

from skindx.core.errors import UserError
from skindx.data.build.build_dataset import build, load_build_settings
from skindx.data.copies.describe import DescriptionLibrary
from skindx.data.copies.verified import read_answers, read_copies
from skindx.data.layout import COPIES
from skindx.data.manifest import Record, read_image, read_issues, read_manifest
from skindx.data.removal.takedown import carry_out, plan
from skindx.data.summary import BuildSummary
from skindx.data.synthetic.painter import CLASSES, paint
from skindx.review.dataset_review import DatasetReview
from skindx.ui.review import draw_pair

COPIED = {"acne": (0, 1), "wart": (0, 1)}
"""Images of each class that have a crop; acne's first has a second one."""


def crop(image_HW3: NDArray[np.uint8], share: float) -> NDArray[np.uint8]:
    height, width = image_HW3.shape[:2]
    y, x = round(height * share / 2), round(width * share / 2)
    return image_HW3[y : height - y, x : width - x]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("copies") / "source"
    for shift, label in enumerate(("acne", "wart")):
        for number in range(8):
            image_HW3 = painted(100 * shift + number)
            save(root / label / f"{number}.jpg", image_HW3, quality=92)
            if number in COPIED[label]:
                save(root / label / f"{number}-crop.jpg", crop(image_HW3, 0.2), quality=92)
    bordered = cv2.copyMakeBorder(painted(0), 24, 24, 24, 24, cv2.BORDER_CONSTANT, value=(255,) * 3)
    save(root / "acne" / "0-border.jpg", bordered, quality=92)
    return root


def painted(seed: int) -> NDArray[np.uint8]:
    return paint(CLASSES[seed % len(CLASSES)], seed).pixels


def make(source: Path, out: Path, *sets: str, **options: bool) -> BuildSummary:
    return build(load_build_settings(source, ["workers=1", *sets]), out, **options)


def families(out: Path) -> list[set[str]]:
    groups: dict[str, set[str]] = defaultdict(set)
    for record in read_manifest(out):
        groups[record.group].add(Path(record.source_url).as_posix())
    return sorted((names for names in groups.values() if len(names) > 1), key=min)


FAMILIES = [
    {"acne/0.jpg", "acne/0-crop.jpg", "acne/0-border.jpg"},
    {"acne/1.jpg", "acne/1-crop.jpg"},
    {"wart/0.jpg", "wart/0-crop.jpg"},
    {"wart/1.jpg", "wart/1-crop.jpg"},
]


@pytest.fixture(scope="module")
def dataset(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BuildSummary]:
    """Return a dataset; do not change it."""
    out = tmp_path_factory.mktemp("grouped") / "data"
    return out, make(source, out)


@pytest.fixture
def own(dataset: tuple[Path, BuildSummary], tmp_path: Path) -> Path:
    """Return the same dataset, to be changed."""
    return Path(shutil.copytree(dataset[0], tmp_path / "data"))


def test_copies_are_one_group_and_no_image_is_lost(dataset: tuple[Path, BuildSummary]) -> None:
    out, summary = dataset
    assert sorted(families(out), key=min) == sorted(FAMILIES, key=min)
    assert summary.kept == summary.found == 21
    assert (summary.copies.families, summary.copies.images) == (4, 9)
    assert summary.copies.torn == 0
    (said,) = [line for line in summary.lines() if line.startswith("Copies that hashes miss")]
    assert "4 families of 9 images are one group each" in said
    assert any(line.startswith("Of planted copies this search finds") for line in summary.lines())
    assert json.loads((out / "summary.json").read_text())["copies"]["families"] == 4
    pairs = {row.pair for row in read_copies(out / COPIES)}
    shas = {record.source_url: record.sha256 for record in read_manifest(out)}
    assert tuple(sorted((shas["wart/0.jpg"], shas["wart/0-crop.jpg"]))) in pairs


def test_dropped_copies_leave_the_best_of_each_family(source: Path, tmp_path: Path) -> None:
    summary = make(source, tmp_path / "data", "dedup.copies=drop")
    assert families(tmp_path / "data") == []
    assert summary.copies.dropped == 5
    gone = {issue.url: issue for issue in read_issues(tmp_path / "data")}
    assert len(gone) == 5
    assert all(issue.reason == "near-duplicate" for issue in gone.values())


def test_without_the_search_nothing_is_joined_or_written(source: Path, own: Path) -> None:
    assert (own / COPIES).exists()
    summary = make(source, own, "dedup.copies=off")
    assert not (own / COPIES).exists()
    assert not any("hashes miss" in line for line in summary.lines())
    # The groups that the first build made keep their images together.
    assert summary.copies.families == 0


def test_frozen_splits_keep_theirs_until_somebody_asks(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    # Without the search the copies fall where they fall: find a seed that tears a family.
    for seed in range(20):
        make(source, out, "dedup.copies=off", f"seed={seed}", resplit=True)
        before = {record.sha256: record for record in read_manifest(out)}
        torn = [names for names in FAMILIES if len(splits_of(before, names)) > 1]
        if torn:
            break
    assert torn
    summary = make(source, out, f"seed={seed}")
    assert {r.sha256: r.split for r in read_manifest(out)} == {
        sha256: record.split for sha256, record in before.items()
    }
    assert summary.copies.torn == len(torn)
    (said,) = [line for line in summary.lines() if "divided between splits" in line]
    assert "--resplit" in said
    assert "--join-copies" in said
    assert not any("no group is in two splits" in line for line in summary.lines())
    gone = sum(summary.copies.would_leave.values())

    joined = make(source, out, f"seed={seed}", join_copies=True)
    assert joined.copies.torn == 0
    assert joined.issues["split-conflict"] == gone
    left = {record.sha256: record for record in read_manifest(out)}
    assert all(len(splits_of(left, names)) == 1 for names in FAMILIES)
    assert all(left[sha256].split == before[sha256].split for sha256 in left)

    resplit = make(source, out, f"seed={seed}", resplit=True)
    assert resplit.kept == 21
    assert resplit.copies.torn == 0


def splits_of(records: dict[str, Record], names: set[str]) -> set[str]:
    return {record.split for record in records.values() if record.source_url in names}


def test_what_a_person_says_goes_before_the_evidence(source: Path, own: Path) -> None:
    out = own
    shas = {record.source_url: record.sha256 for record in read_manifest(out)}
    write_answer(out, "different", shas["wart/0.jpg"], shas["wart/0-crop.jpg"])
    write_answer(out, "same", shas["wart/5.jpg"], shas["wart/6.jpg"])
    summary = make(source, out, resplit=True)
    assert {"wart/0.jpg", "wart/0-crop.jpg"} not in families(out)
    assert {"wart/5.jpg", "wart/6.jpg"} in families(out)
    assert (summary.copies.by_people, summary.copies.refused) == (1, 1)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("0,1,same", "is not a SHA-256"),
        (f"{'a' * 64},{'a' * 64},same", "both images of the pair"),
        (f"{'a' * 64},{'b' * 64},maybe", "write same or different"),
    ],
)
def test_an_answer_that_cannot_be_understood_is_named(tmp_path: Path, row: str, said: str) -> None:
    (tmp_path / "copy_answers.csv").write_text(f"sha256_a,sha256_b,verdict\n{row}\n")
    with pytest.raises(UserError, match=f"line 2.*{said}"):
        read_answers(tmp_path)


def test_a_removal_takes_verified_copies_along(own: Path) -> None:
    out = own
    family = {r.source_url: r.sha256 for r in read_manifest(out) if r.source_url in FAMILIES[0]}
    planned = plan([out], sha256s=[family["acne/0-crop.jpg"]])
    assert {image.known.sha256 for image in planned.going} == set(family.values())
    carry_out(planned)
    assert not {record.sha256 for record in read_manifest(out)} & set(family.values())
    assert not [row for row in read_copies(out / COPIES) if set(row.pair) & set(family.values())]
    assert not any(sha256 in DescriptionLibrary(out) for sha256 in family.values())
    for sha256 in family.values():
        assert not list(out.rglob(f"*{sha256}*"))


def test_every_pair_of_a_build_is_drawn_for_a_person(
    dataset: tuple[Path, BuildSummary],
) -> None:
    out, _ = dataset
    review = DatasetReview(out)
    assert review.pairs.keys() == {row.pair for row in read_copies(out / COPIES)}
    for pair, row in review.pairs.items():
        first_HW3, second_HW3 = (read_image(out, review.records[sha]) for sha in pair)
        drawn_HW3 = draw_pair(first_HW3, second_HW3, row.transform, 120)
        assert drawn_HW3.shape[1] > 2 * 120
    assert {item.key for item in review.items if item.reasons == ("copy",)} == review.pairs.keys()


def test_a_chain_over_a_whole_class_stays_in_train_and_loses_no_image(
    source: Path, own: Path
) -> None:
    shas = {record.source_url: record.sha256 for record in read_manifest(own)}
    for number in range(7):
        one, other = shas[f"wart/{number}.jpg"], shas[f"wart/{number + 1}.jpg"]
        write_answer(own, "same", one, other)
    summary = make(source, own, resplit=True)
    assert summary.kept == 21
    assert summary.splits["wart"] == {"train": 10, "val": 0, "calibration": 0, "test": 0}
    (chain,) = [line for line in summary.notes if line.startswith("wart: a chain of copies")]
    assert "10 of its 10 images into one group, which stays whole in train" in chain
    assert "the weakest link is" in chain
    (few,) = [line for line in summary.notes if "too few for every split" in line]
    assert few.startswith("wart: joining copies leaves 1 of its 10 groups")
