"""Words that stand for no value make no group, no label and no fact; crowded ids are named."""

import json
from pathlib import Path

import numpy as np
import pytest
from paint_images import encode, paint

from skindx.core.errors import UserError
from skindx.data.build.build_dataset import build
from skindx.data.copies.deduplicate import LabelledImage, distinct
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import read_issues, read_manifest
from skindx.data.placeholders import is_no_label, is_placeholder
from skindx.data.recipe import BuildSettings
from skindx.data.screening.screen import Screened
from skindx.data.sources.columns import sex, skin_type
from skindx.data.splits.groups import GroupKeys, GroupSettings, GroupTable, group_names

NOTHING = """unknown|UNKNOWN|Unk|NA|n/a|N.A.|#N/A|<NA>|nan|NaN|none|(none)|null|-|--|–|?|???|.|…|_
ANONYMOUS|anonymized|Anonymisiert|de-identified|not available|Not_Applicable|missing|XXXX|redacted
unbekannt|keine Angabe|inconnu|non renseigné|desconocida|anónimo|ＮＡ| n/a |no data|NULL"""
SOMETHING = (
    "P1|0|0000|7|other|normal|healthy|nana|Nanette|none of these|NAEVUS|x|A-1|+|unknown primary"
)


@pytest.mark.parametrize("text", NOTHING.replace("\n", "|").split("|"))
def test_a_placeholder_is_no_value(text: str) -> None:
    assert is_placeholder(text)
    assert is_no_label(text)


@pytest.mark.parametrize("text", SOMETHING.split("|"))
def test_a_value_is_no_placeholder(text: str) -> None:
    assert not is_placeholder(text)
    assert not is_no_label(text)


def test_an_empty_cell_is_no_label_of_its_own() -> None:
    assert is_placeholder("")
    assert not is_no_label("")


def rows(*groups: str) -> list[LabelledImage]:
    sound = Screened(None, "", 9, 9, np.zeros((2, 8), np.uint64))
    return [
        LabelledImage(
            LedgerRow(f"{n}.jpg", "a", "stored", sha256=f"s{n}", source="t", group=group),
            "a",
            sound,
        )
        for n, group in enumerate(groups)
    ]


def groups_of(*groups: str) -> tuple[list[str], list[str]]:
    """Return the name of each image's group, and what is said of the ids."""
    images, keys = distinct(rows(*groups)), GroupKeys(GroupSettings())
    notes = keys.notes(images)
    named = group_names(images, np.empty((0, 3), np.int64), keys, 6)
    return [named[f"s{n}"] for n in range(len(groups))], notes


def test_placeholders_make_no_group_and_are_counted() -> None:
    named, notes = groups_of(
        "P1", "P1", "NA", "NA", "unknown", "lesion=n/a\npatient=P2", "patient=P2"
    )
    assert named == ["t/P1", "t/P1", "s2", "s3", "s4", "t/patient=P2", "t/patient=P2"]
    assert notes == [
        "t: ids of 4 images are placeholders and make no group: 'NA' (2), 'unknown' (1), "
        "'lesion=n/a' (1)."
    ]


def test_ids_of_zeros_are_one_only_where_the_source_counts_from_zero() -> None:
    assert groups_of("0000", "0000", "7", "8")[0] == ["s0", "s1", "t/7", "t/8"]
    assert groups_of("0", "0", "17", "8")[0] == ["s0", "s1", "t/17", "t/8"]
    assert groups_of("0000", "0000", "0001")[0] == ["t/0000", "t/0000", "t/0001"]
    assert groups_of("0", "0", "1")[0] == ["t/0", "t/0", "t/1"]


def test_ids_that_fold_alike_are_one_group() -> None:
    assert set(groups_of("p1", "P1", "Ｐ1", "P1\u200b")[0]) == {"t/P1"}


def test_an_id_of_more_images_than_a_person_has_is_named() -> None:
    many = [f"P{n}" for n in range(14)]
    (note,) = groups_of(*many, *["ZZZ"] * 12)[1]
    assert note.startswith("t: 12 of 26 images bear the id 'ZZZ', and half of the ids at most 1:")
    assert groups_of(*many, *["ZZZ"] * 11)[1] == []
    assert groups_of(*[f"P{n % 4}" for n in range(80)])[1] == []  # a study of 20 photos a person
    assert len(groups_of(*["ZZZ"] * 12)[1]) == 1


def test_a_table_of_groups_has_no_placeholders(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    table = GroupTable(path=path, key_column="image", group_column="who")

    def of(text: str, *images: str) -> list[list[str]]:
        path.write_text(f"image,who\n{text}")
        keys = GroupKeys(GroupSettings(tables=(table,)))
        return [keys.group_keys(LedgerRow(f"{name}.jpg", "a", "stored")) for name in images]

    assert of("A0,n/a\nA1,n/a\nB2,P\nb3,P\n", "A0", "A1", "b2", "B3") == [[], [], ["P"], ["P"]]
    # Zeros stand for nobody, unless the table counts on from them.
    assert of("A,00\nB,00\nC,1\n", "A", "B", "C") == [[], [], ["1"]]
    assert of("A,00\nB,00\nC,01\n", "A", "B", "C") == [["00"], ["00"], ["01"]]


def test_a_build_takes_no_placeholder_for_a_class_or_a_patient(tmp_path: Path) -> None:
    lines = ["File,label,patient"]
    for n in range(20):
        (tmp_path / f"{n}.jpg").write_bytes(encode(paint(n), quality=92))
        label = ("nevus", "rosacea", "nan" if n % 3 else "N/A")[n % 5 % 3]
        lines.append(f"{n}.jpg,{label},{'unknown' if n > 3 else n}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    columns = {"group": "patient", "licence": "", "attribution": "", "skin_type": ""}
    raw = {"kind": "files", "path": str(tmp_path / "t.csv"), "columns": columns}
    settings = BuildSettings.parse({"name": "n", "sources": [raw], "workers": 1})
    out = tmp_path / "out"
    build(settings, out)
    records = read_manifest(out)
    assert {record.label for record in records} == {"nevus", "rosacea"}
    assert len({record.group for record in records}) == len(records)
    nameless = [issue for issue in read_issues(out) if issue.reason == "no-label"]
    assert {issue.label for issue in nameless} == {"nan", "N/A"}
    assert len(nameless) + len(records) == 20
    notes = " ".join(json.loads((out / "summary.json").read_text())["notes"])
    assert "placeholders and make no group: 'unknown'" in notes
    assert "images are left out whose label names no class: 'N/A'" in notes
    (tmp_path / "t.csv").write_text("file,label,patient\n0.jpg,nan,1\n1.jpg,?,2\n")
    with pytest.raises(UserError, match="has a label with a class name; the labels look like"):
        build(settings, tmp_path / "other")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("3.0", 3), ("Type III", 3), ("FST III", 3), ("FST_4", 4), ("Skin type 2", 2)),
        *(("6,0", 6), ("Typ IV", 4), ("v", 5), ("3.5", None), ("-3", None), ("12", None)),
        *(("III-IV", None), ("IIII", None), ("type", None), ("", None)),
    ],
)
def test_skin_types_as_tables_write_them(text: str, number: int | None) -> None:
    assert skin_type(text) == number


def test_sexes_as_tables_write_them() -> None:
    assert {sex(text) for text in ("f", "W", "weiblich", "Female", "femme", "mujer")} == {"female"}
    assert {sex(text) for text in ("m", "Mann", "männlich", "HOMME", "hombre")} == {"male"}
    assert {sex(text) for text in ("", "unknown", "1", "fm")} == {""}
