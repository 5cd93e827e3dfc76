import importlib
import json
import sys
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx import __version__
from skindx.core import measurement
from skindx.core.errors import UserError
from skindx.core.measurement import interleave
from skindx.core.settings_base import Settings
from skindx_bench.harness.result import MEANS, Figure, Result, hardware, median, ratio, versions
from skindx_bench.subjects import ALIASES, BENCHES, run_bench


class FakeTime:
    """A clock that stands still until somebody sleeps on it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(measurement, "time", fake)
    return fake


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    class Config(Settings):
        seconds: float = 2.0

    def run(settings: Config) -> Result:
        ours = Figure(settings.seconds, "s", 3, (1.0, 3.0))
        speed = Figure(4.0, "×", 3, (3.5, 4.5))
        baseline = Figure(0.5, "s", 3, (0.4, 0.6))
        return Result("toy", {"ours_s": ours, "ours_over_slow": speed}, {"bare": baseline})

    module = types.ModuleType("skindx_toy_bench")
    module.Config = Config  # type: ignore[attr-defined]
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "skindx_toy_bench", module)
    monkeypatch.setitem(BENCHES, "toy", "skindx_toy_bench")
    return module


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_keeps_the_convention(name: str) -> None:
    module = importlib.import_module(BENCHES[name])
    assert issubclass(module.Config, Settings)
    assert module.Config() == module.Config.load(None, [])
    assert module.Config.load(None, module.SMALLEST) != module.Config()
    assert callable(module.run)


def test_candidates_take_turns(time: FakeTime) -> None:
    order: list[str] = []

    def candidate(name: str, seconds: float) -> None:
        order.append(name)
        time.sleep(seconds)

    seconds = interleave(
        {"a": lambda: candidate("a", 1.0), "b": lambda: candidate("b", 2.0)}, rounds=3, warmup=1
    )
    assert seconds == {"a": [1.0] * 3, "b": [2.0] * 3}
    # One warm-up round, then each round begins with the other one.
    assert "".join(order) == "ba" + "ab" + "ba" + "ab"


@given(rounds=st.integers(1, 12), count=st.integers(1, 5), warmup=st.integers(0, 3))
def test_every_candidate_runs_once_a_round_and_none_is_always_first(
    rounds: int, count: int, warmup: int
) -> None:
    order: list[int] = []
    candidates = {str(i): (lambda i=i: order.append(i)) for i in range(count)}
    seconds = interleave(candidates, rounds, warmup)
    assert {len(samples) for samples in seconds.values()} == {rounds}
    turns = [order[at : at + count] for at in range(0, len(order), count)]
    assert len(turns) == rounds + warmup
    assert all(sorted(turn) == list(range(count)) for turn in turns)
    if rounds >= count:
        assert {turn[0] for turn in turns} == set(range(count))


def test_a_ratio_is_that_of_the_rounds_and_a_slow_minute_does_not_bend_it() -> None:
    ours, other = [1.0, 1.0, 10.0], [3.0, 3.0, 30.0]
    assert ratio(ours, other) == Figure(3.0, "×", 3, (3.0, 3.0))
    with pytest.raises(ValueError, match="shorter"):
        ratio(ours, other[:2])


def test_median_and_quartiles_by_hand() -> None:
    assert median([5.0, 1.0, 2.0, 4.0, 3.0], "s") == Figure(3.0, "s", 5, (2.0, 4.0))


def test_json_has_the_stable_keys(toy: types.ModuleType, tmp_path: Path) -> None:
    run_bench("toy", tmp_path / "new" / "toy.json", ["seconds=2.5"])
    written = json.loads((tmp_path / "new" / "toy.json").read_text())
    assert list(written) == ["bench", "date", "figures", "hardware", "versions", "settings"]
    assert written["bench"] == "toy"
    assert written["settings"] == {"seconds": 2.5}
    assert written["figures"] == {
        "ours_s": {"value": 2.5, "unit": "s", "n": 3, "spread": [1.0, 3.0]},
        "ours_over_slow": {"value": 4.0, "unit": "×", "n": 3, "spread": [3.5, 4.5]},
    }
    assert written["hardware"] == hardware()
    assert written["versions"] == versions()


def test_the_table_shows_figures_baselines_machine_and_versions(
    toy: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    run_bench("toy")
    text = capsys.readouterr().out
    for shown in (
        "ours_s",
        "4 ×",
        "3.5 .. 4.5",
        "bare",
        "0.4 .. 0.6",
        "cores",
        f"skindx {__version__}",
    ):
        assert shown in text
    assert hardware()["cpu"] in text
    assert "median" in text
    assert "25 % .. 75 %" in text


def test_a_table_of_trainings_names_its_intervals() -> None:
    table = Result("toy", {"gain": Figure(1.0, "points", 9, (-1.0, 3.0))}, headings=MEANS).table()
    headings = [column.header for column in table.renderables[0].columns]
    assert headings == ["figure", "mean", "95 % interval", "n"]


def test_the_machine_is_described_without_importing_torch() -> None:
    assert hardware()["cores"] >= 1
    assert hardware()["memory_gb"] > 0.1
    assert hardware()["cpu"]
    assert versions()["python"] == sys.version.split()[0]
    assert versions()["torch"]


def test_user_errors(toy: types.ModuleType, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"no bench 'startp'; did you mean 'startup'\? Valid: .*startup"
    ):
        run_bench("startp")
    with pytest.raises(UserError, match="did you mean 'seconds'"):
        run_bench("toy", None, ["second=1"])
    with pytest.raises(UserError, match="is a folder"):
        run_bench("toy", tmp_path)


def test_an_older_name_is_an_alias(toy: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(ALIASES.values()) <= set(BENCHES)
    assert not set(ALIASES) & set(BENCHES)
    monkeypatch.setitem(ALIASES, "old-toy", "toy")
    assert run_bench("old-toy").bench == "toy"


def test_a_ratio_must_be_named_as_one() -> None:
    with pytest.raises(AssertionError):
        Result("toy", {"a_over_b": Figure(1.0, "s", 3, (1.0, 1.0))})
