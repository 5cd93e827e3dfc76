"""`skindx --help` by job, an example in the help of each verb, and shell completion."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from command_line import Skindx
from typer.testing import CliRunner
from verb_examples import check_examples, examples, verbs_of

from skindx import cli

FIXTURES = Path(__file__).parents[1] / "fixtures"
CHEAP = ("boxes export", "casebook list", "completion")
"""Verbs whose example a test runs on a small dataset."""


VERBS = verbs_of()


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_an_example_that_it_understands(verb: str) -> None:
    check_examples(verb, VERBS[verb])


@pytest.mark.parametrize("verb", CHEAP)
def test_cheap_examples_run(
    skindx: Skindx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    mine = tmp_path / "runs/mine"
    shutil.copytree(FIXTURES / "v0_2/dataset", mine / "data")
    for name in ("cases.db", "cases.db.keys"):
        shutil.copyfile(FIXTURES / "v0_2" / name, tmp_path / "runs" / name)
        (tmp_path / "runs" / name).chmod(0o600)
    monkeypatch.chdir(tmp_path)
    for line in examples(VERBS[verb]):
        code, _, err = skindx(*shlex.split(line)[1:])
        assert code == 0, err


def test_six_verbs_come_first_and_all_stand_under_a_job() -> None:
    shown = CliRunner().invoke(cli.app, ["--help"], env={"COLUMNS": "100"}).output
    panels = re.findall(r"─ ([A-Z][^─]+) ─", shown)
    assert panels == ["Options", *cli.JOBS]
    assert list(next(iter(cli.JOBS.values()))) == [
        *("new", "build", "train", "evaluate", "diagnose", "serve"),
    ]
    names = [name for verbs in cli.JOBS.values() for name in verbs]
    assert len(names) == len(set(names)) == len(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [[], ["audit"], ["boxes"], ["casebook", "list"]])
def test_flags_stand_without_a_type(words: list[str]) -> None:
    shown = CliRunner().invoke(cli.app, [*words, "--help"], env={"COLUMNS": "100"})
    assert shown.exit_code == 0
    assert "bool" not in shown.output
    assert "--help" in shown.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(skindx: Skindx, shell: str) -> None:
    code, script, err = skindx("completion", shell)
    assert (code, err) == (0, "")
    assert f"complete_{shell}" in script
    if shutil.which(shell):
        read = subprocess.run([shell, "-n"], input=script, text=True, check=False)
        assert read.returncode == 0


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("skindx ev", ["evaluate"]),
        ("skindx bench hon", ["honesty"]),
        ("skindx audit --lab", ["--labels"]),
        ("skindx completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_bash_completes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    wanted: list[str],
) -> None:
    monkeypatch.setenv("_SKINDX_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit):
        typer.main.get_command(cli.app)(args=[], prog_name="skindx")
    assert capsys.readouterr().out.split() == wanted


def test_another_shell_is_refused(skindx: Skindx) -> None:
    code, _, err = skindx("completion", "tcsh")
    assert code == 2
    assert "bash" in err
