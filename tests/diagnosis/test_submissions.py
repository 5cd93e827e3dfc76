"""Submission files: the challenges' columns, classes that share one, refused photos, lesions."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from command_line import Skindx
from skin_photo import skin_photo

from skindx.core.errors import UserError
from skindx.diagnosis.photo_list import (
    CHALLENGES,
    ChallengeName,
    columns_of,
    write_submission,
)
from skindx.taxonomy import load_taxonomy

HAM = load_taxonomy("ham10000").keys
ISIC9 = load_taxonomy("isic9").keys
OTHERS = ["=BEN_OTH", "=INF", "=MAL_OTH", "=SCCKA"]


def row(file: str, keys: tuple[str, ...], *shares: float, **more: Any) -> dict[str, Any]:
    rest = (1 - sum(shares)) / max(len(keys) - len(shares), 1)
    values = [*shares, *[rest] * (len(keys) - len(shares))]
    named = {f"probability_{key}": p for key, p in zip(keys, values, strict=True)}
    return {"file": file, "first": keys[0], "familiarity": None, **named, **more}


def refused(file: str) -> dict[str, Any]:
    return {"file": file, "first": None, "refused": "blur", "reason": "It is blurred."}


def write(
    out: Path,
    name: ChallengeName,
    rows: list[dict[str, Any]],
    keys: tuple[str, ...],
    given: Sequence[str] = (),
) -> None:
    write_submission(out, name, rows, columns_of(name, keys, given))


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_columns_are_those_of_the_challenges() -> None:
    assert {name: ",".join([c.row, *c.columns, c.unknown]) for name, c in CHALLENGES.items()} == {
        "isic2018": "image,MEL,NV,BCC,AKIEC,BKL,DF,VASC,",
        "isic2019": "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK",
        "isic2020": "image_name,target,",
        "milk10k": "lesion_id,AKIEC,BCC,BEN_OTH,BKL,DF,INF,MAL_OTH,MEL,NV,SCCKA,VASC,",
    }
    for name in get_args(ChallengeName):  # a bundle whose classes are the columns needs no words
        keys = tuple(CHALLENGES[name].columns)
        assert columns_of(name, keys) == {key: key for key in keys}


def test_classes_of_one_column_are_added(tmp_path: Path) -> None:
    # AK .1, BCC .2, DF .3, MEL .05, NV .15, PBK .04, SK .06, SCC .07, VASC .03
    shares = (0.1, 0.2, 0.3, 0.05, 0.15, 0.04, 0.06, 0.07, 0.03)
    rows = [row("x/ISIC_1.jpg", ISIC9, *shares, familiarity=0.8), refused("ISIC_2.png")]
    write(tmp_path / "a.csv", "isic2019", rows, ISIC9)
    first, second = table(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().startswith("image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK\n")
    assert {key: float(value) for key, value in first.items() if key != "image"} == pytest.approx(
        {"MEL": 0.05, "NV": 0.15, "BCC": 0.2, "AK": 0.1, "BKL": 0.1, "DF": 0.3, "VASC": 0.03,
         "SCC": 0.07, "UNK": 0.1}
    )  # fmt: skip
    assert (first["image"], second["image"], second["UNK"], second["MEL"]) == (
        *("ISIC_1", "ISIC_2", "1.000000000", "0.000000000"),
    )


def test_unknown_stays_below_the_answer(tmp_path: Path) -> None:
    rows = [row("a.jpg", ISIC9, *[1 / 9] * 9, familiarity=0.01)]
    write(tmp_path / "a.csv", "isic2019", rows, ISIC9)
    (line,) = table(tmp_path / "a.csv")
    assert float(line["UNK"]) == pytest.approx(2 / 9)  # of BKL, which holds two classes


def test_uncovered_classes_and_columns_are_refused_and_can_be_given(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Squamous_Cell_Carcinoma has no column in isic2018"):
        columns_of("isic2018", ISIC9)
    with pytest.raises(UserError, match="Actinic_Keratosis_Bowen has no column in isic2019"):
        columns_of("isic2019", HAM)
    with pytest.raises(UserError, match=r"matches the column SCC of isic2019"):
        columns_of("isic2019", HAM, ["Actinic_Keratosis_Bowen=AK"])
    for wrong in ("Nevus", "Nevus=NVX", "Mole=NV"):
        with pytest.raises(UserError, match="write CLASS=COLUMN"):
            columns_of("isic2018", HAM, [wrong])
    given = ["Squamous_Cell_Carcinoma="]
    shares = (0.1, 0.2, 0.3, 0.05, 0.15, 0.04, 0.06, 0.07, 0.03)
    rows = [row("a.jpg", ISIC9, *shares), row("b.jpg", ISIC9, *[0.0] * 7, 1.0, 0.0), refused("c")]
    write(tmp_path / "a.csv", "isic2018", rows, ISIC9, given)
    first, second, third = table(tmp_path / "a.csv")
    assert float(first["BCC"]) == pytest.approx(0.2 / 0.93)
    # Certain of what the challenge has no column for, and refused: no column before another.
    assert second["MEL"] == second["VASC"] == third["MEL"] == "0.142857143"


def test_melanoma_alone(tmp_path: Path) -> None:
    rows = [row("a.jpg", HAM, 0.1, 0.1, 0.1, 0.1, 0.4), refused("b.jpg")]
    write(tmp_path / "a.csv", "isic2020", rows, HAM)
    expected = "image_name,target\na,0.400000000\nb,0.500000000\n"
    assert (tmp_path / "a.csv").read_text() == expected


def test_photos_of_a_lesion_are_averaged(tmp_path: Path) -> None:
    rows = [
        row("in/IL_1/ISIC_1.jpg", HAM, 0.2, 0.2, 0.1, 0.1, 0.3, 0.05, 0.05),
        row("in\\IL_1\\ISIC_2.jpg", HAM, 0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05),
        refused("in/IL_1/ISIC_3.jpg"),
        refused("in/IL_2/ISIC_4.jpg"),
    ]
    write(tmp_path / "a.csv", "milk10k", rows, HAM, OTHERS)
    first, second = table(tmp_path / "a.csv")
    assert (first["lesion_id"], second["lesion_id"]) == ("IL_1", "IL_2")
    assert [first[c] for c in ("AKIEC", "MEL", "INF")] == [
        "0.300000000",
        "0.200000000",
        "0.000000000",
    ]
    assert float(second["INF"]) == pytest.approx(1 / 11, abs=1e-8)


@pytest.mark.parametrize(
    ("files", "name", "why"),
    [
        (["a/x.jpg", "b/x.png"], "isic2018", "two photos have the name x"),
        (["x.jpg"], "milk10k", "has no folder, which names its lesion"),
        ([""], "isic2018", "has no file name"),
    ],
)
def test_bad_names_are_one_sentence_and_leave_no_file(
    tmp_path: Path, files: list[str], name: ChallengeName, why: str
) -> None:
    rows = [row(file, HAM, 1.0) for file in files]
    given = OTHERS if name == "milk10k" else []
    with pytest.raises(UserError, match=why):
        write(tmp_path / "a.csv", name, rows, HAM, given)
    assert not list(tmp_path.iterdir())


def test_a_name_is_no_formula(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "isic2020", [row("=cmd().jpg", HAM, 1.0)], HAM)
    assert table(tmp_path / "a.csv")[0]["image_name"] == "'=cmd()"


@pytest.mark.parametrize("name", get_args(ChallengeName))
def test_values_are_as_the_scorer_wants_them(tmp_path: Path, name: ChallengeName) -> None:
    """isic-challenge-scoring wants floats from 0 to 1 in all columns, and none empty."""
    keys = tuple(CHALLENGES[name].columns)
    rows = [row("IL_0/ISIC_0.jpg", keys, 1.0), refused("IL_1/ISIC_1.jpg")]
    write(tmp_path / "a.csv", name, rows, keys)
    for line in table(tmp_path / "a.csv"):
        values = list(line.values())[1:]
        assert all("." in value and 0 <= float(value) <= 1 for value in values)


def test_the_command_writes_one(skindx: Skindx, tiny_bundle: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "ISIC_1.jpg").write_bytes(skin_photo(seed=1))
    (photos / "ISIC_2.jpg").write_bytes(b"no photo")
    command = ("diagnose", tiny_bundle, photos, "--format", "isic2018", "--out")
    code, _, problem = skindx(*command, tmp_path / "a.csv")
    assert (code, "Squamous_Cell_Carcinoma has no column" in problem) == (2, True)
    code, _, problem = skindx(*command, tmp_path / "a.jsonl")
    assert (code, "must be a CSV file, but --out is" in problem) == (2, True)
    given = ("--column", "Squamous_Cell_Carcinoma=")
    code, _, problem = skindx(*command, tmp_path / "a.csv", *given)
    assert code == 0, problem
    first, second = table(tmp_path / "a.csv")
    assert (first["image"], second["image"], second["NV"]) == ("ISIC_1", "ISIC_2", "0.142857143")
    assert sum(map(float, list(first.values())[1:])) == pytest.approx(1, abs=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "photos"]
