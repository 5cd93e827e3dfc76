"""Every shell block of README and guide is one that a shell and skindx understand."""

import ast
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from command_line import Skindx
from guide_commands import command_of, options_of, settings_of
from guide_pages import PAGES, ROOT, Block, inline_commands, shell_blocks

BLOCKS = shell_blocks()
RUN = [block for block in BLOCKS if block.runs and " bench " not in block.text]
"""The lab's tests run those of benchmarks."""
FIXTURES = ROOT / "tests/fixtures/v0_1"


READS = """
for block; do (eval "set -n
$block") || printf 'This is no shell: %s\n' "$block"; done
"""
"""One shell parses every block on its own, and runs none: `set -n` is in force for it."""


def unreadable(*blocks: str) -> str:
    command = ["bash", "-c", READS, "bash", *blocks]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_shell_reads_every_block(tmp_path: Path) -> None:
    assert unreadable(*(block.text for block in BLOCKS)) == ""
    quote, loop = 'echo "a\n', "while true\nx\n"
    wrong = unreadable("true\n", quote, f"touch {tmp_path}/run\n", loop)
    assert wrong.count("This is no shell") == 2
    assert not (tmp_path / "run").exists()


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
        source = file.read_text(encoding="utf-8")
        if not re.search(r"`skindx\s", source):
            continue
        for text in _texts(source) if file.suffix == ".py" else [source]:
            for named in re.findall(r"`skindx ([^`]+)`", " ".join(text.split())):
                words = named.split("|")[0].split()
                if words[0] == "X":  # the demo names the verb that it runs
                    continue
                command, arguments = command_of(words)
                assert words[0].startswith("--") or arguments != words, (file, named)
                options = {word.partition("=")[0] for word in arguments if word.startswith("-")}
                assert options <= options_of(command), (file, named)


def _texts(source: str) -> list[str]:
    """Return the strings of a program, an f-string's with X for what it fills in."""
    nodes = [*ast.walk(ast.parse(source))]
    joined = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        for node in nodes
        if isinstance(node, ast.JoinedStr)
    ]
    return joined + [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_settings_in_the_blocks_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    from skindx.data.recipe import BuildSettings
    from skindx.training.config.run import TrainSettings
    from skindx_bench.subjects import BENCHES

    monkeypatch.chdir(ROOT)
    for name in ("SKINDX_REAL", "SKINDX_CONTACT"):
        monkeypatch.setenv(name, "somewhere")
    for name, path, sets in settings_of(BLOCKS):
        if name == "train":
            TrainSettings.load(path, sets)
        elif name == "build" and path:
            BuildSettings.load(path, sets)
        elif name in BENCHES:
            assert {one.partition("=")[0].split(".")[0] for one in sets} <= keys_of(BENCHES[name])


@cache
def keys_of(module: str) -> set[str]:
    """Return what its source names: some benchmarks import half of what is installed."""
    file = ROOT / "benchmarks" / Path(*module.split(".")).with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == "Config":
            fields = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
            return {field.id for field in fields if isinstance(field, ast.Name)}
        if isinstance(node, ast.ImportFrom) and "Config" in [one.name for one in node.names]:
            return keys_of(str(node.module))
    raise ValueError(f"{module} has no settings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small dataset and bundle under the names that the guide uses."""
    mine = tmp_path_factory.mktemp("guide") / "runs/mine"
    shutil.copytree(FIXTURES / "dataset", mine / "data")
    shutil.copytree(FIXTURES / "whole/bundle", mine / "bundle")
    return mine.parents[1]


@pytest.mark.parametrize("block", RUN, ids=str)
def test_short_blocks_run(
    block: Block, folder: Path, skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for words in block.commands():
        code, _, err = skindx(*words)
        assert code == 0, err


def test_some_blocks_run() -> None:
    assert len([block for block in BLOCKS if block.runs]) >= 4
