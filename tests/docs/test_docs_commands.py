"""Every shell block of README and guide is one that a shell and skindx understand."""

import ast
import importlib
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import Skindx
from guide_pages import PAGES, ROOT, Block, inline_commands, shell_blocks

from skindx.cli import app
from skindx.cli.options import KNOWN, complete

BLOCKS = shell_blocks()
FIXTURES = ROOT / "tests/fixtures/v0_1"


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """Return the verb that words name, and the words after it."""
    command = _all_verbs()
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    if getattr(command, "subjects", False) and command.name in command.commands:
        command = command.commands[command.name]  # the subject that a group is called by
    return command, words


@cache
def _all_verbs() -> Any:
    command = typer.main.get_command(app)
    for name in KNOWN:
        complete(command, name)
    return command


def options_of(command: Any) -> set[str]:
    given = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    return given | {"-h", "--help"}


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_shell_reads_the_block(block: Block) -> None:
    done = subprocess.run(
        ["bash", "-n"], input=block.text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", [block for block in BLOCKS if [*block.commands()]], ids=str)
def test_skindx_understands_the_block(block: Block) -> None:
    for words in block.commands():
        command, arguments = command_of(words)
        if getattr(command, "commands", None):
            assert set(arguments) <= options_of(command), words  # skindx --version
            continue
        context = command.make_context(command.name, list(arguments))  # no option is unknown
        given = context.params
        for name in ("source", "config"):
            file = given.get(name)
            if file and str(file).startswith(("configs/", "data/")):
                assert (ROOT / str(file)).is_file(), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_inside_sentences_have_a_verb_and_options_that_exist(page: Path) -> None:
    for words in inline_commands(page):
        if re.fullmatch("[A-Z|]+", words[0]):  # skindx VERB --help
            continue
        command, arguments = command_of(words)
        assert words[0].startswith("--") or command.name == words[0] or arguments != words, words
        if arguments[:1] == ["NAME"]:  # any subject of the lab
            command = command.commands["all"]
        options = {word.partition("=")[0] for word in arguments if word.startswith("-")}
        assert options <= options_of(command), words


def test_commands_that_messages_name_exist() -> None:
    """A placeholder, or a value that an f-string fills in, stands for any word."""
    for file in sorted((ROOT / "skindx").rglob("*.*")):
        if file.suffix not in {".py", ".jinja", ".js", ".html"}:
            continue
        for text in _texts(file):
            for named in re.findall(r"`skindx ([^`]+)`", " ".join(text.split())):
                words = named.split("|")[0].split()
                if words[0] == "X":  # the demo names the verb that it runs
                    continue
                command, arguments = command_of(words)
                assert words[0].startswith("--") or arguments != words, (file, named)
                options = {word.partition("=")[0] for word in arguments if word.startswith("-")}
                assert options <= options_of(command), (file, named)


def _texts(file: Path) -> list[str]:
    """Return the strings of a program, an f-string's with X for what it fills in."""
    if file.suffix != ".py":
        return [file.read_text(encoding="utf-8")]
    tree = ast.parse(file.read_text(encoding="utf-8"))
    joined = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
    ]
    return joined + [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_settings_in_the_blocks_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    from skindx.data.recipe import BuildSettings
    from skindx.training.config.run import TrainSettings
    from skindx_bench import subjects as bench

    monkeypatch.chdir(ROOT)
    for name in ("SKINDX_REAL", "SKINDX_CONTACT"):
        monkeypatch.setenv(name, "somewhere")
    for block in BLOCKS:
        for words in block.commands():
            command, arguments = command_of(words)
            if command.name not in ("build", "train", *bench.BENCHES) or "help=1" in arguments:
                continue
            given = command.make_context(command.name, list(arguments)).params
            file = next((given[key] for key in ("source", "config") if given.get(key)), None)
            path = Path(file) if file and Path(file).is_file() else None
            if words[0] == "bench":
                module = importlib.import_module(bench.BENCHES[command.name])
                module.Config.load(None, given["sets"] or [])
            elif command.name == "train":
                TrainSettings.load(path, given["sets"] or [])
            elif path:
                BuildSettings.load(path, given["sets"] or [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small dataset and bundle under the names that the guide uses."""
    mine = tmp_path_factory.mktemp("guide") / "runs/mine"
    shutil.copytree(FIXTURES / "dataset", mine / "data")
    shutil.copytree(FIXTURES / "whole/bundle", mine / "bundle")
    return mine.parents[1]


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.runs], ids=str)
def test_short_blocks_run(
    block: Block, folder: Path, skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for words in block.commands():
        code, _, err = skindx(*words)
        assert code == 0, err


def test_some_blocks_run() -> None:
    assert len([block for block in BLOCKS if block.runs]) >= 4
