"""Columns made of several, ranges of ages, and classes of COCO files."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.data.sources.columns import Columns, age_years, middle_age
from skindx.data.sources.files import FilesSource
from skindx.data.sources.folder import FolderSource

JPEG = b"\xff\xd8\xff\xe0"
PLAIN = {"group": "", "licence": "", "attribution": "", "skin_type": ""}


def source(folder: Path, table: str, **settings: Any) -> FilesSource:
    (folder / "t.csv").write_text(table, encoding="utf-8")
    for line in table.split("\n")[1:-1]:
        (folder / line.split(",")[0]).write_bytes(JPEG + line.encode())
    columns = PLAIN | settings.pop("columns", {})
    raw = {"kind": "files", "path": folder / "t.csv", "columns": columns, **settings}
    return FilesSource.parse(raw)


def told(files: FilesSource, *facts: str) -> dict[str, tuple[object, ...]]:
    rows = files.gather(files.table.parent / "out")
    return {row.url: tuple(getattr(row, fact) for fact in facts) for row in rows}


def test_the_first_column_that_says_something_is_the_site(tmp_path: Path) -> None:
    table = "file,label,s1,s2,s3\na,x,Trunk,Back,unknown\nb,x,Trunk,,\nc,y,,n/a,\n"
    combine = {"site": ["s3", "s2", "s1"]}
    files = source(tmp_path, table, combine=combine, columns={"site": "site"})
    assert told(files, "site") == {"a": ("back",), "b": ("trunk",), "c": ("",)}


@pytest.mark.parametrize("combine", ["body_*", {"body_back": "back", "body_palm": "palm"}])
def test_the_column_that_is_set_is_the_site(tmp_path: Path, combine: Any) -> None:
    table = (
        "file,label,body_back,body_palm\na,x,YES,\nb,x,0,1.0\nc,y,YES,ja\nd,y,NO,perhaps\ne,y,,\n"
    )
    files = source(tmp_path, table, combine={"place": combine}, columns={"site": "place"})
    found = {name: site for name, (site,) in told(files, "site").items()}
    assert found == {"a": "back", "b": "palm", "c": "", "d": "", "e": ""}
    notes = " ".join(files.preview().notes)
    assert "1 line of several for 'place', which is unknown there" in notes
    assert "1 line with a cell that is neither yes nor no for 'place'" in notes


def test_patterns_reach_into_joined_tables_and_must_meet_a_column(tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("id,at_back,at_leg\n1,x,\n2,,x\n")
    table = "file,label,key\na,x,1\nb,y,2\n"
    join = [{"path": tmp_path / "more.csv", "key": "key", "to": "id"}]
    files = source(tmp_path, table, combine={"s": "at_*"}, join=join, columns={"site": "s"})
    assert told(files, "site") == {"a": ("back",), "b": ("leg",)}
    with pytest.raises(UserError, match=r"no column like 'in_\*'; change `combine.s"):
        source(tmp_path, table, combine={"s": "in_*"}, columns={"site": "s"}).lines()
    with pytest.raises(UserError, match=r"'body', .* wrong form; give a list, a map, a pattern"):
        source(tmp_path, table, combine={"s": "body"}, columns={"site": "s"}).lines()
    with pytest.raises(UserError, match="no column 's9'"):
        source(tmp_path, table, combine={"s": ["s9"]}, columns={"site": "s"}).lines()


def test_a_text_of_several_columns(tmp_path: Path) -> None:
    table = "file,label,kind,version\na,x,by,2.0\nb,x,cc0,1.0\nc,y,by-nc,\n"
    combine = {"licence": "{kind} {version}"}
    files = source(tmp_path, table, combine=combine, columns={"licence": "licence"})
    assert told(files, "licence") == {"a": ("by 2.0",), "b": ("cc0 1.0",), "c": ("",)}
    with pytest.raises(UserError, match="no column 'no'"):
        source(tmp_path, table, combine={"x": "{no}"}).lines()


def test_any_value_of_a_map_is_not_an_empty_one(tmp_path: Path) -> None:
    table = "file,label,histology\na,x,Melanoma\nb,x,\nc,y,n/a\n"
    values = {"histology": {"*": "histopathology"}}
    files = source(tmp_path, table, values=values, columns={"confirmed": "histology"})
    assert told(files, "confirmed_by") == {"a": ("histopathology",), "b": ("",), "c": ("",)}


@pytest.mark.parametrize(
    ("text", "age"),
    [
        *(("AGE_18_TO_29", 23.5), ("30-39", 34.5), ("30 – 39 years", 34.5), ("40 bis 49", 44.5)),
        *(("AGE_80_OR_ABOVE", 80.0), ("80+", 80.0), ("85 or older", 85.0)),
        *(
            ("39-30", None),
            ("0-120", None),
            ("120-130", None),
            ("1990-06-01", None),
            ("ISIC_30", None),
        ),
        *(("AGE_UNKNOWN", None), ("30", None), ("3.5-4", None), ("-5", None)),
    ],
)
def test_a_range_of_ages_counts_as_its_middle(text: str, age: float | None) -> None:
    assert middle_age(text) == age
    columns = Columns(age="age")
    ranges = columns.odd_facts([{"age": text}])["ages are ranges, of which the middle counts"]
    assert ranges == ([] if age is None else [text])
    assert columns.known({"age": text})["age"] == (age_years(text) if age is None else age)


@given(st.integers(0, 120), st.integers(0, 20))
def test_the_middle_lies_within(first: int, width: int) -> None:
    middle = middle_age(f"{first}-{first + width}")
    assert middle is None if first + width > 120 else first <= (middle or 0) <= first + width


def coco(images: list[str], *boxes: tuple[int, int]) -> str:
    kinds = [{"id": 0, "name": "project", "supercategory": "none"}]
    kinds += [{"id": 1, "name": "nevus"}, {"id": 2, "name": "melanoma"}]
    return json.dumps(
        {
            "images": [
                {"id": at, "file_name": name, "width": 9, "height": 9}
                for at, name in enumerate(images)
            ],
            "categories": kinds,
            "annotations": [
                {"id": at, "image_id": image, "category_id": kind, "bbox": [1, 1, 5, 5]}
                for at, (image, kind) in enumerate(boxes)
            ],
        }
    )


def test_classes_of_coco_files(tmp_path: Path) -> None:
    for split, names in (("train", "abcdefg"), ("test", "hij")):
        (tmp_path / split).mkdir()
        for name in names:
            (tmp_path / split / f"{name}.jpg").write_bytes(JPEG + name.encode() * 9)
    (tmp_path / "package.json").write_text('{"name": "x"}')
    images = [f"{name}.jpg" for name in "abcdefz"]
    boxes = [*((n, 1) for n in (0, 1, 2)), *((n, 2) for n in (2, 3)), (5, 2), (6, 1)]
    (tmp_path / "train" / "_annotations.coco.json").write_text(coco(images, *boxes))
    others = coco(["images/h.jpg", "i.jpg", "j.jpg"], (0, 1), (1, 2), (2, 1))
    (tmp_path / "test" / "a.json").write_text(others)
    folder = FolderSource.parse(
        {"kind": "folder", "path": tmp_path, "layout": "coco", "splits": "kept"}
    )
    rows = {row.url: row for row in folder.gather(tmp_path.parent / "out")}
    assert {url: (row.label, row.split) for url, row in rows.items() if row.status == "stored"} == {
        **{f"train/{name}.jpg": ("nevus", "train") for name in "ab"},
        **{f"train/{name}.jpg": ("melanoma", "train") for name in "df"},
        **{"test/i.jpg": ("melanoma", "test"), "test/j.jpg": ("nevus", "test")},
    }
    assert "its boxes are of melanoma and nevus" in rows["train/c.jpg"].detail
    assert "no COCO file has a box of it" in rows["train/e.jpg"].detail
    assert rows["train/g.jpg"].status == rows["test/h.jpg"].status == "no-class"


def test_a_folder_without_coco_and_a_damaged_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(JPEG)
    folder = FolderSource(path=tmp_path, layout="coco")
    with pytest.raises(UserError, match="has no COCO JSON"):
        folder.preview()
    (tmp_path / "a.json").write_text('{"images": [')
    with pytest.raises(UserError, match="cannot be read as JSON"):
        folder.preview()
