from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx_bench.serve import startup
from skindx_bench.subjects import run_bench


def test_figures_and_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "trace"
    note = f"open({str(trace)!r}, 'a').write('x')"
    monkeypatch.setitem(startup.ARGUMENTS, "help_s", ("-c", note))
    result = startup.run(startup.Config(rounds=3))
    assert list(result.figures) == ["help_s", "import_s"]
    assert list(result.baselines) == ["bare python"]
    assert {(figure.unit, figure.n) for figure in result.figures.values()} == {("s", 3)}
    # A warm-up and three rounds, a process each, all of them ended.
    assert trace.read_text() == "xxxx"


def test_the_real_command_answers() -> None:
    result = run_bench("startup", smallest=True)
    assert 0 < result.baselines["bare python"].value < result.figures["help_s"].value


def test_a_command_that_fails_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(startup.ARGUMENTS, "help_s", ("-c", "raise SystemExit('no such verb')"))
    with pytest.raises(RuntimeError, match="ended with 1: no such verb"):
        startup.run(startup.Config(rounds=3))


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(UserError, match=r"'rounds' = 1: .*greater than or equal to 3"):
        startup.Config.load(None, ["rounds=1"])
