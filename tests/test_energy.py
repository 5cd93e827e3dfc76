"""Energy counters: wrap-around, faults, no permission; a figure has the label of its source."""

import re
import sys
import types
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import skindx.energy as counters
from skindx.energy import Energy, EnergyMeter, find_counters, growth


class _Fake:
    name, range_j = "fake", 100.0

    def __init__(self, *values: float | OSError) -> None:
        self.values = list(values)

    def read_j(self) -> float:
        value = self.values.pop(0)
        if isinstance(value, OSError):
            raise value
        return value


def read(*fakes: _Fake, seconds: float = 2.0) -> Energy:
    times = iter((0.0, seconds))
    with EnergyMeter(fakes, every_s=60, clock=lambda: next(times)) as meter:
        pass
    return meter.energy


def test_joules_between_entering_and_leaving_also_over_a_new_start() -> None:
    found = read(_Fake(10, 30), _Fake(90, 5))
    assert found == Energy("measured", (30 - 10) + (100 - 90 + 5), sensors=("fake", "fake"))


def test_without_a_sensor_there_is_no_figure() -> None:
    assert read() == Energy("unavailable", why="no energy counter")


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (_Fake(40, 5), "went backwards from 40.000 J to 5.000 J"),
        (_Fake(7, 7), r"did not move in 2.0 s"),
        (_Fake(7, OSError("gone")), r"could not be read \(gone\)"),
        (_Fake(OSError("gone"), 7), r"could not be read \(gone\)"),
    ],
)
def test_a_faulty_counter_is_no_zero_and_no_part_of_a_sum(fake: _Fake, words: str) -> None:
    found = read(_Fake(10, 30), fake)
    assert found.source == "unavailable"
    assert found.joules is None
    assert re.search(words, found.why)


def test_a_run_too_short_for_the_counters_is_unavailable() -> None:
    assert "too short" in read(_Fake(7, 7), seconds=0.001).why


@given(
    start=st.floats(0, 99),
    steps=st.lists(st.floats(0, 49), min_size=1, max_size=20),
)
def test_the_sum_over_any_number_of_new_starts_is_what_was_used(
    start: float, steps: list[float]
) -> None:
    total, readings = start, [start]
    for step in steps:
        total += step
        readings.append(total % 100)
    summed = sum(growth(a, b, 100) for a, b in pairwise(readings))
    assert summed == pytest.approx(sum(steps), abs=1e-6)


def test_a_figure_needs_a_source() -> None:
    with pytest.raises(AssertionError):
        Energy("measured")
    with pytest.raises(AssertionError):
        Energy("unavailable", 0.0)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus", None)
    monkeypatch.setitem(sys.modules, "zeus.device", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)


def package(folder: Path, name: str, label: str, energy: str) -> Path:
    (folder / name).mkdir()
    (folder / name / "name").write_text(f"{label}\n")
    (folder / name / "energy_uj").write_text(f"{energy}\n")
    (folder / name / "max_energy_range_uj").write_text("65000000\n")
    return folder / name


@pytest.mark.usefixtures("no_gpu")
def test_packages_are_counted_and_their_parts_and_the_platform_are_not(tmp_path: Path) -> None:
    package(tmp_path, "intel-rapl:0", "package-0", "5000000")
    package(tmp_path, "intel-rapl:0:1", "core", "1")
    package(tmp_path, "intel-rapl:1", "psys", "9000000")
    package(tmp_path, "other", "package-0", "2")
    found = find_counters(tmp_path)
    assert [(counter.name, counter.read_j(), counter.range_j) for counter in found.counters] == [
        ("RAPL package-0", 5.0, 65.0)
    ]
    assert found.refused == []


@pytest.mark.usefixtures("no_gpu")
def test_what_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "intel-rapl:0", "package-0", "no number")
    assert "holds no number" in find_counters(tmp_path).refused[0]

    def forbid(self: object) -> float:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(counters.RaplPackage, "read_j", forbid)
    assert "may only be read by root" in find_counters(tmp_path).refused[0]
    assert "no RAPL counter" in find_counters(tmp_path / "none").refused[0]


def test_zeus_counts_gpus_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gpus:
        def __len__(self) -> int:
            return 2

        def supports_get_total_energy_consumption(self, index: int) -> bool:
            return index == 1

        def get_total_energy_consumption(self, index: int) -> int:
            return 1500 * index

    zeus = types.ModuleType("zeus.device")
    zeus.get_gpus = Gpus  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "zeus", types.ModuleType("zeus"))
    monkeypatch.setitem(sys.modules, "zeus.device", zeus)
    found = find_counters(tmp_path)
    assert [(counter.name, counter.read_j()) for counter in found.counters] == [("zeus GPU 1", 1.5)]
    assert "GPU 0 has no energy counter" in found.refused
