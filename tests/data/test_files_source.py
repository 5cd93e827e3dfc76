"""A table beside a folder of images: facts about the person, groups, and what is missing."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from skindx.core.errors import UserError
from skindx.data.manifest import Record, read_manifest, write_manifest
from skindx.data.recipe import load_build_settings
from skindx.data.sources.columns import Columns
from skindx.data.sources.files import FilesSource
from skindx.data.splits.freeze import read_places
from skindx.data.splits.groups import GroupKeys, GroupSettings
from skindx.data.tables.reader import read_table

PLAIN = {"licence": "", "attribution": "", "group": "", "skin_type": ""}


def source(folder: Path, header: str, *lines: str, **columns: object) -> FilesSource:
    (folder / "index.csv").write_text("\n".join((header, *lines)) + "\n")
    settings = {"kind": "files", "path": folder / "index.csv", "files": "images/{}.jpg"}
    return FilesSource.parse({**settings, "columns": {**PLAIN, "file": "id", **columns}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for name in "abc":
        (tmp_path / "images" / f"{name}.jpg").write_bytes(b"\xff\xd8\xff\xe0" + name.encode() * 20)
    (tmp_path / "images" / "notes.txt").write_text("no image")
    return tmp_path


def test_facts_about_the_person_come_in_plain_words(folder: Path) -> None:
    files = source(
        folder,
        "id,label,years,gender,place,how",
        "a,mel,45.0,male,lower extremity,histo",
        "b,nv,999,unknown,Unknown,",
        "c,nv,-3,F,back,follow_up",
        age="years", sex="gender", site="place", confirmed="how",
    )  # fmt: skip
    rows = files.gather(folder / "out")
    assert [(row.age, row.sex, row.site, row.confirmed_by) for row in rows] == [
        (45.0, "male", "leg", "histopathology"),
        (None, "", "", ""),
        (None, "female", "back", "follow-up"),
    ]
    assert [row.url for row in rows] == ["images/a.jpg", "images/b.jpg", "images/c.jpg"]
    (note,) = files.preview().notes
    assert note.endswith(
        "index.csv: 2 ages are no years from 0 to 120 and count as unknown, such as 999, -3."
    )


def test_missing_files_and_files_without_a_line_are_counted_and_named(folder: Path) -> None:
    files = source(folder, "id,label", "a,mel", "gone,nv")
    gone, unlisted = files.preview().notes
    assert "1 of its lines name files that are not there, such as images/gone.jpg" in gone
    assert "2 files beside it stand in no line of it and are left out" in unlisted
    assert [(row.url, row.status) for row in files.gather(folder / "out")] == [
        ("images/a.jpg", "stored"),
        ("images/gone.jpg", "unreadable"),
        ("images/b.jpg", "no-line"),
        ("images/c.jpg", "no-line"),
    ]


def test_several_columns_and_origins_join_groups(folder: Path) -> None:
    lines = ("a,x,s1,g1,https://one.org/1", "b,x,s1,g2,https://two.org/2", "c,y,g1,g3,")
    files = source(folder, "id,label,stem,group,url", *lines, group=["stem", "group"], origin="url")
    rows = files.gather(folder / "out")
    keys = [set(GroupKeys(GroupSettings()).group_keys(row)) for row in rows]
    assert keys[0] & keys[1] == {"files:index.csv/stem=s1"}
    assert not keys[0] & keys[2]  # a stem g1 is no group g1
    names = ["files:index.csv @ one.org", "files:index.csv @ two.org", "files:index.csv"]
    assert [row.source for row in rows] == names


def test_a_wrong_group_column_is_named(folder: Path) -> None:
    with pytest.raises(Exception, match=r"has no column 'lesion'.*`columns.group`"):
        source(folder, "id,label", "a,x", group=["label", "lesion"]).gather(folder / "out")


def test_old_settings_and_manifests_stay_as_they_were(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    assert "age" not in Columns().model_dump()
    record = Record("store/a", "a" * 64, "0" * 16, 9, 9, "x", "g", "train", age=40.5, sex="female")
    write_manifest(tmp_path, [record])
    assert read_manifest(tmp_path) == [record]
    table = pq.read_table(tmp_path / "manifest.parquet").drop_columns(["age", "sex", "site"])
    pq.write_table(table, tmp_path / "manifest.parquet")
    (old,) = read_manifest(tmp_path)
    assert (old.age, old.sex, old.site) == (None, "", "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("id,label,label\na,mel,nv\n", "has two columns of the name 'label'; delete"),
        ("id,label\na,mel\nb,nv,x\n", "line 3, has 3 cells and the header has 2"),
        ("id,label\na,mel\nb\n", "line 3, has 1 cells and the header has 2"),
        ("id,label\na,n\x81vus\n", "save it as `CSV UTF-8`"),
        (
            "id,label\na,mel\na,nv\n",
            r"values \(label: 'mel' and 'nv'\); correct the table, or set `on_conflict: list`",
        ),
    ],
)
def test_a_table_whose_values_would_stand_in_wrong_columns_is_refused(
    folder: Path, text: str, why: str
) -> None:
    files = source(folder, "id,label")
    (folder / "index.csv").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=why):
        files.lines()


def test_what_excel_writes_is_read(folder: Path) -> None:
    files = source(folder, "")
    for text in ("ID;Label;age\r\na;mel;62,5\r\n", "\ufeffid\tlabel\na\tmel\t\t\n"):
        (folder / "index.csv").write_text(text, encoding="utf-8")
        (row,) = files.lines()
        assert (row["id"], row["label"]) == ("a", "mel")
    assert Columns(age="age").known({"age": "62,5"})["age"] == 62.5


def test_a_column_twice_is_refused_in_every_kind_of_table(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"label": "a", "x": {"y": 1}, "label": "b"}\n')
    names = ["label", "label"]
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, names=names), tmp_path / "t.parquet")
    for name in ("t.jsonl", "t.parquet"):
        with pytest.raises(UserError, match="has two columns of the name 'label'; delete"):
            list(read_table(tmp_path / name, Columns()))
    (tmp_path / "t.jsonl").write_text('{"LABEL": {"y": [{"z": 1}]}}\n')
    assert list(read_table(tmp_path / "t.jsonl", Columns())) == [{"label": {"y": [{"z": 1}]}}]


RECIPE = Path(__file__).parents[2] / "data" / "ham10000.yaml"
FROZEN = ["val", "val", "train"]
"""By data/ham10000-splits.csv."""
PARTS = ("HAM10000_images_part_1", "HAM10000_images_part_2")


@pytest.fixture
def ham(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FilesSource]:
    """Make a look-alike of a download with three of HAM10000's images, and return its source."""
    monkeypatch.setenv("SKINDX_REAL", str(tmp_path))
    monkeypatch.chdir(RECIPE.parents[1])

    def made(table: str, *places: str) -> FilesSource:
        names = ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization"]
        lines = [
            names,
            ["HAM_0000550", "ISIC_0024306", "nv", "follow_up", "45.0", "male", "trunk"],
            ["HAM_0003577", "ISIC_0024307", "nv", "follow_up", "50.0", "male", "back"],
            ["HAM_0001477", "ISIC_0024308", "mel", "histo", "", "unknown", "unknown"],
        ]
        if table == "index.csv":
            lines[0] = ["image" if name == "image_id" else name for name in names]
        sign = "\t" if table.endswith(".tab") else ","
        written = {table: "\n".join(map(sign.join, lines)).encode()}
        for place in places:
            image = io.BytesIO()
            Image.new("RGB", (64, 48), (200, 150, int(place[-6:-4]))).save(image, "JPEG")
            written[place] = image.getvalue()
        for name, data in written.items():
            archive, packed, member = name.rpartition(".zip/")
            path = tmp_path / "ham10000" / (f"{archive}.zip" if packed else name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if packed:
                with zipfile.ZipFile(path, "a") as opened:
                    opened.writestr(member, data)
            else:
                path.write_bytes(data)
        (tmp_path / "ham10000" / "hmnist_8_8_L.csv").write_text("pixel0000,label\n1,2\n")
        (files,) = load_build_settings(RECIPE).sources
        assert isinstance(files, FilesSource)
        return files

    return made


@pytest.mark.parametrize(
    ("table", "folders"),
    [
        ("index.csv", ("images",) * 3),
        ("HAM10000_metadata.csv", (PARTS[0], PARTS[0], PARTS[1])),
        ("HAM10000_metadata.csv", tuple(name.lower() for name in (PARTS[0], *PARTS))),
        ("HAM10000_metadata.tab", (PARTS[1], PARTS[0], PARTS[1])),
        ("HAM10000_metadata", (".",) * 3),
        ("HAM10000_metadata.tab", tuple(f"{name}.zip" for name in (PARTS[0], *PARTS))),
        (
            "skin-cancer-mnist-ham10000.zip/HAM10000_metadata.csv",
            tuple(f"skin-cancer-mnist-ham10000.zip/{name}" for name in (PARTS[0], *PARTS)),
        ),
    ],
)
def test_ham10000_is_read_as_everyone_has_it(
    ham: Callable[..., FilesSource], tmp_path: Path, table: str, folders: tuple[str, ...]
) -> None:
    files = ham(table, *(f"{at}/ISIC_002430{n}.jpg" for n, at in enumerate(folders, 6)))
    rows = files.gather(tmp_path / "out")
    assert [row.status for row in rows] == ["stored"] * 3
    assert [row.label for row in rows] == ["nv", "nv", "mel"]
    assert [row.confirmed_by for row in rows] == ["follow-up", "follow-up", "histopathology"]
    assert [(row.age, row.sex, row.site) for row in rows][2] == (None, "", "")
    assert {row.licence for row in rows} == {"CC BY-NC 4.0"}
    settings = load_build_settings(RECIPE)
    keys = GroupKeys(settings.groups)
    groups = [keys.group_keys(row) for row in rows]
    assert groups == [["HAM_0000550"], ["HAM_0003577"], ["HAM_0001477"]]
    assert settings.split.frozen
    places = read_places(settings.split.frozen)
    assert [places[group].split for [group] in groups] == FROZEN
    assert settings.boxes
    assert settings.boxes.optional
    assert not settings.boxes.path.exists()


def test_copies_and_a_partial_download_are_counted(
    ham: Callable[..., FilesSource], tmp_path: Path
) -> None:
    names = [f"{PARTS[0]}/ISIC_0024306.jpg", f"{PARTS[0]}/ISIC_0024399.jpg"]
    names += [f"{PARTS[0].lower()}/ISIC_0024306.jpg", f"{PARTS[0].lower()}/ISIC_0024307.jpg"]
    files = ham("HAM10000_metadata.csv", *names)
    rows = files.gather(tmp_path / "out")
    assert [(row.url, row.status) for row in rows] == [
        (names[0], "stored"),
        (names[3], "stored"),
        ("ISIC_0024308.jpg", "unreadable"),
        (names[1], "no-line"),
    ]
    first, second = files.preview().notes
    assert "1 of its lines name files that are not there, such as ISIC_0024308.jpg." in first
    assert f"no line of it and are left out, such as {names[1]}." in second


def test_a_download_without_images_says_what_to_do(
    ham: Callable[..., FilesSource], tmp_path: Path
) -> None:
    files = ham("HAM10000_metadata.csv")
    with pytest.raises(UserError, match=r"in its folder; put the images there, or"):
        files.preview()
    (tmp_path / "ham10000" / "images.zip").touch()
    with pytest.raises(UserError, match=r"unzip images.zip there, or change `files`"):
        files.gather(tmp_path / "out")
    (tmp_path / "ham10000" / f"{PARTS[0]}.zip").touch()
    with pytest.raises(UserError, match=rf"{PARTS[0]}.zip cannot be read as an archive"):
        files.gather(tmp_path / "out")
    (tmp_path / "ham10000" / "HAM10000_metadata.csv").unlink()
    with pytest.raises(UserError, match=r"no table was found .*index.csv, .*metadata.csv"):
        files.preview()


def test_a_column_by_its_own_name_wins_over_its_other_names(folder: Path) -> None:
    files = source(folder, "id,key,label", "a,b,mel", also={"id": ["key"]})
    assert files.file_of(files.lines()[0]) == "images/a.jpg"
    files = source(folder, "other,KEY,label", "c,b,mel", also={"id": ["key", "other"]})
    assert files.file_of(files.lines()[0]) == "images/b.jpg"
