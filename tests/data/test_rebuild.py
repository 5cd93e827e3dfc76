"""A dataset that is built again: splits stay, the store holds what is named."""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from paint_images import paint, save
from rich.console import Console

from skindx.core.errors import UserError
from skindx.data.build.build_dataset import build, load_build_settings
from skindx.data.manifest import Record, read_issues, read_manifest
from skindx.data.summary import print_summary


def fill(root: Path, numbers: range) -> None:
    for number in numbers:
        for shift, label in enumerate(("acne", "wart")):
            save(root / label / f"{number}.jpg", paint(1000 * shift + number))


def make(root: Path, out: Path, *sets: str, resplit: bool = False) -> dict[str, Record]:
    build(load_build_settings(root, ["workers=1", *sets]), out, resplit=resplit)
    return {record.source_url: record for record in read_manifest(out)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "pictures", range(10))
    return tmp_path / "pictures"


def test_splits_and_folds_stay_through_additions_and_removals(root: Path, tmp_path: Path) -> None:
    first = make(root, tmp_path / "out")
    assert {record.fold for record in first.values()} == {None, 0, 1, 2, 3, 4}
    for gone in ("acne/3.jpg", "wart/7.jpg"):
        (root / gone).rename(tmp_path / gone.replace("/", " "))
    fill(root, range(20, 26))
    second = make(root, tmp_path / "out", "seed=9")
    (tmp_path / "acne 3.jpg").rename(root / "acne" / "3.jpg")
    third = make(root, tmp_path / "out", "seed=4", "split.train=0.3", "split.test=0.5")
    assert "acne/3.jpg" not in second
    for old, new in ((first, second), (first, third), (second, third)):
        for url in old.keys() & new.keys():
            assert (old[url].split, old[url].fold) == (new[url].split, new[url].fold)
    resplit = make(root, tmp_path / "out", "seed=4", resplit=True)
    assert any(resplit[url].split != third[url].split for url in third)


def test_another_folder_keeps_the_splits_that_freeze_names(root: Path, tmp_path: Path) -> None:
    first = make(root, tmp_path / "old")
    fill(root, range(20, 24))
    for frozen in (tmp_path / "old", tmp_path / "old" / "splits.csv"):
        out = tmp_path / f"new {frozen.name}"
        later = make(root, out, "seed=5", f"split.frozen={json.dumps(str(frozen))}")
        assert {url: later[url].split for url in first} == {
            url: record.split for url, record in first.items()
        }
    with pytest.raises(UserError, match="nowhere does not exist"):
        make(root, tmp_path / "another", "split.frozen=nowhere")
    assert not (tmp_path / "another").exists()


def test_a_better_copy_takes_the_place_of_the_old_one_in_its_split(
    root: Path, tmp_path: Path
) -> None:
    first = make(root, tmp_path / "out")
    old = next(record for record in first.values() if record.split == "test")
    number = int(Path(old.source_url).stem) + (1000 if old.label == "wart" else 0)
    large = paint(number, 240, 192)
    save(root / old.label / "large.jpg", np.ascontiguousarray(large[:, ::-1]))
    second = make(root, tmp_path / "out")
    assert old.source_url not in second
    assert second[f"{old.label}/large.jpg"].split == "test"


def test_a_lost_manifest_loses_no_split(root: Path, tmp_path: Path) -> None:
    first = make(root, tmp_path / "out")
    damaged = tmp_path / "out" / "manifest.parquet"
    damaged.write_bytes(b"PAR1")
    with pytest.raises(UserError, match="delete it and run `skindx build` again"):
        read_manifest(tmp_path / "out")
    damaged.unlink()
    second = make(root, tmp_path / "out", "seed=7", "split.train=0.3", "split.test=0.5")
    assert {url: row.split for url, row in second.items()} == {
        url: row.split for url, row in first.items()
    }


def test_without_numba_a_build_writes_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(UserError, match=r"install .*\[data\]'"):
        make(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_person_removes_stays_out_and_no_copy_steps_in(root: Path, tmp_path: Path) -> None:
    save(root / "acne" / "3 again.jpg", np.ascontiguousarray(paint(3)[:, ::-1]))
    out = tmp_path / "out"
    first = make(root, out)
    (copy,) = (issue for issue in read_issues(out) if issue.reason == "near-duplicate")
    gone = {first["wart/7.jpg"].sha256: "remove", copy.sha256: "remove"}
    gone[first["wart/8.jpg"].sha256] = "withhold"
    lines = "".join(f"{sha256},{verdict}\n" for sha256, verdict in gone.items())
    (out / "decisions.csv").write_text(f"sha256,verdict\n{lines}")
    second = make(root, out)
    (kept,) = (url for url in first if first[url].sha256 == copy.kept_sha256)
    assert first.keys() - second.keys() == {"wart/7.jpg", kept}
    assert second.keys() <= first.keys()
    reported = {issue.url: issue.detail for issue in read_issues(out) if issue.reason == "reviewed"}
    assert reported.keys() == {"wart/7.jpg", kept}
    assert copy.sha256 in reported[kept]


def test_a_decision_that_cannot_be_read_stops_the_build_before_it_starts(
    root: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = make(root, out)
    save(root / "acne" / "new.jpg", paint(55))
    (out / "decisions.csv").write_text("sha256,verdict\nabc123,keep\n")
    with pytest.raises(UserError, match="line 2: 'abc123' is not a SHA-256"):
        make(root, out)
    assert len(list((out / "store").glob("*/*"))) == len(first)


def test_an_image_that_ties_train_and_test_takes_the_test_image_out(
    root: Path, tmp_path: Path
) -> None:
    table = tmp_path / "lesions.csv"
    rows = [f"{n},L{n}" for n in range(10)]
    table.write_text("key,lesion\n" + "\n".join(rows) + "\n")
    sets = (f"groups.tables=[{{path: {table}, key_column: key, group_column: lesion}}]",)
    for image in (root / "wart").iterdir():
        image.rename(image.with_name(f"w{image.name}"))
    first = make(root, tmp_path / "out", *sets)
    by_split = defaultdict(list)
    for record in first.values():
        if record.label == "acne":
            by_split[record.split].append(Path(record.source_url).stem)
    train, test = by_split["train"][0], by_split["test"][0]
    before = {record.sha256: record for record in read_manifest(tmp_path / "out")}
    # The table learns that both are one lesion.
    rows[int(test)] = f"{test},L{train}"
    table.write_text("key,lesion\n" + "\n".join(rows) + "\n")
    second = make(root, tmp_path / "out", *sets)
    assert f"acne/{test}.jpg" not in second
    (conflict,) = [
        issue for issue in read_issues(tmp_path / "out") if issue.reason == "split-conflict"
    ]
    assert conflict.url == f"acne/{test}.jpg"
    assert conflict.detail == "it was in test, and what it is now seen to belong with is in train"
    after = {record.sha256: record.split for record in read_manifest(tmp_path / "out")}
    assert len(before) == len(after) + 1
    assert all(before[sha256].split == split for sha256, split in after.items())


def test_the_store_holds_only_what_a_row_names(root: Path, tmp_path: Path) -> None:
    first = make(root, tmp_path / "out")
    store = tmp_path / "out" / "store"
    (store / "ab").mkdir(exist_ok=True)
    (store / "ab" / "abcd.jpg.tmp-killed").write_text("half")
    (root / "acne" / "3.jpg").unlink()
    save(root / "acne" / "small.jpg", paint(77, 40, 40))
    make(root, tmp_path / "out")
    left = {file.stem for file in store.glob("*/*")}
    assert first["acne/3.jpg"].sha256 not in left
    dropped = {issue.sha256 for issue in read_issues(tmp_path / "out")}
    assert len(dropped) == 1
    assert left == {record.sha256 for record in read_manifest(tmp_path / "out")} | dropped


def test_the_summary_tells_of_the_folds(root: Path, tmp_path: Path) -> None:
    summary = build(load_build_settings(root, ["workers=1"]), tmp_path / "out")
    reported = Console(record=True, width=200)
    print_summary(summary, reported)
    assert "5 folds of train and val: " in reported.export_text()
    counts = Counter(record.split for record in read_manifest(tmp_path / "out"))
    assert sum(summary.folds) == counts["train"] + counts["val"]
    none = build(load_build_settings(root, ["workers=1", "split.folds=0"]), tmp_path / "none")
    assert none.folds == ()
    assert {record.fold for record in read_manifest(tmp_path / "none")} == {None}


def test_a_class_without_train_images_is_reported(root: Path, tmp_path: Path) -> None:
    first = make(root, tmp_path / "out")
    for url, record in first.items():
        if record.label == "wart" and record.split == "train":
            (root / url).unlink()
    summary = build(load_build_settings(root, ["workers=1"]), tmp_path / "out")
    assert any("wart has no image in train" in note for note in summary.notes)
