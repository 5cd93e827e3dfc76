from pathlib import Path

from skindx.bench.meters.energy import EnergyMeter, find_counters


class _Fake:
    name, range_j = "fake", 100.0

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def read_j(self) -> float:
        return self.values.pop(0)


def test_joules_between_entering_and_leaving_also_over_a_new_start() -> None:
    one, other = _Fake(10, 30), _Fake(90, 5)
    with EnergyMeter([one, other], every_s=60) as meter:
        pass
    assert meter.joules == (30 - 10) + (100 - 90 + 5)
    assert meter.sensors == ("fake", "fake")


def test_without_a_sensor_there_is_no_figure() -> None:
    with EnergyMeter([]) as meter:
        pass
    assert meter.joules is None


def test_packages_are_counted_and_their_parts_are_not(tmp_path: Path) -> None:
    for name, energy in (("intel-rapl:0", 5_000_000), ("intel-rapl:0:1", 1), ("other", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text("package-0\n")
        (tmp_path / name / "energy_uj").write_text(f"{energy}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("65000000\n")
    rapl = [each for each in find_counters(tmp_path) if each.name.startswith("RAPL")]
    assert [(each.name, each.read_j(), each.range_j) for each in rapl] == [
        ("RAPL package-0", 5.0, 65.0)
    ]
