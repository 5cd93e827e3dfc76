"""Answers about a lesion: from the columns of a table into the manifest, and never published."""

import csv
from pathlib import Path

import pytest
from paint_images import paint, save

from skindx.core.seven_points import answers_from as from_text
from skindx.core.seven_points import seven_points
from skindx.data.build.build_dataset import BuildSettings, build
from skindx.data.layouts.known_layouts import known_layouts
from skindx.data.manifest import read_manifest
from skindx.data.publish.published_rows import NAMES
from skindx.data.report.dataset_report import write_report
from skindx.data.sources.columns import Columns, answer

HEADER = "img_id diagnostic patient_id itch grew hurt changed bleed elevation diameter_1 diameter_2"
ROWS = [
    ("a.png", "MEL", "p1", "True", "True", "False", "UNK", "False", "True", "9.0", "5.0"),
    ("b.png", "NEV", "p2", "False", "UNK", "False", "UNK", "False", "False", "", ""),
    ("c.png", "NEV", "p3", "UNK", "UNK", "UNK", "UNK", "UNK", "UNK", "6.0", "5.0"),
]
WANTED = {
    "a.png": "grew=yes large=yes bleeds=no itches=yes hurts=no raised=yes",
    "b.png": "bleeds=no itches=no hurts=no raised=no",
    "c.png": "large=no",
}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "pad"
    folder.mkdir()
    with (folder / "metadata.csv").open("w", newline="") as file:
        rows = [(f"{n}{row[0]}", row[1], f"{n}{row[2]}", *row[3:]) for row in ROWS for n in "123"]
        csv.writer(file).writerows([HEADER.split(), *rows])
    for number, (name, *_) in enumerate(rows):
        save(folder / name, paint(number + 1), kind="PNG")
    (source,) = known_layouts()["pad_ufes_20"].recipe["sources"]
    columns = {"file": "img_id", "label": "diagnostic", "group": "patient_id"}
    own = {"path": str(folder / "metadata.csv"), "files": str(folder), "values": {}}
    columns["answers"] = source["columns"]["answers"]
    settings = {
        "name": "pad",
        "sources": [{**source, **own, "columns": columns}],
        "screen": {"not_skin": "off", "min_side": 32},
    }
    build(BuildSettings.parse(settings), tmp_path / "out")
    return tmp_path / "out"


def test_the_columns_of_pad_ufes_20_arrive_and_are_reported_by_class(dataset: Path) -> None:
    records = read_manifest(dataset)
    assert {Path(one.source_url).name[1:]: one.answers for one in records} == WANTED
    page = write_report(dataset).read_text(encoding="utf-8")
    assert "Answers about the lesion by class" in page
    assert '<td class="number">0 of 3</td>' in page


def test_answers_are_never_published() -> None:
    assert not {"answers", "age", "sex", "site"} & set(NAMES)


def test_what_is_neither_yes_nor_no_is_unknown_and_named() -> None:
    columns = Columns(answers={"itches": "itch", "large": ("d1", "d2")})
    line = {"itch": "sometimes", "d1": "6,9", "d2": "7"}
    assert columns.known(line)["answers"] == "large=yes"
    odd = columns.odd_facts([line])
    assert odd["answers are neither yes nor no and count as unknown"] == ["sometimes"]
    assert answer("large", ["6", ""]) == answer("grew", ["UNK"]) == answer("grew", []) == ""


def test_a_text_of_answers_gives_the_score_of_pad_ufes_20() -> None:
    points = seven_points(from_text(WANTED["a.png"] + " itches=maybe other=yes"))
    assert (points.score, points.known, points.refers) == (4, 4, True)  # 2 size, 1 width, 1 itch
