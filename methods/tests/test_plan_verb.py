"""`skindx plan` looks like a verb of skindx: help, examples, completion, refusals, stable names."""

import os
import sys
from pathlib import Path

import pytest
import typer
from command_line import Skindx
from typer.testing import CliRunner
from verb_examples import check_examples, verbs_of

from skindx import cli

VERBS = verbs_of("plan")


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_an_example_that_it_understands(verb: str) -> None:
    check_examples(verb, VERBS[verb])


def test_the_verbs_are_three_and_their_flags_stand_without_a_type() -> None:
    assert list(VERBS) == ["plan make", "plan measure", "plan check"]
    shown = CliRunner().invoke(cli.app, ["plan", "make", "--help"], env={"COLUMNS": "100"})
    assert shown.exit_code == 0
    assert "bool" not in shown.output
    assert "--help" in shown.output
    assert "zero-1" in shown.output  # names of strategies are known when the help is read


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("make", "--outt", "x"), "`skindx plan make --help`"),
        (("make", "no.yaml"), "needs both CONFIG and DATA"),
        (("make", "--set", "help=1"), "choose KEY from: "),
        (("make", "--devices", "2"), "measure on the other device with `skindx plan measure`"),
        (("make", "--trace", "pipe", "--cluster", "10gbe:8"), "is a pipe"),
        (("make", "pipe", "in", "--cluster", "10gbe:8"), "is a pipe"),
        (("chek",), "check"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    skindx: Skindx,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "pipe")
    code, printed, err = skindx("plan", *arguments)
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert message in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "pipe"]


def test_without_the_extra_measuring_is_a_sentence(
    skindx: Skindx, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in ("deepspeed", "psutil"):
        monkeypatch.setitem(sys.modules, module, None)
    code, _, err = skindx("plan", "measure", "c.yaml", "data", "--out", "t")
    assert code == 2
    assert "needs deepspeed, psutil, which are not installed; run `" in err
    assert not list(tmp_path.iterdir())


def test_bash_completes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_SKINDX_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "skindx plan me")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        typer.main.get_command(cli.app)(args=[], prog_name="skindx")
    assert capsys.readouterr().out.split() == ["measure"]
