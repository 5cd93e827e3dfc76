"""Checklists: every item is there, nothing is answered without evidence, every place exists."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from skindx.cli import app
from skindx.core.errors import UserError
from skindx.data.manifest import count_images, read_manifest
from skindx.evaluation.checklist import (
    ChecklistItem,
    answer_item,
    gather_evidence,
    is_empty,
    read_checklists,
    value_at,
    write_checklists,
)

SIZES = {"stard-ai": 40, "tripod-ai": 27, "clear-derm": 25}
NOT_MEASURED_HERE = {
    "metrics: external.left_out",
    "metrics: elsewhere.changes.*.title+change",
    "bundle: metadata.head.columns",
    "bundle: adapted.images",
    "bundle: adapted.groups",
    "bundle: adapted.mix",
    "bundle: adapted.figures",
}
"""Evidence of an external evaluation, and of a bundle that uses metadata or was adapted."""


def test_the_lists_are_whole_and_in_order() -> None:
    for checklist in read_checklists():
        numbers = [int(item.n.rstrip("abcdefg")) for item in checklist.items]
        assert numbers == sorted(numbers)
        assert sorted(set(numbers)) == list(range(1, SIZES.pop(checklist.key) + 1))
        assert len({item.n for item in checklist.items}) == len(numbers)
        for item in checklist.items:
            assert item.evidence or item.person, item
            assert all("{" in sentence for sentence in item.evidence), item
    assert not SIZES


def test_every_place_of_evidence_exists(evaluation: Path) -> None:
    evidence = gather_evidence(evaluation)
    items = [item for checklist in read_checklists() for item in checklist.items]
    missing = {place for item in items for place in answer_item(item, evidence).missing}
    assert missing == NOT_MEASURED_HERE


def test_nothing_is_answered_without_evidence(evaluation: Path) -> None:
    evidence = gather_evidence(evaluation)
    for item in (item for checklist in read_checklists() for item in checklist.items):
        bare = answer_item(item, {key: {} for key in evidence})
        assert (bare.status, bare.answer, bare.places) == ("by a person", (), ())
        assert bare.person


def test_answers_by_hand() -> None:
    evidence = {
        "metrics": {
            "n": 0,
            "rate": {"value": 0.125, "low": 0.1, "high": None},
            "bare": {"value": None, "low": None, "high": None},
            "parts": [{"name": "I", "n": 3}, {"name": "II", "n": None}],
        },
        "scored": {"sex": {"not known": 3}, "age": {"20 to 39": 2, "not known": 1}},
    }

    def answer(*sentences: str, person: str = "") -> tuple[str, tuple[str, ...]]:
        item = ChecklistItem(n="1", topic="t", evidence=sentences, person=person)
        filled = answer_item(item, evidence)
        return filled.status, filled.answer

    assert answer("{metrics:n} of {scored:age}.") == (
        "answered", ("0 of 20 to 39 2; not known 1.",),
    )  # fmt: skip
    assert answer("{metrics:rate}", person="x") == ("in part", ("0.125 [0.1, –]",))
    assert answer("{metrics:bare}") == ("by a person", ())
    assert answer("{scored:sex}", "{metrics:n}") == ("in part", ("0",))
    assert answer("{metrics:parts.*.name+n}") == ("answered", ("I: 3, –",))
    assert answer("{metrics:parts.[name=I].n} {metrics:parts.5.n}") == ("by a person", ())
    assert value_at(evidence["metrics"], "parts.[name=II].name") == "II"
    assert is_empty([None, {}])
    assert not is_empty([0])


def test_the_files_say_the_same_and_break_nothing(evaluation: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evaluation"
    shutil.copytree(evaluation, folder)
    done = CliRunner().invoke(app, ["recompute", str(folder), "--checklist"])
    assert done.exit_code == 0, done.output
    assert "checklist.html" in done.stdout
    words = " ".join(ET.fromstring((folder / "checklist.html").read_text()).itertext())
    lists = json.loads((folder / "checklist.json").read_text())["checklists"]
    assert set(lists) == {"stard-ai", "tripod-ai", "clear-derm"}
    for item in (item for items in lists.values() for item in items):
        assert all(place in words for place in item["places"])
        assert item["topic"] in words
    rows = [line for line in (folder / "checklist.md").read_text().splitlines() if "|" in line]
    assert {line.replace("\\|", "").count("|") for line in rows} == {6}
    assert "=clinic" in words  # a source's name, shown and not computed
    # Without bundle and dataset only the measurements are left.
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["origin"] |= {"bundle": "gone/bundle", "dataset": "gone/data"}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    write_checklists(folder)
    filled = json.loads((folder / "checklist.json").read_text())["checklists"]["clear-derm"]
    assert {item["n"]: item["status"] for item in filled}["8"] == "by a person"
    with pytest.raises(UserError, match="is not an evaluation"):
        write_checklists(tmp_path)


def test_people_are_counted_with_the_unknown(evaluation: Path) -> None:
    counts = count_images(read_manifest(evaluation / "data"))
    assert counts["images"] == 300
    assert counts["skin_type"] == {"I": 75, "III": 75, "VI": 75, "not known": 75}
    assert sum(counts["confirmed_by"].values()) == 300
    assert list(counts["confirmed_by"])[-1] == "not known"
