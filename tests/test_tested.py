"""What the noted pass of lab and kit stands on: their files, helpers and contracts, no more."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def tested():
    spec = importlib.util.spec_from_file_location("tested", ROOT / ".ci/tested.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULE = '''"""A module."""
import os
LIMIT = 3
class Box:
    """A box."""
    width: int
    def area(self, scale: float) -> float:
        return self.width * scale
def _inner(): ...
'''


@pytest.fixture
def tree(tmp_path):
    texts = {
        "conftest.py": "",
        "requirements.lock": "torch==2",
        "benchmarks/skindx_bench/a.py": "from skindx.data import box\nimport skindx_methods.hop\n",
        "methods/skindx_methods/hop.py": "def hop(x): return x\n",
        "benchmarks/tests/test_a.py": "import painter\n",
        "tests/support/painter.py": "from brush import stroke\n",
        "tests/support/brush.py": "def stroke(): ...\n",
        "tests/support/other.py": "x = 1\n",
        "skindx/data/__init__.py": "",
        "skindx/data/box.py": MODULE,
        "skindx/data/far.py": "x = 1\n",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "old", "new", "counts"),
    [
        ("skindx/data/box.py", "scale: float)", "scale: int)", True),
        ("skindx/data/box.py", "width: int", "width: float", True),
        ("skindx/data/box.py", "LIMIT = 3", "LIMIT = 4", True),
        ("skindx/data/box.py", "self.width * scale", "scale * self.width", False),
        ("skindx/data/box.py", "A box.", "One box.", False),
        ("skindx/data/box.py", "_inner(): ...", "_other(): ...", False),
        ("skindx/data/far.py", "1", "2", False),
        ("methods/skindx_methods/hop.py", "hop(x)", "hop(y)", True),
        ("methods/skindx_methods/hop.py", "return x", "return 2 * x", False),
        ("requirements.lock", "2", "3", True),
        ("benchmarks/tests/test_a.py", "import", "import ", True),
        ("tests/support/brush.py", "...", "pass", True),
        ("tests/support/other.py", "1", "2", False),
    ],
)
def test_a_pass_is_void_once_something_it_stands_on_changes(tested, tree, path, old, new, counts):
    before = tested.state(tree, ["benchmarks"])
    text = (tree / path).read_text()
    assert old in text
    (tree / path).write_text(text.replace(old, new))
    assert (tested.state(tree, ["benchmarks"]) != before) == counts


def test_what_runs_leave_behind_does_not_count(tested, tree):
    before = tested.state(tree, ["benchmarks"])
    for name in ("__pycache__/a.pyc", "lab.egg-info/PKG-INFO", ".cache/x", "skindx_bench/.b.swp"):
        (tree / "benchmarks" / name).parent.mkdir(exist_ok=True)
        (tree / "benchmarks" / name).write_text("x")
    assert tested.state(tree, ["benchmarks"]) == before
    (tree / "benchmarks/new.py").write_text("")
    assert tested.state(tree, ["benchmarks"]) != before


def test_a_pass_is_noted_by_name(tested, tree, monkeypatch):
    monkeypatch.setattr(tested, "ROOT", tree)
    monkeypatch.setattr(tested, "NOTED", tree / "tested.json")
    assert tested.main("check", "lab") == 1
    assert tested.main("note", "lab") == tested.main("check", "lab") == 0
    assert tested.main("check", "methods") == 1
    assert tested.main("note", "methods") == tested.main("check", "lab") == 0
