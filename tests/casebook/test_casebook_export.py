"""What clinicians confirmed becomes a dataset."""

import csv
import io
import os
import pty
import sys
from collections import Counter
from pathlib import Path

import pytest
from command_line import Skindx
from kept_cases import answer
from PIL import Image
from typer.testing import CliRunner

from skindx.casebook.casebook import Casebook
from skindx.casebook.casebook_export import LICENCE, export
from skindx.casebook.findings import Outside
from skindx.cli import app
from skindx.core.errors import UserError
from skindx.data.manifest import read_manifest
from skindx.data.sources.files import FilesSource
from skindx.diagnosis.case import Patient

KEYS = ("Nevus", "Melanoma")


def confirmed_cases(book: Casebook, patients: int) -> None:
    """Keep two dates of each patient, and confirm all but the last patient's."""
    for number in range(patients):
        for date in range(2):
            case = book.keep(
                "ann",
                answer(2 * number + date, patient=Patient(skin_type=4 if number % 2 else None)),
                patient=f"P-{number}",
                lesion="left arm",
                consent=True,
                train=True,
            )
            if number < patients - 1:
                how = {2: "clinical opinion", 3: ""}.get(number, "histopathology")
                label, note = KEYS[number % 2], "a private note"
                book.confirm("ann", case, label, note, KEYS, version=1, confirmed_by=how)


def test_confirmed_cases_are_built_into_a_dataset(tmp_path: Path) -> None:
    path = tmp_path / "cases.db"
    confirmed_cases(Casebook.open(path), 9)
    run = CliRunner().invoke
    done = run(app, ["casebook", "export", str(path), "--out", str(tmp_path / "feedback")])
    assert done.exit_code == 0, done.output
    assert "12 images" in done.output
    recipe = tmp_path / "feedback" / "recipe.yaml"
    sets = ["--set", "workers=1"]
    built = run(app, ["build", str(recipe), "--out", str(tmp_path / "data"), *sets])
    assert built.exit_code == 0, (built.output, built.exception)
    records = read_manifest(tmp_path / "data")
    assert len(records) == 12
    assert {record.label for record in records} == set(KEYS)
    assert {record.licence for record in records} == {LICENCE}
    assert {record.skin_type for record in records} == {None, 4}
    # Neither an opinion nor a diagnosis without its basis is confirmed, so none of them trains.
    assert (
        "Left out: 2 with a clinical opinion that nothing confirmed, 2 with a diagnosis whose "
        "basis is not stated."
    ) in " ".join(done.output.split())
    assert Counter(record.confirmed_by for record in records) == {"histopathology": 12}
    splits: dict[str, set[str]] = {}
    for record in records:
        splits.setdefault(record.group, set()).add(record.split)
    assert len(splits) == 6
    assert all(len(split) == 1 for split in splits.values())


def test_an_export_tells_nobody_s_name_and_carries_consent(tmp_path: Path) -> None:
    book = Casebook.open(tmp_path / "cases.db")
    confirmed_cases(book, 4)
    out = tmp_path / "feedback"
    assert export(book.all_cases("ann"), out, book.export_key(), taxonomy="isic9") == 4
    assert out.stat().st_mode & 0o077 == 0
    text = (out / "pictures.csv").read_text()
    for secret in ("P-0", "left arm", "private note", "ann"):
        assert secret not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["confirmed_by"] for row in rows] == 4 * ["histopathology"]
    assert all("agrees" in row["consent"] and row["consented"] for row in rows)
    assert {row["laterality"] for row in rows} == {""}
    assert len({row["group"] for row in rows}) == 2
    for row in rows:
        with Image.open(out / row["file"]) as image:
            assert image.format == "JPEG"
            assert not image.getexif()
    assert "isic9" in (out / "recipe.yaml").read_text()
    again = Casebook.open(tmp_path / "cases.db")
    assert export(again.all_cases("ann"), out, again.export_key()) == 4  # in the same place
    assert (out / "pictures.csv").read_text() == text
    two = book.all_cases("bob") + book.all_cases("ann")[:2]
    assert export(two, tmp_path / "b", book.export_key()) == 2
    # Who guesses a pseudonym cannot try it: another case book codes the same one otherwise.
    other = Casebook.open(tmp_path / "other.db")
    confirmed_cases(other, 4)
    export(other.all_cases("ann"), tmp_path / "c", other.export_key())
    others = list(csv.DictReader(io.StringIO((tmp_path / "c" / "pictures.csv").read_text())))
    for column in ("group", "lesion"):
        assert not {row[column] for row in rows} & {row[column] for row in others}


def test_nothing_confirmed_and_another_s_folder_are_refused(tmp_path: Path) -> None:
    book = Casebook.open(tmp_path / "cases.db")
    confirmed_cases(book, 1)
    with pytest.raises(UserError, match="none of the 2 cases"):
        export(book.all_cases(), tmp_path / "out", b"key")
    confirmed_cases(book, 2)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"holds other files \(thesis.tex\)"):
        export(book.all_cases(), tmp_path / "mine", b"key")
    assert not (tmp_path / "out").exists()


def test_nothing_trains_without_consent_to_it_or_outside_of_the_classes(tmp_path: Path) -> None:
    book = Casebook.open(tmp_path / "cases.db")
    confirmed_cases(book, 2)
    for seed, train, outside in ((7, False, None), (8, True, Outside("Merkel cell carcinoma"))):
        words = {"patient": "P-9", "lesion": "leg", "consent": True, "train": train}
        case = book.keep("ann", answer(seed), **words)  # type: ignore[arg-type]
        label = "" if outside else "Nevus"
        how = "" if outside else "histopathology"
        book.confirm("ann", case, label, "", KEYS, version=1, outside=outside, confirmed_by=how)
    done = CliRunner().invoke(
        app, ["casebook", "export", str(tmp_path / "cases.db"), "--out", str(tmp_path / "out")]
    )
    assert "2 images of confirmed cases" in done.output
    assert (
        "Left out: 1 confirmed without consent to training, 1 with a diagnosis that is no class of "
        "the model."
    ) in done.output.replace("\n", " ").replace("  ", " ")
    assert "Merkel" not in (tmp_path / "out" / "pictures.csv").read_text()
    listed = CliRunner().invoke(app, ["casebook", "list", str(tmp_path / "cases.db")]).output
    assert "Merkel" in listed
    only = [case for case in book.all_cases() if case.patient == "P-9"]
    with pytest.raises(UserError, match="1 confirmed without consent to training"):
        export(only, tmp_path / "b", b"key")


def test_the_command_line_lists_and_deletes(tmp_path: Path) -> None:
    book = Casebook.open(tmp_path / "cases.db")
    case = book.keep("ann", answer(1), patient="P-1", lesion="arm", consent=True)
    run = CliRunner().invoke
    assert "\n1 case\n" in run(app, ["casebook", "list", str(tmp_path / "cases.db")]).output
    assert run(app, ["casebook", "delete", str(tmp_path / "cases.db"), case]).exit_code == 0
    assert book.all_cases() == []
    again = run(app, ["casebook", "delete", str(tmp_path / "cases.db"), case])
    assert isinstance(again.exception, UserError)


@pytest.mark.parametrize(("said", "left"), [("n", 1), ("y", 0)])
def test_a_terminal_is_asked_back_before_cases_are_deleted(
    skindx: Skindx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, left: int
) -> None:
    book = Casebook.open(tmp_path / "cases.db")
    case = book.keep("ann", answer(1), patient="P-1", lesion="arm", consent=True)
    keyboard, terminal = pty.openpty()
    os.write(keyboard, f"{said}\n".encode())
    with os.fdopen(keyboard, "wb"), os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        code, printed, problem = skindx("casebook", "delete", tmp_path / "cases.db", case)
    assert code == 0, problem
    assert "Delete this case for good?" in printed
    assert ("nothing is deleted" in printed) == bool(left)
    assert len(book.all_cases()) == left


def test_a_table_of_files_reads_only_what_lies_beside_it(tmp_path: Path) -> None:
    beside = tmp_path / "table"
    (beside / "pictures").mkdir(parents=True)
    (tmp_path / "outside.jpg").write_bytes(answer(1).views[0].jpeg)
    (beside / "pictures" / "a.jpg").write_bytes(answer(1).views[0].jpeg)
    (beside / "pictures" / "b.jpg").write_bytes(answer(1).views[0].jpeg)
    (beside / "pictures" / "text.jpg").write_text("text")
    (beside / "link.jpg").symlink_to(tmp_path / "outside.jpg")
    lines = ["pictures/a.jpg,Nevus", "pictures/b.jpg,", "../outside.jpg,Nevus", "link.jpg,Nevus",
             "pictures/text.jpg,Nevus", "none.jpg,Nevus", "pictures,Nevus"]  # fmt: skip
    rows = "".join(f"{line},CC0,,,\n" for line in lines)
    (beside / "t.csv").write_text(f"file,label,licence,attribution,group,skin_type\n{rows}")
    got = FilesSource(kind="files", path=beside / "t.csv").gather(tmp_path / "data")
    assert [row.status for row in got] == [
        "stored", "no-label", "link-refused", "link-refused", "not-a-picture", "unreadable",
        "unreadable",
    ]  # fmt: skip
    assert got[0].licence == "CC0"
    (beside / "t.csv").write_text("file,label,licence,attribution,group,skin_type\n")
    with pytest.raises(UserError, match="no rows"):
        FilesSource(kind="files", path=beside / "t.csv").gather(tmp_path / "data")
