"""All benches on one page: real processes, one that fails, Ctrl-C, a page that fetches nothing."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Skindx
from verb_examples import check_examples, verbs_of

from skindx.core.errors import UserError
from skindx_bench.devices import suite
from skindx_bench.devices.suite import WORDS, tables, words
from skindx_bench.harness.conditions import Conditions
from skindx_bench.harness.parts import Outcome, Part
from skindx_bench.harness.result import Figure, Result
from skindx_bench.subjects import BENCHES, GROUPS, run_bench


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
    def run_part(part, environment, folder, grace_s):
        if part.name == "loader":
            # What the interrupted bench has written in its last seconds.
            written = Result("loader", {"images": Figure(9.0, "images/s", 2, (8.0, 10.0))})
            replace(written, partial="stopped while epochs were timed").to_json(
                folder / "loader.json"
            )
            raise KeyboardInterrupt
        log = folder / "x.log"
        log.write_text("error: no root\n")
        return Outcome("failed", 1.0, log)

    monkeypatch.setattr(suite, "run_part", run_part)
    result = suite.run(suite.Config(benches=("exchange", "loader", "serve"), quick=True))
    assert result.partial == "stopped while loader ran"
    assert list(result.parts) == ["exchange", "loader"]
    assert result.parts["exchange"]["why"] == "no root"
    assert result.figures["loader: images"].value == 9.0
    assert "loader: PARTIAL, stopped while epochs were timed." in result.notes


def test_a_bench_out_of_time_leaves_what_it_has_and_nothing_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real process, which answers to an interruption as a bench does."""
    script = (
        "import sys, time\n"
        "print('ready', flush=True)\n"
        "try:\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    open(sys.argv[1], 'w').write(sys.argv[2])\n"
    )
    Result("loader", {}).to_json(tmp_path / "made.json")
    made = (tmp_path / "made.json").read_text()

    def part(name: str, settings: suite.Config, folder: Path) -> Part:
        if name == "serve":
            return Part(name, [sys.executable, "-c", "raise SystemExit('error: no port')"], 20)
        return Part(name, [sys.executable, "-c", script, str(folder / "loader.json"), made], 1)

    monkeypatch.setattr(suite, "_part", part)
    (tmp_path / "serve.json").write_text("of an earlier run")
    result = suite.run(suite.Config(benches=("loader", "serve"), folder=tmp_path))
    assert result.parts["loader"]["status"] == "timed out"
    assert result.parts["loader"]["seconds"] < 20
    assert result.parts["loader"]["why"].startswith("longer than its share")
    assert (tmp_path / "loader.json").read_text() == made
    assert result.parts["serve"]["why"] == "no port"
    assert not (tmp_path / "serve.json").exists()


def test_a_busy_machine_is_said_of_the_bench_that_it_disturbs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run_part(part, environment, folder, grace_s):
        log = folder / "x.log"
        log.write_text("error: no root\n")
        return Outcome("failed", 1.0, log)

    class Busy(Conditions):
        marks = ("other processes used 40 % of the cores' time",)

    monkeypatch.setattr(suite, "run_part", run_part)
    monkeypatch.setattr(suite, "Conditions", Busy)
    page = tmp_path / "page.html"
    result = suite.run(suite.Config(benches=("serve",), html=page))
    assert any(
        note.startswith("serve: doubtful, other processes used 40 %") for note in result.notes
    )
    assert "other processes used 40 %" in page.read_text()


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


def test_the_page_says_in_words_what_figures_are_and_folds_details_away() -> None:
    def figure(value: float, unit: str) -> dict:
        return {"value": value, "unit": unit, "n": 3, "spread": [value, value]}

    found = tables(
        {
            "bench": "devices",
            "figures": {
                "peak fp32": figure(100.0, "GFLOP/s"),
                "end_over_start": figure(0.99, "×"),
                "gemm-16, fp32, inference: arithmetic": figure(90.0, "GFLOP/s"),
            },
        }
    )
    assert [(table.more, len(table.rows)) for table in found] == [(False, 2), (True, 1)]
    assert found[0].rows[1].name.startswith("speed at the end of the run")
    stages = {"stages": {"networks": figure(0.12, "s")}}
    served = tables({"bench": "serve", "figures": {"new": figure(2.0, "s")}, "parts": stages})
    assert [(row.name, row.value, row.unit) for table in served for row in table.rows] == [
        ("networks", pytest.approx(120), "ms"),
        ("new", 2.0, "s"),
    ]
    row = {"part": "Full exchange", "name": "gtopk", "total_ms": figure(9.0, "ms")}
    sent = tables({"bench": "exchange", "figures": {}, "models": {"x": row}})
    assert [(table.title, table.rows[0].name) for table in sent] == [("Full exchange", "gtopk")]
    assert words("container", "cpu: container_over_host") == "cpu: container over host"


def test_every_figure_with_words_is_one_of_its_bench(pytestconfig: pytest.Config) -> None:
    """A figure that was renamed would lose its words without a word."""
    for bench in ("exchange", "loader", "serve"):
        file = pytestconfig.rootpath / f"docs/measured/{bench}.json"
        figures = json.loads(file.read_text())["figures"]
        known = [key for key in figures if words(bench, key) != key]
        assert len(known) >= len(WORDS[bench]), bench


VERBS = verbs_of("bench")


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_an_example_that_it_understands(verb: str) -> None:
    check_examples(verb, VERBS[verb])


def test_help_names_every_bench(skindx: Skindx) -> None:
    reported = skindx("bench", "--help")[1]
    assert [name for name in BENCHES if name not in reported] == []


def test_benches_are_seven_groups_without_types_of_flags(skindx: Skindx) -> None:
    assert len(GROUPS) == 7
    code, shown, _ = skindx("bench", "--help")
    assert code == 0
    assert "bool" not in shown
    assert [group for group in GROUPS if f" {group} " not in shown] == []
