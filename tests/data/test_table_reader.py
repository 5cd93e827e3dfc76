"""The one reader of tables: encodings, separators, workbooks, and what contradicts itself."""

import ast
import csv
import datetime
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workbooks import formula, write_workbook

from skindx.core.errors import UserError
from skindx.data.sources.columns import Columns, sex, skin_type
from skindx.data.sources.dicom import DicomLabels
from skindx.data.sources.files import FilesSource
from skindx.data.splits.freeze import Placement, read_places, write_places
from skindx.data.splits.groups import GroupKeys, GroupSettings
from skindx.data.tables.cells import as_matched, cell, same_value, truth
from skindx.data.tables.fields import LEFT_OUT, TableFields, TableLog
from skindx.data.tables.reader import read_table
from skindx.diagnosis.photo_list import list_photos

WHEEL = Path(__file__).parents[2] / "skindx"
LIST = TableFields(on_conflict="list")
PLAIN = {"licence": "", "attribution": "", "group": "", "skin_type": ""}


def lines_of(path: Path, fields: TableFields | None = None, **columns: Any) -> list[dict[str, Any]]:
    return list(read_table(path, Columns(**columns), fields))


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def test_nothing_else_in_the_wheel_reads_tables() -> None:
    readers = {"DictReader", "read_csv", "read_excel", "open_csv"}
    found = []
    for path in WHEEL.rglob("*.py"):
        if path.parent.name == "tables":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node, "attr", getattr(node, "id", ""))
            module = getattr(node, "module", "") or ""
            if name in readers or module.startswith(("pyarrow.csv", "pandas", "openpyxl")):
                found.append(f"{path.relative_to(WHEEL)}:{getattr(node, 'lineno', 0)}")
    assert found == []


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
)
@pytest.mark.parametrize("sign", [",", ";", "\t", "|"])
def test_text_is_read_as_any_program_saves_it(tmp_path: Path, encoding: str, sign: str) -> None:
    rows = [["Label", "site"], ["Nävus", 'zwei\nZeilen, "so"'], ["mélanome", "dos; bas"]]
    text = io.StringIO()
    csv.writer(text, delimiter=sign, lineterminator="\r\n").writerows(rows)
    path = write(tmp_path / "t.csv", text.getvalue(), encoding)
    found = lines_of(path, site="site")
    assert [[line["label"], line["site"]] for line in found] == rows[1:]


def test_windows_1252_is_read_and_said(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "label;site\r\nNävus;Rücken\r\n", "cp1252")
    log = TableLog()
    (line,) = read_table(path, Columns(site="site"), None, log)
    assert (line["label"], line["site"]) == ("Nävus", "Rücken")
    assert "Windows-1252" in log.all_notes(path)[0]


def test_the_separator_that_excel_was_told_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "sep=;\r\nlabel;a,b\r\nx;1,5\r\n")
    assert lines_of(path) == [{"label": "x"}]


@given(
    rows=st.lists(
        st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc"))), min_size=3, max_size=3),
        max_size=6,
    )
)
def test_what_a_csv_writer_wrote_comes_back(
    rows: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["label", "age", "site"], *rows])
    found = lines_of(path, age="age", site="site")
    kept = [row for row in rows if any(map(cell, row))]
    assert [[line[name] for name in ("label", "age", "site")] for line in found] == kept


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("label,age\nx,1,2\n", "line 2, has 3 cells"),
        ("label,age\nx\n", "line 2, has 1 cells"),
        ("label,label,age\nx,y,1\n", "columns of the name 'label'; delete"),
        ('label,age\n"x,1\ny,2\n', "cannot be read as a table"),
        ('label,age\n"x"y,1\n', "cannot be read as a table"),
        ("label,age,Label\nx,1,x\nx,1,y\n", "line 3, says 'x' and 'y' in two columns 'label'"),
        ("label,age\nne\0vus,1\n", "it has NUL bytes"),
        ("", r"no column 'label'; set `columns\.label` .*: none"),
    ],
)
def test_lines_that_do_not_fit_are_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        lines_of(write(tmp_path / "t.csv", text), age="age")


def test_lines_that_do_not_fit_are_listed_where_that_is_asked(tmp_path: Path) -> None:
    text = "label,age,label\nx,1,x\nx,1,y\nlong,1,long,z\nshort\ny,2,Y\n,,\n"
    log = TableLog()
    path = write(tmp_path / "t.csv", text)
    found = list(read_table(path, Columns(age="age"), LIST, log))
    assert found == [{"label": "x", "age": "1"}, {"label": "y", "age": "2"}]
    assert [where for where, _ in log.dropped] == ["line 3", "line 4", "line 5"]
    assert "'x' and 'y' in two columns 'label'" in log.dropped[0][1]
    notes = log.all_notes(path)
    assert "1 empty line passed over" in notes[0]
    assert "3 lines left out, such as line 3" in notes[1]


def test_a_table_without_a_header_is_read_by_given_names(tmp_path: Path) -> None:
    named = TableFields(header=("image", "label"))
    path = write(tmp_path / "t.csv", "ISIC_1,benign\nISIC_2,malignant\n")
    assert [line["label"] for line in lines_of(path, named)] == ["benign", "malignant"]
    headed = write(tmp_path / "u.csv", "image,label\nISIC_1,benign\n")
    assert [line["label"] for line in lines_of(headed, named)] == ["benign"]
    with pytest.raises(UserError, match=r"no column 'label'; set `columns\.label`"):
        lines_of(path)


def test_a_workbook_gives_stored_values_and_dates(tmp_path: Path) -> None:
    rows = [
        ["Study of nevi", None, None, None],
        [],
        ["label", "taken\nat", "excised", "age", "number"],
        ["nevus", datetime.date(2021, 3, 5), True, formula("1+1", 42), 7],
        ["melanoma", datetime.date(1960, 1, 1), False, formula("A1", None), 7.5],
        [None, None, None, None, None],
        [formula('="a"&"b"', "ab")],
    ]
    path = write_workbook(tmp_path / "t.xlsx", {"Pictures": rows, "People": [["patient", "age"]]})
    log = TableLog()
    found = list(read_table(path, Columns(), None, log, every=True))
    assert found == [
        {"label": "nevus", "taken at": "2021-03-05", "excised": "True", "age": 42, "number": 7},
        {
            "label": "melanoma",
            "taken at": "1960-01-01",
            "excised": "False",
            "age": None,
            "number": 7.5,
        },
        {"label": "ab", "taken at": None, "excised": None, "age": None, "number": None},
    ]
    said = " ".join(log.all_notes(path))
    assert "1 formulas without a stored value count as empty" in said
    assert "'Pictures' is read, not People" in said


def test_which_sheet_is_meant_is_asked_and_not_guessed(tmp_path: Path) -> None:
    sheets = {"One": [["label"], ["a"]], "Two": [["label"], ["b"]], "Old": [["label"], ["c"]]}
    path = write_workbook(tmp_path / "t.xlsx", sheets, hidden=["Old"])
    with pytest.raises(UserError, match=r"several sheets \(One and Two\); set `sheet`"):
        lines_of(path)
    assert lines_of(path, TableFields(sheet="two")) == [{"label": "b"}]
    assert lines_of(path, TableFields(sheet="Old")) == [{"label": "c"}]
    with pytest.raises(UserError, match=r"no sheet 'Tree'; .*: One, Two, Old"):
        lines_of(path, TableFields(sheet="Tree"))


def test_a_cell_beyond_the_header_is_refused(tmp_path: Path) -> None:
    path = write_workbook(tmp_path / "t.xlsx", {"S": [["label"], ["a", None, "look here"]]})
    with pytest.raises(UserError, match="row 2, has 3 cells and the header has 1"):
        lines_of(path)


@pytest.mark.parametrize(
    ("part", "data"),
    [
        ("xl/worksheets/sheet1.xml", b'<!DOCTYPE a [<!ENTITY b "c">]><worksheet>&b;</worksheet>'),
        ("xl/worksheets/sheet1.xml", b"<worksheet><sheetData><row><c r='ZZZZ1'/></row>"),
        (
            "xl/worksheets/sheet1.xml",
            b"<worksheet><row>" + b"<c/>" * 500_000 + b"</row></worksheet>",
        ),
        ("xl/worksheets/sheet1.xml", b"<worksheet><row><c t='s'><v>9</v></c></row></worksheet>"),
        ("xl/workbook.xml", b"no xml"),
        ("xl/_rels/workbook.xml.rels", b""),
    ],
)
def test_a_hostile_workbook_is_one_sentence(tmp_path: Path, part: str, data: bytes) -> None:
    good = write_workbook(tmp_path / "good.xlsx", {"S": [["label"], ["a"]]})
    bad = tmp_path / "bad.xlsx"
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, data if name == part else old.read(name))
    with pytest.raises(UserError, match=r"bad\.xlsx"):
        lines_of(bad)


def test_a_workbook_that_unpacks_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_workbook(tmp_path / "t.xlsx", {"S": [["label"], ["a" * 100_000]]})
    monkeypatch.setattr("skindx.data.tables.workbook.MOST_BYTES", 1 << 16)
    with pytest.raises(UserError, match="unpacks to more than"):
        lines_of(path)


def test_json_lists_and_lines(tmp_path: Path) -> None:
    for name, text in (("t.json", '[{"label": "a"}, {"label": "b"}]'), ("t.ndjson", '{"label":1}')):
        assert lines_of(write(tmp_path / name, text))
    with pytest.raises(UserError, match="not a list of JSON objects"):
        lines_of(write(tmp_path / "u.json", '{"label": "a"}'))
    double = write(tmp_path / "d.jsonl", '{"label": "a", "label": "b"}\n{"label": "c"}\n')
    log = TableLog()
    assert list(read_table(double, Columns(), LIST, log)) == [{"label": "c"}]
    assert len(log.dropped) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abc":
        (tmp_path / f"{name}.jpg").write_bytes(b"\xff\xd8\xff\xe0" + name.encode() * 20)
    return tmp_path


def files(folder: Path, text: str, **settings: Any) -> FilesSource:
    write(folder / "t.csv", text)
    columns = PLAIN | settings.pop("columns", {})
    raw = {"kind": "files", "path": folder / "t.csv", "columns": columns, **settings}
    return FilesSource.parse(raw)


def test_a_file_with_two_labels_has_none(folder: Path) -> None:
    text = "file,label,age\na.jpg,nevus,\na.jpg,melanoma,40\nb.jpg,nevus,\nb.jpg,nevus,40.0\n"
    with pytest.raises(UserError, match=r"values \(label: 'nevus' and 'melanoma'\)"):
        files(folder, text, columns={"age": "age"}).lines()
    source = files(folder, text, columns={"age": "age"}, on_conflict="list")
    rows = {row.url: row for row in source.gather(folder / "out")}
    assert [rows[name].status for name in ("a.jpg", "b.jpg", "c.jpg")] == [
        *("conflict", "stored", "no-line"),
    ]
    assert "'nevus' and 'melanoma'" in rows["a.jpg"].detail
    assert rows["b.jpg"].age == 40  # the line that knows it
    assert any("2 lines repeated" in note for note in source.preview().notes)


def test_two_spellings_of_one_file_are_one(folder: Path) -> None:
    with pytest.raises(UserError, match=r"names 'a\.jpg' 2 times"):
        files(folder, "file,label\na.jpg,x\n./a.jpg,y\n").lines()
    assert len(files(folder, "file,label\na.jpg,x\n./a.jpg,x\n").lines()) == 1


def test_lines_left_out_are_issues(folder: Path) -> None:
    text = "file,label\na.jpg,nevus\nb.jpg\nc.jpg,nevus,x\n"
    source = files(folder, text, on_conflict="list")
    rows = {row.url: (row.status, row.detail) for row in source.gather(folder / "out")}
    assert rows["t.csv#line 3"][0] == rows["t.csv#line 4"][0] == "odd-line"
    assert "has 3 cells" in rows["t.csv#line 4"][1]
    assert rows["b.jpg"][0] == "no-line"
    assert all(LEFT_OUT in line for line in source.lines()[1:])


@pytest.mark.parametrize("text", ["file,label\na.jpg,x\nb.jpg,x\n", "file,label\n" + "".join(
    f"{name}.jpg,x\n" for name in "abcd")])  # fmt: skip
def test_what_is_missing_is_refused_where_that_is_asked(folder: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"such as [cd]\.jpg; correct the table or"):
        files(folder, text, on_conflict="refuse").preview()
    assert files(folder, text).preview().notes


def test_two_lesions_of_one_image_are_refused_or_one_group(folder: Path) -> None:
    text = "image,lesion\na,L1\na,L2\nb,L2\nc,L3\n"
    write(folder / "groups.csv", text)
    table = {"path": folder / "groups.csv", "key_column": "image", "group_column": "lesion"}
    with pytest.raises(UserError, match=r"gives 2 lesions for 'a' \('L1' and 'L2'\)"):
        GroupKeys(GroupSettings.parse({"tables": [table]}))
    keys = GroupKeys(GroupSettings.parse({"tables": [{**table, "on_conflict": "list"}]}))
    labels = "".join(f"{name}.jpg,x\n" for name in "abc")
    a, b, c = files(folder, "file,label\n" + labels).gather(folder / "out")[:3]
    assert keys.group_keys(a) == ["L1", "L2"]
    assert keys.group_keys(b) == ["L2"]
    assert keys.group_keys(c) == ["L3"]
    assert "1 keys have several groups" in keys.notes([])[0]


def test_two_diagnoses_of_one_accession_number(tmp_path: Path) -> None:
    write(tmp_path / "t.csv", "key,label\n1,nevus\n1,melanoma\n2,nevus\n2,nevus\n")
    with pytest.raises(UserError, match="gives 2 labels"):
        DicomLabels(path=tmp_path / "t.csv").read()
    labels = DicomLabels(path=tmp_path / "t.csv", on_conflict="list").read()
    assert labels == {"1": ("", ""), "2": ("nevus", "")}


def test_words_of_several_languages() -> None:
    for text, number in (
        ("3.0", 3),
        ("FST III", 3),
        ("Fitz. 3", 3),
        ("Type IV", 4),
        ("12", None),
        ("34", None),
    ):
        assert skin_type(text) == number
    for text, name in (("w", "female"), ("Mujer", "female"), ("homme", "male"), ("uomo", "male")):
        assert sex(text) == name
    for text, known in (
        ("True", True),
        ("1.0", True),
        ("ja", True),
        ("Sí", True),
        ("nein", False),
        ("?", None),
    ):
        assert truth(text) is known
    assert as_matched("0.0") == as_matched("0") == as_matched(0)
    assert as_matched("7") == as_matched(7.0) != as_matched("007")
    assert same_value("45,0", 45)
    assert not same_value("a", "b")


def test_a_group_that_begins_a_formula_is_marked_in_splits_csv_and_read_back(
    tmp_path: Path,
) -> None:
    placed = {name: Placement("test") for name in ("=1+1", "-11", "'plain")}
    names = {name: {name, f"{at}" * 64} for at, name in enumerate(placed)}
    write_places(tmp_path, names, (), placed, {})
    text = (tmp_path / "splits.csv").read_text()
    assert ",'=1+1," in text
    assert ",=1+1," not in text
    assert {name: read_places(tmp_path)[name] for name in placed} == placed


def test_a_workbook_of_photos_to_diagnose(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    rows = [["File", "Age", "sex", "note"], ["a.jpg", 45.0, "w", "x"], ["b.jpg", None, "m", "y"]]
    listed = list_photos(write_workbook(tmp_path / "t.xlsx", {"S": rows}))
    assert [(photo.name, photo.patient.age, photo.patient.sex) for photo in listed.photos] == [
        ("a.jpg", 45, "female"),
        ("b.jpg", None, "male"),
    ]
    assert listed.unused == ("note",)
