"""A folder of isic-cli: labels by level, groups, licences, sites, and lines that are left out."""

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paint_images import encode, paint
from pydantic import TypeAdapter

from skindx.core.errors import UserError
from skindx.core.progress import silent
from skindx.data.build.build_run import open_run
from skindx.data.recipe import BuildSettings, load_build_settings
from skindx.data.sources.isic import IsicFolder
from skindx.data.sources.source_kinds import Source
from skindx.taxonomy import load_taxonomy
from skindx.workers.task_runner import LocalRunner

MELANOMA = {
    "diagnosis_1": "Malignant",
    "diagnosis_2": "Malignant melanocytic proliferations (Melanoma)",
    "diagnosis_3": "Melanoma Invasive",
    "diagnosis_4": "Melanoma Invasive, Superficial spreading",
}
IN_SITU = MELANOMA | {"diagnosis_3": "Melanoma in situ", "diagnosis_4": ""}
NEVUS = {
    "diagnosis_1": "Benign",
    "diagnosis_2": "Benign melanocytic proliferations",
    "diagnosis_3": "Nevus",
    "diagnosis_4": "Nevus, Congenital",
    "diagnosis_5": "Nevus, Congenital, by history",
}
SQUAMOUS = {
    "diagnosis_1": "Malignant",
    "diagnosis_2": "Malignant epidermal proliferations",
    "diagnosis_3": "Squamous cell carcinoma, Invasive",
}


def download(folder: Path, *lines: dict[str, str], images: bool = True) -> Path:
    """Write a folder as isic-cli does: ISIC_0.jpg and so on, and metadata.csv."""
    folder.mkdir(exist_ok=True)
    written = [
        {"isic_id": f"ISIC_{n}", "attribution": "Hospital", "copyright_license": "CC-BY"} | line
        for n, line in enumerate(lines)
    ]
    names = ["isic_id", "attribution", "copyright_license"]
    names += sorted({name for line in written for name in line} - set(names))
    with (folder / "metadata.csv").open("w", newline="", encoding="utf8") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows(written)
    for n in range(len(lines) if images else 0):
        (folder / f"ISIC_{n}.jpg").write_bytes(encode(paint(n)))
    return folder


def source(folder: Path, taxonomy: str = "", **more: Any) -> IsicFolder:
    read = TypeAdapter(Source).validate_python({"kind": "isic", "path": folder, **more})
    assert isinstance(read, IsicFolder)
    return read.for_taxonomy(load_taxonomy(taxonomy) if taxonomy else None)


def test_a_line_becomes_a_row(tmp_path: Path) -> None:
    folder = download(
        tmp_path / "isic",
        MELANOMA | {
            "patient_id": "IP_1", "lesion_id": "IL_1", "age_approx": "85+", "sex": "female",
            "anatom_site_1": "Head and neck", "anatom_site_2": "Head", "anatom_site_3": "Scalp",
            "anatom_site_4": "Vertex of scalp", "diagnosis_confirm_type": "histopathology",
            "fitzpatrick_skin_type": "II", "image_type": "dermoscopic",
        },
        NEVUS | {
            "patient_id": "", "lesion_id": "IL_1", "copyright_license": "CC-0", "sex": "",
            "anatom_site_general": "posterior torso", "concomitant_biopsy": "True",
            "attribution": "Ünï", "image_type": "dermoscopic",
        },
    )  # fmt: skip
    files = source(folder, "isic9")
    first, second = files.gather(tmp_path / "out")
    assert (first.url, first.label, first.status) == (
        *("ISIC_0.jpg", "Melanoma Invasive", "stored"),
    )
    assert (first.group, second.group) == ("IP_1\nIL_1", "IL_1")
    assert (first.licence, second.licence) == ("CC BY 4.0", "CC0 1.0")
    assert (second.creator, second.attribution) == ("Ünï", "Ünï")
    assert (first.age, first.sex, first.site, first.skin_type) == (85, "female", "scalp", 2)
    assert (second.age, second.sex, second.site) == (None, "", "back")
    assert (first.confirmed_by, second.confirmed_by) == ("histopathology", "histopathology")
    assert (first.source, first.page_url) == (
        *("isic", "https://api.isic-archive.com/images/ISIC_0/"),
    )
    assert files.stated_modality() == "dermoscopic"


@pytest.mark.parametrize(
    ("line", "taxonomy", "more", "label"),
    [
        (MELANOMA, "ham10000", {}, "Melanoma Invasive"),
        (NEVUS, "ham10000", {}, "Nevus"),
        (NEVUS, "", {}, "Nevus, Congenital, by history"),
        (NEVUS, "", {"deepest": 4}, "Nevus, Congenital"),
        (NEVUS, "", {"deepest": 1}, "Benign"),
        (IN_SITU, "isic9", {}, "Melanoma in situ"),  # no class has it, and its issue names it
        (IN_SITU, "isic9", {"labels": {"melanoma IN SITU": "Melanoma"}}, "Melanoma"),
        (NEVUS, "isic9", {"labels": {"Benign": "Nevus"}}, "Nevus"),  # the most specific first
        (SQUAMOUS, "ham10000", {}, "Squamous cell carcinoma, Invasive"),
        ({"diagnosis": "nevus"}, "isic9", {}, "nevus"),  # of older downloads
        ({"diagnosis_1": ""}, "isic9", {}, ""),
    ],
)
def test_the_most_specific_level_that_the_taxonomy_knows(
    tmp_path: Path, line: dict[str, str], taxonomy: str, more: dict[str, Any], label: str
) -> None:
    if label == "Melanoma Invasive":
        line = {key: text for key, text in line.items() if key != "diagnosis_4"}
    files = source(download(tmp_path / "isic", line), taxonomy, **more)
    (row,) = files.gather(tmp_path / "out")
    assert (row.label, row.status) == (label, "stored" if label else "no-label")


def test_what_is_no_photo_is_left_out_by_name(tmp_path: Path) -> None:
    types = ("dermoscopic", "RCM: tile", "clinical: close-up", "TBP tile: close-up", "")
    lines = [NEVUS | {"image_type": kind, "image_manipulation": ""} for kind in types]
    lines.append(lines[0] | {"image_manipulation": "synthetic"})
    folder = download(tmp_path / "isic", *lines)
    (folder / "ISIC_9.jpg").write_bytes(encode(paint(9)))
    files = source(folder, "isic9", image_type="clinical")
    rows = files.gather(tmp_path / "out")
    assert [(row.url, row.status) for row in rows] == [
        ("ISIC_0.jpg", "other-image-type"), ("ISIC_1.jpg", "other-image-type"),
        ("ISIC_2.jpg", "stored"), ("ISIC_3.jpg", "stored"),
        ("ISIC_4.jpg", "other-image-type"), ("ISIC_5.jpg", "other-image-type"),
        ("ISIC_9.jpg", "no-line"),
    ]  # fmt: skip
    assert rows[4].detail == "its image_type is nothing"
    everything = source(folder, "isic9").gather(tmp_path / "out")
    assert [row.status for row in everything[:6]] == [
        *("stored", "not-a-photo", "stored", "stored", "stored", "not-a-photo"),
    ]
    assert files.stated_modality() == "clinical"


def test_odd_lines_become_rows_and_notes(tmp_path: Path) -> None:
    folder = download(
        tmp_path / "isic",
        NEVUS,
        *(NEVUS | {"isic_id": text} for text in ("", "../../secret", "gone")),
    )
    (tmp_path / "secret.jpg").write_bytes(encode(np.zeros((9, 9, 3), np.uint8)))
    rows = source(folder).gather(tmp_path / "out")
    assert [(row.url, row.status) for row in rows[1:4]] == [
        ("metadata.csv#3", "no-file"), ("../../secret.jpg", "link-refused"),
        ("gone.jpg", "unreadable"),
    ]  # fmt: skip
    missing, unlisted, apart = source(folder).preview().notes
    assert "2 of its lines name files that are not there" in missing
    assert "3 files beside it stand in no line" in unlisted
    assert apart.endswith("names no patient and no lesion, so that a split may divide them.")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("isic_id,attribution,copyright_license\n", "has no column 'diagnosis_1', which `isic"),
        ("isic_id,diagnosis_1\na,Benign\n", "has no column 'attribution'"),
        ("", "has no column 'isic_id'"),
        ("isic_id,attribution,copyright_license,diagnosis_1\n", "has no rows"),
        (None, "does not exist; correct its path"),
    ],
)
def test_a_wrong_table_is_one_sentence(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / "metadata.csv").write_text(text)
    with pytest.raises(UserError, match=why):
        source(tmp_path).gather(tmp_path / "out")
    (tmp_path / "a.parquet").touch()
    with pytest.raises(
        UserError, match="is not a CSV file; set `path` to a folder that isic-cli wrote"
    ):
        source(tmp_path / "a.parquet").gather(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_recipe_opens_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKINDX_REAL", str(tmp_path))
    kinds = (MELANOMA, NEVUS, SQUAMOUS)
    lines = [
        kinds[n % 3] | {"patient_id": f"IP_{n // 2}", "image_type": "dermoscopic"}
        for n in range(24)
    ]
    download(tmp_path / "isic-cli", *lines, IN_SITU | {"image_type": "dermoscopic"})
    recipe = Path(__file__).parents[2] / "data" / "isic-cli.yaml"
    settings = load_build_settings(recipe)
    again = BuildSettings.parse(settings.model_dump(mode="json"))
    assert again.model_dump() == settings.model_dump()
    run = open_run(settings, tmp_path / "out", resplit=False, progress=silent, runner=LocalRunner())
    (folder,) = run.settings.sources
    assert isinstance(folder, IsicFolder)
    assert (folder.modality, run.taxonomy) == ("dermoscopic", load_taxonomy("isic9"))
    counts = Counter(row.label for row in folder.gather(tmp_path / "out"))
    assert counts == {
        "Melanoma Invasive": 8, "Melanoma": 1, "Nevus": 8, "Squamous cell carcinoma, Invasive": 8,
    }  # fmt: skip
