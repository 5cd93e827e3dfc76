"""Joules of a command: a line for each run, also of one that stopped, each with its label."""

import json
from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx.energy import ENERGY, EnergyMeter, energy_reported


class Counter:
    name, range_j = "fake", 0.0

    def __init__(self) -> None:
        self.now = 0.0

    def read_j(self) -> float:
        self.now += 1500
        return self.now


def runs(folder: Path) -> list[dict]:
    return json.loads((folder / ENERGY).read_text())["runs"]


def test_each_run_is_a_line_with_its_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with energy_reported("train", tmp_path, EnergyMeter([Counter()])):
        pass
    assert capsys.readouterr().out == "energy: 1,500 J, measured by fake, of the whole machine\n"
    with (
        pytest.raises(KeyboardInterrupt),
        energy_reported("train", tmp_path, EnergyMeter([Counter()])),
    ):
        raise KeyboardInterrupt
    with energy_reported("evaluate", tmp_path, EnergyMeter([])):
        pass
    assert capsys.readouterr().out == "energy: unavailable (no energy counter)\n"
    found = [(run["verb"], run["finished"], run["joules"], run["source"]) for run in runs(tmp_path)]
    assert found == [
        ("train", True, 1500.0, "measured"),
        ("train", False, 1500.0, "measured"),
        ("evaluate", True, None, "unavailable"),
    ]


def test_nothing_is_made_where_nothing_was_written_and_by_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with energy_reported("train", tmp_path / "none", EnergyMeter([])):
        pass
    assert not (tmp_path / "none").exists()
    monkeypatch.setenv("RANK", "1")
    with energy_reported("train", tmp_path, EnergyMeter([])):
        pass
    assert not (tmp_path / ENERGY).exists()


def test_a_file_that_was_cut_off_begins_again(tmp_path: Path) -> None:
    (tmp_path / ENERGY).write_text('{"ru')
    with energy_reported("train", tmp_path, EnergyMeter([])):
        pass
    assert len(runs(tmp_path)) == 1


def test_what_is_refused_leaves_no_line(tmp_path: Path) -> None:
    with pytest.raises(UserError), energy_reported("train", tmp_path, EnergyMeter([])):
        raise UserError("no")
    assert not (tmp_path / ENERGY).exists()
