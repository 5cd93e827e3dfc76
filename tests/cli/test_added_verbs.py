"""Verbs of other distributions: found when they are called, one sentence where they cannot be."""

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Skindx

from skindx import __version__
from skindx.cli.options import GROUP

Add = Callable[..., None]

ROOT = Path(__file__).resolve().parents[2]

GREETING = """
import typer
app = typer.Typer()

@app.command()
def greet(name: str) -> None:
    "Greet somebody."
    print(f"hello {name}")
"""


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Return a function that installs a distribution with a verb."""

    def install(distribution: str, version: str, verb: str, module: str, code: str) -> None:
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (info / "METADATA").write_text(metadata)
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{verb} = {module}:app\n")
        (tmp_path / f"{module}.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def test_a_verb_of_another_distribution_is_called(skindx: Skindx, add: Add) -> None:
    add("skindx-greeting", "3.1", "greet", "greeting_verb", GREETING)
    assert skindx("greet", "you") == (0, "hello you\n", "")
    code, shown, _ = skindx("greet", "--help")
    assert (code, "Greet somebody." in shown) == (0, True)


@pytest.mark.parametrize("arguments", [("bench",), ("bench", "--help"), ("bench", "startup")])
def test_without_the_lab_one_sentence_says_what_to_install(
    skindx: Skindx, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    code, printed, err = skindx(*arguments)
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert f"pip install {ROOT / 'methods'} {ROOT / 'benchmarks'}`" in err


def test_a_lab_of_another_version_is_refused(skindx: Skindx, add: Add) -> None:
    add("skindx-bench", "0.0.9", "bench", "older_lab", GREETING)
    code, printed, err = skindx("bench", "startup")
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert f"skindx-bench has version 0.0.9, but skindx has version {__version__}" in err


@pytest.mark.parametrize(
    ("module", "code", "reported"),
    [
        ("broken_verb", "import no_such_module", "ModuleNotFoundError: No module named"),
        ("raising_verb", "raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("empty_verb", "", "AttributeError"),
        ("odd_verb", "app = 7", "is a int, not a typer.Typer"),
    ],
)
def test_a_verb_that_cannot_be_imported_is_one_sentence(
    skindx: Skindx, add: Add, module: str, code: str, reported: str
) -> None:
    add("skindx-odd", "1.0", "odd", module, code)
    result = skindx("odd", "it")
    assert (result[0], result[1], result[2].count("\n")) == (2, "", 1)
    assert reported in result[2]
    assert "skindx-odd" in result[2]


def test_the_lab_has_the_version_of_skindx() -> None:
    assert importlib.metadata.version("skindx-bench") == __version__
    both = [f"skindx=={__version__}", f"skindx-methods=={__version__}"]
    assert sorted(importlib.metadata.requires("skindx-bench") or ()) == sorted(both)
