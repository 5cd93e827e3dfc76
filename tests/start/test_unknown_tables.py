"""`skindx new` on tables and folders that nobody knows: it takes what is sure, or asks."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from command_line import Skindx

from skindx.core.errors import UserError
from skindx.data.layouts.folder_contents import FolderContents
from skindx.data.recipe import BuildSettings
from skindx.start.image_folder import propose
from skindx.start.proposal import Proposal, Wishes, nobody

JPEG = b"\xff\xd8\xff\xe0" + b"\0" * 64


def images(top: Path, names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(JPEG + bytes([number]))


def table(top: Path, name: str, header: str, rows: Sequence[str]) -> None:
    (top / name).parent.mkdir(parents=True, exist_ok=True)
    (top / name).write_text("\n".join([header, *rows]) + "\n")


def proposed(top: Path, wishes: Wishes | None = None) -> Proposal:
    proposal = propose(FolderContents.listed(top), wishes or Wishes())
    BuildSettings.parse({"name": "mine", **proposal.raw})
    return proposal


def labels_of(top: Path, proposal: Proposal) -> list[str]:
    [source] = BuildSettings.parse({"name": "mine", **proposal.raw}).sources
    return list(source.preview().labels)


def clinic(top: Path) -> None:
    images(top, [f"photos/P{n:03d}.jpg" for n in range(12)])
    odd = (("Melanom", "m", "Ja"), ("Nävus", "w", "Nein"))
    rows = [
        ";".join((f"P{n:03d}", label, f"F{n // 2}", f"{30 + n},0", sex, proof))
        for n in range(12)
        for label, sex, proof in [odd[n % 2]]
    ]
    table(top, "list.csv", "Bild;Diagnose;Patient;Alter;Geschlecht;Histologie", rows)


def test_columns_are_taken_by_names_and_values(tmp_path: Path) -> None:
    clinic(tmp_path)
    proposal = proposed(tmp_path)
    [source] = proposal.raw["sources"]
    assert source["files"] == "photos/{}.jpg"
    assert source["columns"] == {
        "file": "Bild",
        "label": "Diagnose",
        "group": "Patient",
        "age": "Alter",
        "sex": "Geschlecht",
        "confirmed": "Histologie",
    }
    assert source["values"]["Histologie"]["true"] == "histopathology"
    said = " ".join(proposal.lines)
    assert "'Bild' of list.csv names the images" in said
    assert "No split divides what shares 'Patient'" in said


def binary(top: Path) -> None:
    images(top, [f"images/{n}a.jpg" for n in range(10)])
    table(top, "t.csv", "image,target", [f"{n}a,{n % 2}" for n in range(10)])


def test_two_columns_of_one_file_are_one_image(tmp_path: Path) -> None:
    """An id and the file's name tell the same file; two files of a row are two images."""
    images(tmp_path, [f"photos/{n}.jpg" for n in range(1, 11)])
    rows = [f"{n},{n}.jpg,{('melanoma', 'nevus')[n % 2]}" for n in range(1, 11)]
    table(tmp_path, "t.csv", "id,file_path,disease", rows)
    proposal = proposed(tmp_path)
    (source,) = proposal.raw["sources"]
    assert source["columns"]["file"] == "file_path"
    assert "images" not in source


def test_numbers_of_another_program_name_no_program(tmp_path: Path) -> None:
    """Files numbered through all classes are not those of a crawler, which begins in each anew."""
    for n in range(1, 13):
        images(tmp_path, [f"set/{('Melanoma', 'Nevus', 'Wart')[n % 3]}/{n:06d}.jpg"])
    assert not any("icrawler" in line for line in proposed(tmp_path).lines)


def test_what_0_and_1_mean_is_asked(tmp_path: Path) -> None:
    binary(tmp_path)
    with pytest.raises(UserError, match=r"values '0' and '1', which are not names of classes"):
        proposed(tmp_path)
    meant = proposed(tmp_path, Wishes(classes={"1": "melanoma", "0": "nevus"}))
    assert sorted(set(labels_of(tmp_path, meant))) == ["melanoma", "nevus"]
    asked: list[str] = []

    def person(option: str, question: str, choices: Sequence[str]) -> str:
        asked.append(question)
        return {"'0'": "nevus", "'1'": "melanoma"}[question.split()[2]]

    meant = proposed(tmp_path, Wishes(ask=person))
    assert len(asked) == 2
    assert sorted(set(labels_of(tmp_path, meant))) == ["melanoma", "nevus"]


def rest(top: Path) -> None:
    images(top, [f"data/I{n}.jpg" for n in range(12)])
    rows = [f"I{n},{float(n % 3 == 0)},{float(n % 3 == 1)}" for n in range(12)]
    table(top, "truth.csv", "image_id,melanoma,seborrheic_keratosis", rows)


def test_lines_of_none_of_the_classes_get_a_name(tmp_path: Path) -> None:
    rest(tmp_path)
    meant = proposed(tmp_path, Wishes(classes={"none": "nevus"}))
    counts = labels_of(tmp_path, meant)
    assert {label: counts.count(label) for label in counts} == {
        "melanoma": 4,
        "seborrheic_keratosis": 4,
        "nevus": 4,
    }


def several(top: Path) -> None:
    images(top, [f"images/{kind}{n}.jpg" for n in range(8) for kind in ("clinic", "derm")])
    rows = [f"clinic{n}.jpg,derm{n}.jpg,{('nevus', 'melanoma')[n % 2]}" for n in range(8)]
    table(top, "meta.csv", "clinic,derm,diagnosis", rows)


def test_several_images_of_a_row_are_all_taken(tmp_path: Path) -> None:
    several(tmp_path)
    [source] = proposed(tmp_path).raw["sources"]
    assert source["images"] == [
        {"file": "clinic", "modality": "clinical"},
        {"file": "derm", "modality": "dermoscopic"},
    ]


def splits(top: Path) -> None:
    images(top, [f"x/{s}_set/{c}/{n}.jpg" for s in ("train", "test") for c in "ab" for n in "123"])


def test_folders_named_as_splits_are_splits(tmp_path: Path) -> None:
    splits(tmp_path)
    sources = proposed(tmp_path).raw["sources"]
    assert [(Path(one["path"]).name, one["split"]) for one in sources] == [
        ("test_set", "test"),
        ("train_set", "train"),
    ]


def parts(top: Path) -> None:
    images(top, [f"images_part_{part}/{n}.jpg" for part in "12" for n in range(5)])


def folds(top: Path) -> None:
    images(top, [f"FOLDS/fold{fold}/{n}.jpg" for fold in "123" for n in range(5)])


def people(top: Path) -> None:
    images(top, [f"P{person:03d}/{n}.jpg" for person in range(9) for n in range(3)])


def two_labels(top: Path) -> None:
    images(top, [f"i/x{n}.jpg" for n in range(12)])
    rows = [
        f"x{n},{('nevus', 'melanoma')[n % 2]},{('eczema', 'acne')[n % 3 % 2]}" for n in range(12)
    ]
    table(top, "t.csv", "image,diagnosis,disease", rows)


def headless(top: Path) -> None:
    images(top, [f"i/ISIC_{n:07d}.jpg" for n in range(8)])
    table(top, "t.csv", "ISIC_0000000,benign", [f"ISIC_{n:07d},malignant" for n in range(1, 8)])


def copies(top: Path) -> None:
    clinic(top)
    (top / "other.csv").write_text((top / "list.csv").read_text().replace("Melanom", "Basaliom"))


ASKED: dict[str, tuple[Callable[[Path], None], str]] = {
    "parts": (parts, "have names of dataset parts, not of classes"),
    "folds": (folds, "have names of dataset parts, not of classes"),
    "people": (people, "have numbered names, like those of people"),
    "two labels": (two_labels, "add --column label=NAME"),
    "no header": (headless, "looks like data, not like column names"),
    "two tables": (copies, "have the same columns and images"),
    "none of the classes": (rest, "--class none=NAME"),
    "zero and one": (binary, "--class 1=NAME"),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_not_sure_is_one_question_and_nothing_is_written(
    skindx: Skindx, tmp_path: Path, name: str
) -> None:
    make, part = ASKED[name]
    top, out = tmp_path / "mine", tmp_path / "out"
    make(top)
    code, _, err = skindx("new", top, "--out", out, "--yes")
    assert (code, err.count("\n")) == (2, 1), err
    assert part in err
    assert not out.exists()


def test_folders_are_classes_if_one_says_so(tmp_path: Path) -> None:
    people(tmp_path)
    proposal = proposed(tmp_path, Wishes(dataset="folders"))
    assert len(set(labels_of(tmp_path, proposal))) == 9


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--dataset", "isic9000"), "is not a dataset that skindx knows"),
        (("--dataset", "ddi"), "does not have"),
        (("--column", "label=nothing"), "has a column 'nothing'"),
        (
            ("--column", "colour=Bild"),
            "error: --column colour=… is not possible; use one of label, image",
        ),
        (("--class", "melanoma"), "is not NAME=VALUE"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(
    skindx: Skindx, tmp_path: Path, options: tuple[str, ...], part: str
) -> None:
    clinic(tmp_path / "mine")
    code, _, err = skindx("new", tmp_path / "mine", "--out", tmp_path / "out", "--yes", *options)
    assert (code, err.count("\n")) == (2, 1), err
    assert part in err


def test_datasets_lists_all_and_shows_one(skindx: Skindx) -> None:
    code, printed, _ = skindx("datasets")
    assert code == 0
    assert "2,298 images, 1,373 patients" in printed
    code, printed, _ = skindx("datasets", "pad_ufes_20")
    assert code == 0
    assert "ACK is Actinic keratosis (skin100), ICD-10 L57.0" in printed
    code, _, err = skindx("datasets", "nothing")
    assert (code, err.count("\n")) == (2, 1)
    assert nobody("", "", ()) == ""
