"""The pieces with which a recipe says how a table is laid out, on layouts that people have."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from workbooks import write_workbook

from skindx.core.errors import UserError
from skindx.data.recipe import BuildSettings, load_build_settings
from skindx.data.sources.files import FilesSource
from skindx.data.sources.url_table import TableSource
from skindx.data.splits.groups import GroupKeys, GroupSettings
from skindx.data.tables.fields import LEFT_OUT

JPEG = b"\xff\xd8\xff\xe0"


def images(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(JPEG + name.encode() * 9)


def recipe(folder: Path, text: str) -> FilesSource:
    """Return the source of a recipe as a person writes it, of at most ten lines."""
    text = f"name: x\nsources:\n  - kind: files\n{text}"
    assert text.count("\n") <= 10
    (folder / "recipe.yaml").write_text(text.replace("HERE", str(folder)), encoding="utf-8")
    (source,) = load_build_settings(folder / "recipe.yaml").sources
    assert isinstance(source, FilesSource)
    return source


def told(source: FilesSource, *facts: str) -> dict[str, Any]:
    """Return status or facts by file, of what is gathered."""
    rows = source.gather(source.table.parent / "out")
    return {
        row.url: tuple(getattr(row, fact) for fact in facts)
        if row.status == "stored"
        else row.status
        for row in rows
    }


def test_isic_2019(tmp_path: Path) -> None:
    """One-hot labels, a second table, cells without an ending."""
    images(tmp_path, *(f"ISIC_2019_Training_Input/ISIC_{n}.jpg" for n in range(5)))
    (tmp_path / "truth.csv").write_text(
        "image,MEL,NV,UNK\nISIC_0,1.0,0.0,0.0\nISIC_1,0.0,1.0,0.0\nISIC_2,0.0,0.0,0.0\n"
        "ISIC_3,1.0,1.0,0.0\nISIC_4,0.0,0.0,1.0\n"
    )
    (tmp_path / "meta.csv").write_text(
        "image,age_approx,lesion_id,sex\nISIC_0,55.0,BCN_1,male\nISIC_1,,BCN_2,female\n"
        "ISIC_2,,,\nISIC_3,,,\nISIC_4,,,\nISIC_9,1,,\n"
    )
    source = recipe(
        tmp_path,
        """\
    path: HERE/truth.csv
    files: ISIC_2019_Training_Input
    join: [{path: HERE/meta.csv, key: image}]
    one_hot: {MEL: melanoma, NV: nevus, UNK: unknown}
    labels: {unknown: null}
    columns: {file: image, group: lesion_id, age: age_approx, sex: sex}
""",
    )
    found = {Path(url).stem: value for url, value in told(source, "label", "group", "age").items()}
    assert found == {
        "ISIC_0": ("melanoma", "BCN_1", 55.0),
        "ISIC_1": ("nevus", "BCN_2", None),
        "ISIC_2": "no-label",
        "ISIC_3": "conflict",
        "ISIC_4": "unmapped-label",
    }
    notes = " ".join(source.preview().notes)
    assert "1 line left out as conflict" in notes
    assert "meta.csv: 1 line of no line in" in notes


def test_pad_ufes_20(tmp_path: Path) -> None:
    """Parts of images by a pattern, truth values as words, a map of values."""
    images(tmp_path, "images/imgs_part_1/P1.png", "images/imgs_part_2/P2.png")
    (tmp_path / "metadata.csv").write_text(
        "patient_id,lesion_id,fitspatrick,gender,diagnostic,img_id,biopsed\n"
        "PAT_1,11,3.0,FEMALE,BCC,P1.png,True\nPAT_2,12,,,NEV,P2.png,False\n"
    )
    source = recipe(
        tmp_path,
        """\
    path: HERE/metadata.csv
    files: images/imgs_part_*
    values: {biopsed: {true: histopathology, false: null}}
    labels: {BCC: basal cell carcinoma, NEV: nevus}
    columns: {file: img_id, label: diagnostic, group: [patient_id, lesion_id], sex: gender,
      skin_type: fitspatrick, confirmed: biopsed}
""",
    )
    assert told(source, "label", "group", "skin_type", "sex", "confirmed_by") == {
        "images/imgs_part_1/P1.png": (
            *("basal cell carcinoma", "patient_id=PAT_1\nlesion_id=11"),
            *(3, "female", "histopathology"),
        ),
        "images/imgs_part_2/P2.png": ("nevus", "patient_id=PAT_2\nlesion_id=12", None, "", ""),
    }


def test_scin(tmp_path: Path) -> None:
    """A label of a written dict in a second table, and three columns of images."""
    images(tmp_path, *(f"dataset/images/{n}.png" for n in ("1", "2", "3", "4")))
    (tmp_path / "dataset/cases.csv").write_text(
        "case_id,image_1_path,image_2_path\n-11,dataset/images/1.png,dataset/images/2.png\n"
        "-12,dataset/images/3.png,\n-13,dataset/images/4.png,\n"
    )
    (tmp_path / "labels.csv").write_text(
        "case_id,weighted\n-11,\"{'Eczema': 0.7, 'Psoriasis': 0.3}\"\n-12,{}\n"
        "-13,\"{'Eczema': 0.5, 'Psoriasis': 0.5}\"\n"
    )
    source = recipe(
        tmp_path,
        """\
    path: HERE/dataset/cases.csv
    files_in: HERE
    join: [{path: HERE/labels.csv, key: case_id}]
    one_hot: weighted
    images: [{file: image_1_path, modality: clinical}, {file: image_2_path, modality: dermoscopic}]
    columns: {group: ""}
""",
    )
    assert told(source, "label", "group", "modality") == {
        "dataset/images/1.png": ("Eczema", "row=row 1", "clinical"),
        "dataset/images/2.png": ("Eczema", "row=row 1", "dermoscopic"),
        "dataset/images/3.png": "no-label",
        "dataset/images/4.png": "conflict",
    }
    assert source.stated_modality() == "mixed"
    one, two, *_ = source.gather(tmp_path / "out")
    keys = GroupKeys(GroupSettings())
    assert keys.group_keys(one) == keys.group_keys(two) != []


def test_ph2_has_a_folder_for_each_image(tmp_path: Path) -> None:
    images(tmp_path, "PH2 images/IMD002/IMD002_Dermoscopic_Image/IMD002.bmp")
    rows = [
        *([], ["PH2", None]),
        ["Image\nName", "Common\nNevus", "Atypical\nNevus", "Melanoma"],
        ["IMD002", None, "X", None],
    ]
    write_workbook(tmp_path / "PH2.xlsx", {"Folha1": rows})
    source = recipe(
        tmp_path,
        """\
    path: HERE/PH2.xlsx
    files: PH2 images/{}/{}_Dermoscopic_Image/{}.bmp
    one_hot: [Common Nevus, Atypical Nevus, Melanoma]
    columns: {file: Image Name, group: ""}
""",
    )
    file = "PH2 images/IMD002/IMD002_Dermoscopic_Image/IMD002.bmp"
    assert told(source, "label") == {file: ("Atypical Nevus",)}


def test_a_workbook_whose_pictures_have_numbers_and_whose_people_have_a_sheet(
    tmp_path: Path,
) -> None:
    images(tmp_path, "pictures/0007.jpg", "pictures/0008.jpg")
    sheets = {
        "Pictures": [["picture", "diagnosis", "who"], [7, "nevus", 1], [8, "melanoma", 2]],
        "People": [["id", "age"], [1, 45], [2, 60.5]],
    }
    write_workbook(tmp_path / "t.xlsx", sheets)
    source = recipe(
        tmp_path,
        """\
    path: HERE/t.xlsx
    sheet: Pictures
    files: pictures/{:04}.jpg
    join: [{path: HERE/t.xlsx, sheet: People, key: who, to: id}]
    columns: {file: picture, label: diagnosis, group: who, age: age}
""",
    )
    assert told(source, "label", "group", "age") == {
        "pictures/0007.jpg": ("nevus", "1", 45.0),
        "pictures/0008.jpg": ("melanoma", "2", 60.5),
    }


def test_isic_cli_and_levels_of_a_hierarchy(tmp_path: Path) -> None:
    images(tmp_path, *(f"{n}.jpg" for n in "abc"))
    (tmp_path / "metadata.csv").write_text(
        "isic_id,image_type,diagnosis_1,diagnosis_2,diagnosis_3\n"
        "a,dermoscopic,Benign,Melanocytic,Nevus\nb,dermoscopic,Malignant,,\nc,clinical,Benign,,\n"
    )
    source = recipe(
        tmp_path,
        """\
    path: HERE/metadata.csv
    files: "{}.jpg"
    levels: [diagnosis_3, diagnosis_2, diagnosis_1]
    where: {image_type: dermoscopic}
    labels: {Melanocytic: nevus}
    columns: {file: isic_id, group: ""}
""",
    )
    assert told(source, "label") == {
        "a.jpg": ("nevus",),
        "b.jpg": ("Malignant",),
        "c.jpg": "filtered",
    }
    assert any("do not name stay as they are: 'Malignant' (1)" in n for n in source.preview().notes)


def test_paths_of_windows(tmp_path: Path) -> None:
    images(tmp_path, "Bilder/Läsion 1.JPG")
    (tmp_path / "t.csv").write_bytes(
        "Datei;Diagnose;Biopsie\r\nBilder\\Läsion 1.JPG;Nävus ;Ja\r\n".encode("cp1252")
    )
    source = recipe(
        tmp_path,
        "    path: HERE/t.csv\n    where: {Biopsie: true}\n"
        '    columns: {file: Datei, label: Diagnose, group: ""}\n',
    )
    assert told(source, "label") == {"Bilder/Läsion 1.JPG": ("Nävus",)}


def source_of(folder: Path, text: str, **settings: Any) -> FilesSource:
    (folder / "t.csv").write_text(text)
    raw = {"kind": "files", "path": folder / "t.csv", "columns": {"group": ""}, **settings}
    return FilesSource.parse(raw)


@pytest.mark.parametrize(
    ("joined", "settings", "why"),
    [
        ("key,label\n1,a\n1,b\n", {}, "has '1' twice in its column 'key' with different values"),
        ("key,label\n9,a\n", {}, r"no value of the column 'key' .*such as '1'.*such as '9'"),
        ("key,sex\n1,m\n", {}, r"none of the columns that the recipe names \(.*label"),
        ("id,label\n1,a\n", {}, "has no column 'key'"),
        ("key,label\n1,a\n", {"where": {"qc": "1"}}, "has no column 'qc', which the recipe names"),
    ],
)
def test_a_join_that_cannot_be_meant_is_refused(
    tmp_path: Path, joined: str, settings: dict[str, Any], why: str
) -> None:
    (tmp_path / "j.csv").write_text(joined)
    join = [{"path": tmp_path / "j.csv", "key": "key"}]
    with pytest.raises(UserError, match=why):
        source_of(tmp_path, "file,key\na.jpg,1\n", join=join, **settings).lines()


def test_tables_that_contradict_each_other(tmp_path: Path) -> None:
    images(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    (tmp_path / "j.csv").write_text("key,label\n1,nevus\n2,melanoma\n3,nevus\n3,scar\n")
    text = "file,key,label\na.jpg,1,Nevus\nb.jpg,2,nevus\nc.jpg,3,nevus\n"
    join = [{"path": tmp_path / "j.csv", "key": "key"}]
    with pytest.raises(UserError, match="'3' twice"):
        source_of(tmp_path, text, join=join).lines()
    lines = source_of(tmp_path, text, join=join, on_conflict="list").lines()
    assert [line.get(LEFT_OUT, ("",))[0] for line in lines] == ["", "conflict", "conflict"]
    (tmp_path / "j.csv").write_text("key,label\n2,melanoma\n")
    with pytest.raises(UserError, match=r"j\.csv says label 'melanoma', and the line 'nevus'"):
        source_of(tmp_path, text, join=join).lines()


def test_a_star_behind_the_cell_and_a_folder_that_is_not_there_are_refused(tmp_path: Path) -> None:
    for files, why in (
        ("{}/*.jpg", r"after \{column\}"),
        ("part_*/{}.jpg", r"the folder 'part_\*'"),
    ):
        with pytest.raises(UserError, match=why):
            source_of(tmp_path, "file,label\na,x\n", files=files).preview()
    with pytest.raises(UserError, match="files"):
        source_of(tmp_path, "file,label\na,x\n", files="{name}.jpg")


def test_a_table_of_addresses_has_the_same_pieces(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "url,qc,label\nhttps://a.org/1.jpg,,acne vulgaris\nhttps://a.org/2.jpg,3 Wrong,acne\n"
        "https://a.org/3.jpg,1 Good,rosacea\n"
    )
    source = TableSource.parse(
        {
            "kind": "table",
            "path": tmp_path / "t.csv",
            "where_not": {"qc": ["3 Wrong"]},
            "labels": {"acne vulgaris": "acne"},
        }
    )
    rows = [(row.label, row.status) for row in source.begin()]
    assert rows == [("acne", ""), ("acne", "filtered"), ("rosacea", "")]
    assert source.preview().labels == ["acne", "rosacea"]


def test_a_saved_recipe_with_all_pieces_reads_back(tmp_path: Path) -> None:
    raw = {
        "name": "x",
        "sources": [
            {
                "kind": "files",
                "path": "t.csv",
                "join": [{"path": "j.csv", "key": "k"}],
                "where": {"a": ["1", "2"]},
                "one_hot": {"M": "melanoma"},
                "labels": {"x": None, "*": "other"},
                "images": [{"file": "f", "modality": "clinical"}],
                "values": {"b": {"true": "histopathology"}},
            }
        ],
    }
    settings = BuildSettings.parse(raw)
    settings.save(tmp_path / "r.yaml")
    assert BuildSettings.load(tmp_path / "r.yaml") == settings
    old = {"name": "x", "sources": [{"kind": "files", "path": "t.csv"}]}
    BuildSettings.parse(old).save(tmp_path / "old.yaml")
    saved = yaml.safe_load((tmp_path / "old.yaml").read_text())["sources"][0]
    assert set(saved) == {"kind", "path", "columns"}


@given(
    weights=st.lists(
        st.lists(st.sampled_from(["", "0", "1", "1.0", "True", "False", "x", "0,5"]), min_size=3,
                 max_size=3),
        min_size=1,
        max_size=20,
    )
)  # fmt: skip
def test_every_line_has_one_class_or_a_reason(
    weights: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("hot")
    rows = "".join(f'f{n},"{a}","{b}","{c}"\n' for n, (a, b, c) in enumerate(weights))
    source = source_of(folder, f"file,A,B,C\n{rows}", one_hot=["A", "B", "C"])
    value = {"": 0.0, "0": 0, "False": 0, "1": 1, "1.0": 1, "True": 1, "x": 1, "0,5": 0.5}
    lines = source.lines()
    assert len(lines) == len(weights)
    for line, cells in zip(lines, weights, strict=True):
        numbers = [value[each] for each in cells]
        best = [name for name, number in zip("ABC", numbers, strict=True) if number == max(numbers)]
        if max(numbers) > 0 and len(best) == 1:
            assert line["label"] == best[0]
            assert LEFT_OUT not in line
        else:
            assert line[LEFT_OUT][0] == ("no-label" if max(numbers) == 0 else "conflict")
    assert Counter(LEFT_OUT in line for line in lines).total() == len(weights)


def test_an_address_with_two_labels_is_said_or_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "url,label,age\nhttps://a.org/1.jpg,acne,200\nhttps://a.org/1.jpg,rosacea,\n"
    )
    raw = {"kind": "table", "path": tmp_path / "t.csv", "columns": {"age": "age"}}
    said = " ".join(TableSource.parse(raw).preview().notes)
    assert "1 image with several labels, such as https://a.org/1.jpg" in said
    assert "1 ages are no years" in said
    with pytest.raises(UserError, match="different labels for"):
        TableSource.parse({**raw, "on_conflict": "refuse"}).check()


def test_two_files_of_one_name_are_no_copies(tmp_path: Path) -> None:
    images(tmp_path, "part_1/a.jpg", "part_2/a.jpg", "part_1/b.jpg")
    (tmp_path / "part_2/b.jpg").write_bytes((tmp_path / "part_1/b.jpg").read_bytes())
    text = "file,label\na,x\nb,x\n"
    with pytest.raises(UserError, match=r"part_1/a\.jpg and part_2/a\.jpg are two files"):
        source_of(tmp_path, text, files="part_*").preview()
    source = source_of(tmp_path, text, files="part_*", on_conflict="list")
    assert told(source, "label") == {"part_1/a.jpg": "conflict", "part_1/b.jpg": ("x",)}


def test_a_line_that_a_filter_leaves_out_contradicts_nothing(tmp_path: Path) -> None:
    images(tmp_path, "a.jpg")
    text = "file,label,reader\na.jpg,nevus,1\na.jpg,melanoma,2\n"
    lines = source_of(tmp_path, text, where={"reader": "1"}).lines()
    assert [(line["label"], LEFT_OUT in line) for line in lines] == [
        ("nevus", False),
        ("melanoma", True),
    ]
