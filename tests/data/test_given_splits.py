"""Splits that a table or folders give: kept, checked for leaks, completed out of train."""

from collections import Counter
from pathlib import Path

import pytest
from paint_images import encode, paint

from skindx.core.errors import UserError
from skindx.data.build.build_dataset import build
from skindx.data.manifest import Record, read_issues, read_manifest
from skindx.data.recipe import BuildSettings
from skindx.data.tables.cells import split_of

SIZE = 24
WORDS = ("train", "train", "train", "Validation", "test", "test")


def written(folder: Path, lines: list[str], **source: object) -> BuildSettings:
    folder.mkdir(exist_ok=True)
    (folder / "t.csv").write_text("file,label,who,part\n" + "".join(f"{line}\n" for line in lines))
    columns = {"group": "who", "split": "part"}
    raw = {"kind": "files", "path": folder / "t.csv", "columns": columns, **source}
    settings = {"name": "x", "sources": [raw], "dedup": {"copies": "off"}}
    return BuildSettings.parse({**settings, "screen": {"not_skin": "off"}, "split": {"folds": 0}})


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(SIZE * 2):
        (folder / f"{number}.jpg").write_bytes(encode(paint(number), "JPEG"))
    return folder


def lines(words: tuple[str, ...] = WORDS) -> list[str]:
    return [
        f"{n}.jpg,{('nevus', 'rosacea')[n % 2]},P{n},{words[n // 2 % len(words)]}"
        for n in range(SIZE * 2)
    ]


def by_split(records: list[Record]) -> Counter[str]:
    return Counter(record.split for record in records)


def test_words_for_splits() -> None:
    for text, split in (
        ("TRAIN", "train"),
        ("valid", "val"),
        ("Testing ", "test"),
        ("fold1", None),
    ):
        assert split_of(text.strip()) == split


def test_given_splits_are_kept_and_calibration_comes_out_of_train(
    pictures: Path, tmp_path: Path
) -> None:
    settings = written(pictures, lines())
    summary = build(settings, tmp_path / "out")
    records = read_manifest(tmp_path / "out")
    given = {line.split(",")[0]: split_of(line.split(",")[3]) for line in lines()}
    moved = [r for r in records if r.split != given[r.source_url]]
    assert {(given[record.source_url], record.split) for record in moved} == {
        ("train", "calibration")
    }
    assert by_split(records)["test"] == 16
    assert by_split(records)["val"] == 8
    assert any("give no calibration: taken out of their train" in note for note in summary.notes)
    before = {record.sha256: record.split for record in records}
    build(settings, tmp_path / "out")
    assert {r.sha256: r.split for r in read_manifest(tmp_path / "out")} == before


def test_a_person_in_two_given_splits_is_a_leak(pictures: Path, tmp_path: Path) -> None:
    rows = lines()
    rows[0] = "0.jpg,nevus,SAME,train"
    rows[8] = "8.jpg,nevus,SAME,test"
    summary = build(written(pictures, rows), tmp_path / "out")
    assert any("the given splits leak: 1 group in several" in note for note in summary.notes)
    issues = {issue.url: issue.reason for issue in read_issues(tmp_path / "out")}
    assert issues["8.jpg"] == "split-conflict"
    (kept,) = [r for r in read_manifest(tmp_path / "out") if r.source_url == "0.jpg"]
    assert kept.split in {"train", "calibration"}


def test_words_that_name_no_split_are_counted(pictures: Path, tmp_path: Path) -> None:
    summary = build(written(pictures, lines(("train", "train", "test", "fold3"))), tmp_path / "out")
    assert any("splits are none of train, val" in note for note in summary.notes)


def test_folders_may_be_kept_as_splits(pictures: Path, tmp_path: Path) -> None:
    for number in range(SIZE * 2):
        part, label = ("Train", "Train", "Test")[number // 2 % 3], ("a", "b")[number % 2]
        path = tmp_path / "f" / part / label / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((pictures / f"{number}.jpg").read_bytes())
    raw = {"name": "x", "urgency": {"a": "soon", "b": "soon"}, "dedup": {"copies": "off"}}
    source = {"kind": "folder", "path": tmp_path / "f", "splits": "kept"}
    settings = BuildSettings.parse({**raw, "sources": [source]})
    build(settings, tmp_path / "out")
    for record in read_manifest(tmp_path / "out"):
        assert (record.split == "test") == record.source_url.startswith("Test/")
    with pytest.raises(UserError, match="split"):
        BuildSettings.parse({**raw, "sources": [{**source, "split": "holdout"}]})


def test_folders_may_have_other_classes_than_their_names(pictures: Path, tmp_path: Path) -> None:
    for number in range(SIZE):
        path = tmp_path / "f" / ("bcc photo", "acne face", "logo")[number % 3] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((pictures / f"{number}.jpg").read_bytes())
    labels = {"BCC_photo": "basal cell carcinoma", "acne face": "acne", "logo": None}
    source = {"kind": "folder", "path": tmp_path / "f", "labels": labels}
    raw = {"name": "x", "sources": [source], "dedup": {"copies": "off"}}
    build(BuildSettings.parse(raw), tmp_path / "out")
    records = read_manifest(tmp_path / "out")
    assert {record.label for record in records} == {"basal_cell_carcinoma", "acne"}
    reasons = {i.url.split("/")[0]: i.reason for i in read_issues(tmp_path / "out")}
    assert reasons == {"logo": "unmapped-label"}


def test_a_name_may_say_the_class_and_the_patient(pictures: Path, tmp_path: Path) -> None:
    for number in range(SIZE):
        code = ("MKP", "CHP", "OTH")[number % 3]
        path = tmp_path / "f" / "all" / f"{code}_{number // 6}_{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((pictures / f"{number}.jpg").read_bytes())
    (tmp_path / "f" / "all" / "x.jpg").write_bytes((pictures / "40.jpg").read_bytes())
    source = {
        "kind": "folder",
        "path": tmp_path / "f",
        "label_pattern": "^([A-Z]+)_",
        "group_pattern": "^([A-Z]+_[0-9]+)_",
        "labels": {"MKP": "mpox", "CHP": "chickenpox", "OTH": None},
    }
    raw = {"name": "x", "sources": [source], "dedup": {"copies": "off"}}
    build(BuildSettings.parse(raw), tmp_path / "out")
    records = read_manifest(tmp_path / "out")
    assert Counter(record.label for record in records) == {"mpox": 8, "chickenpox": 8}
    assert len({record.group for record in records}) == 8
    reasons = Counter(issue.reason for issue in read_issues(tmp_path / "out"))
    assert reasons == {"unmapped-label": 8, "no-class": 1}
    with pytest.raises(UserError, match="finds no class in the file names"):
        build(
            BuildSettings.parse({**raw, "sources": [{**source, "label_pattern": "^(zz)"}]}),
            tmp_path / "o",
        )
