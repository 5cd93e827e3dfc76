"""Which photos a folder or a table names."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from skin_photo import skin_photo

from skindx.core.errors import UserError
from skindx.diagnosis.case import Patient
from skindx.diagnosis.photo_list import list_photos


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "b").mkdir(parents=True)
    for name in ("b/near.jpg", "a.JPG", "bare"):
        (folder / name).write_bytes(skin_photo())
    return folder


def table_of(folder: Path, text: str) -> Path:
    table = folder / "table.csv"
    table.write_text(text, encoding="utf-8")
    return table


def test_a_folder_gives_its_photos_by_name_and_counts_the_rest(folder: Path) -> None:
    outside = folder.parent / "outside.jpg"
    outside.write_bytes(skin_photo())
    (folder / "link.jpg").symlink_to(outside)
    (folder / "again").symlink_to(folder)
    (folder / ".hidden.jpg").write_bytes(b"x")
    (folder / "notes.txt").write_text("notes")
    (folder / "broken.png").write_bytes(b"no image")
    os.mkfifo(folder / "pipe.jpg")
    listed = list_photos(folder)
    assert [photo.name for photo in listed.photos] == ["a.JPG", "b/near.jpg", "bare", "broken.png"]
    assert {photo.patient for photo in listed.photos} == {Patient()}
    assert listed.notes == ["Files left out: hidden: 1, links (not followed): 2, no images: 2."]


def test_a_table_gives_facts_and_says_what_it_did_not_use(folder: Path) -> None:
    text = (
        "file,age,sex,site,skin_type,patient\n"
        "a.JPG,62.0,F,Upper Extremity,III,p1\n"
        f"{folder}/b/near.jpg,unknown,,palm or sole,NA,p2\n"
    )
    listed = list_photos(table_of(folder, text))
    assert [photo.patient for photo in listed.photos] == [
        Patient(age=62, sex="female", site="arm", skin_type=3),
        Patient(site="palm or sole"),
    ]
    assert [photo.path for photo in listed.photos] == [folder / "a.JPG", folder / "b/near.jpg"]
    assert listed.notes[0].endswith("that were not used: patient.")
    parquet = folder / "table.parquet"
    pq.write_table(pa.table({"file": ["bare"], "age": [62.0], "x": [1]}), parquet)
    assert list_photos(parquet).photos[0].patient == Patient(age=62)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "image;age\na.JPG;3\n",
            "no column `file`.*but has image, age; rename the correct column",
        ),
        ("file\n../outside.jpg\n", r"row 1 names ../outside.jpg, which is outside"),
        ("file\nb\n", r"row 1 names b, which is not a file"),
        ("file,age\n,3\n", r"row 1 has no photo name"),
        ("file\na.JPG\nb/../a.JPG\n", r"row 2 names b/../a.JPG, which row 1 names too"),
        ("file,age\na.JPG,200\n", r"row 1: 'age' = '200'"),
        ("file,site\na.JPG,moon\n", r"row 1: 'site' = 'moon'"),
        ("file\n", r"has no photo; give another folder"),
    ],
)
def test_a_wrong_table_is_refused_in_one_sentence(folder: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        list_photos(table_of(folder, text))
    assert "\n" not in str(refused.value)


def test_a_link_of_a_table_out_of_its_folder_is_refused(folder: Path) -> None:
    (folder / "link.jpg").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match="outside the folder of the table"):
        list_photos(table_of(folder, "file\nlink.jpg\n"))


def test_a_folder_without_photos_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UserError, match=r"has no photo \(Files left out: no images: 1\); give"):
        list_photos(tmp_path)
    with pytest.raises(UserError, match="has no column `file` with the names of the photos"):
        list_photos(tmp_path / "notes.txt")
    (tmp_path / "notes.doc").write_text("x")
    with pytest.raises(UserError, match="neither a folder nor a table"):
        list_photos(tmp_path / "notes.doc")
