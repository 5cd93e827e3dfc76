"""All benches on one page: real processes, one that fails, Ctrl-C, a page that fetches nothing."""

from pathlib import Path

import pytest

from skindx.bench import BENCHES, run_bench
from skindx.bench.gpu.parts import Outcome
from skindx.bench.suite import suite
from skindx.errors import UserError


def test_a_bench_that_runs_and_one_that_cannot_stand_on_the_page(tmp_path: Path) -> None:
    # Without --smallest the bench of energy asks for its readings, and ends with a sentence.
    result = run_bench(
        "all",
        tmp_path / "all.json",
        ["benches=[startup,energy]", f"folder={tmp_path}", "limit_s=200"],
        html=tmp_path / "page.html",
    )
    assert result.parts["startup"]["status"] == "passed"
    assert result.parts["energy"]["status"] == "failed"
    assert "traces=FOLDER" in result.parts["energy"]["why"]
    assert "startup: help_s" in result.figures
    page = (tmp_path / "page.html").read_text()
    assert "bench startup" in page
    assert "traces=FOLDER" in page
    assert result.hardware["cpu"] in page
    assert "src=" not in page


def test_ctrl_c_keeps_the_benches_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_part(part, environment, folder):
        if part.name == "loader":
            raise KeyboardInterrupt
        log = folder / "x.log"
        log.write_text("error: no root\n")
        return Outcome("failed", 1.0, log)

    monkeypatch.setattr(suite, "run_part", run_part)
    result = suite.run(suite.Config(benches=("exchange", "loader", "serve"), quick=True))
    assert result.partial == "stopped while loader ran"
    assert list(result.parts) == ["exchange", "loader"]
    assert result.parts["exchange"]["why"] == "error: no root"


def test_a_quick_run_names_settings_that_exist_and_ends_in_ten_minutes() -> None:
    import importlib

    assert set(suite.QUICK) == set(suite.Config().benches) == set(suite.QUICK_S)
    assert sum(suite.QUICK_S.values()) <= 600
    for name, sets in suite.QUICK.items():
        importlib.import_module(BENCHES[name]).Config.load(None, sets)


def test_an_unknown_bench_is_refused() -> None:
    with pytest.raises(UserError, match="benches=nothing"):
        suite.run(suite.Config(benches=("nothing",)))
    with pytest.raises(UserError, match="benches=all"):
        suite.run(suite.Config(benches=("all",)))


def test_the_smallest_run_has_the_figures_of_its_bench() -> None:
    result = run_bench("all", smallest=True)
    assert result.parts["startup"]["status"] == "passed"
    assert result.figures["startup: help_s"].value > 0
