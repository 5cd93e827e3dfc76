"""Methods plug in: the core of training does not know them."""

import ast
import re
from pathlib import Path

import pytest
from torch import nn

import skindx
from skindx.training.method import PLAIN, method_of

TRAINING = Path(skindx.__file__).parent / "training"
METHODS = TRAINING / "methods"

CORE = (
    "loop.py",
    "state.py",
    "checks.py",
    "gradient_sync.py",
    "method.py",
    "deepspeed/engine.py",
    "checkpoint/keeper.py",
    "checkpoint/resume.py",
    "checkpoint/saved_state.py",
    "tasks/optimizer.py",
)
"""What reads as if no method existed."""

NAMES = re.compile(
    r"k-?fac\b|sharding|split.layers|factored|\bowt|gpipe|pipeline|megatron|\bcubes?\b|\bhop|\btowers?\b"
)


@pytest.mark.parametrize("name", CORE)
def test_the_core_names_no_method(name: str) -> None:
    assert NAMES.findall((TRAINING / name).read_text(encoding="utf-8").lower()) == []


def test_kinds_of_the_kit_are_named_where_a_family_says_who_brings_them() -> None:
    """And among what is gone, which names what takes its place."""
    kinds = re.compile(r"\b(owt|factored|tensor3d)\b", re.IGNORECASE)
    homes = ("comm/exchange_kinds.py", "training/config/parallel_form.py", "core/removed_names.py")
    files = TRAINING.parent.rglob("*.py")
    named = {
        str(file.relative_to(TRAINING.parent)) for file in files if kinds.search(file.read_text())
    }
    assert named == set(homes)


def test_the_core_imports_no_method() -> None:
    for file in TRAINING.rglob("*.py"):
        if METHODS in file.parents:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert not f"{node.module}.".startswith("skindx.training.methods."), file


def test_one_method_does_not_know_another() -> None:
    for folder in (path for path in METHODS.iterdir() if path.is_dir()):
        for file in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                name = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                other = name.startswith("skindx.training.methods.")
                assert not other or name.split(".")[3] == folder.name, (file, name)


def test_a_network_without_a_method_is_trained_as_it_is() -> None:
    net = nn.Linear(2, 2)
    assert method_of(net) is PLAIN
    assert PLAIN.whole(net) is net
    assert PLAIN.whole_state(net).keys() == net.state_dict().keys()
    assert not PLAIN.whole_shapes(net)
