"""DeepSpeed's names and quirks stand in skindx/training/deepspeed alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import skindx

PACKAGE = Path(skindx.__file__).parent
ROOM = PACKAGE / "training/deepspeed"
DOOR = "skindx.training.deepspeed"

MARKS = ("deepspeed", "ds_accelerator")
ALLOWED = {
    "demo/__init__.py": "a line that the demo prints",
    "cli/train.py": "a package that the verb needs",
    "api/verbs.py": "a package that the function needs",
    "evaluation/features.py": "a package that a head needs",
    "core/machine.py": "names of packages, and the extras that bring them",
    "training/checkpoint/fingerprints.py": "engine.deepspeed is a setting of the user",
    "doctor.py": "names of packages, and what a finding is called",
    "training/ensembles/member_refs.py": "engine.deepspeed is a setting of the user",
    "training/config/engine.py": "engine.deepspeed is a setting of the user",
}
"""Folder or file -> why it names DeepSpeed."""


def _words(tree: ast.AST) -> Iterator[str]:
    """Yield names and strings of code, without docstrings and what is imported from the room."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if not f"{node.module}.".startswith(f"{DOOR}."):
                yield str(node.module)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in prose:
                yield node.value
        else:
            for field in ("id", "attr", "arg", "name", "asname"):
                if isinstance(value := getattr(node, field, None), str):
                    yield value


def _says_it(source: str) -> bool:
    if not any(mark in source.lower() for mark in MARKS):
        return False
    return any(mark in word.lower() for word in _words(ast.parse(source)) for mark in MARKS)


def test_names_and_strings_are_found_and_prose_is_not() -> None:
    for source in (
        "import deepspeed",
        "from deepspeed import zero",
        "from skindx.training.deepspeed.x import y as deepspeed_y",
        "run(deepspeed=1)",
        "module.enable_DeepSpeed()",
        "os.environ['DS_ACCELERATOR'] = 'cpu'",
    ):
        assert _says_it(source), source
    for source in (
        '"""Under DeepSpeed."""',
        "x = 1  # DeepSpeed",
        "from skindx.training.deepspeed.engine import Engine",
    ):
        assert not _says_it(source), source


def test_no_other_code_names_deepspeed() -> None:
    found = {
        file.relative_to(PACKAGE)
        for file in PACKAGE.rglob("*.py")
        if ROOM not in file.parents and _says_it(file.read_text(encoding="utf-8"))
    }
    allowed = {name: {path for path in found if path.is_relative_to(name)} for name in ALLOWED}
    assert found - set().union(*allowed.values()) == set()
    assert [name for name, paths in allowed.items() if not paths] == [], "no longer needed"
