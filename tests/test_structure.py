"""The check of sizes, budgets, class names and notes: planted cases, and this repository."""

import importlib.util
import re
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def structure():
    spec = importlib.util.spec_from_file_location("structure", ROOT / ".ci/structure.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["structure"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["structure"]


LIMITS = {
    "wheel": {"lines": 40, "files": 3, "folders": 2, "depth": 1, "import_percent": 30},
    "kit": {"lines": 10, "files": 2},
    "lab": {"lines": 10, "files": 2},
    "file": {"lines": 20},
    "folder": {"files": 2},
    "budget": {".": 10, "data": 30},
    "notes": {"begin_with_a_preposition": 1},
}


def found(structure, root, texts, limits=LIMITS):
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    packages = [structure.modules(root, name) for name in ("skindx", "methods", "benchmarks")]
    return list(structure.problems(*packages, limits))


def test_a_tree_within_its_limits_has_no_problem(structure, tmp_path):
    texts = {"skindx/__init__.py": "a = 1\n", "skindx/data/box.py": "class Box: ...\n"}
    assert found(structure, tmp_path, texts) == []


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({"skindx/data/a.py": "x = 1\n" * 21}, "skindx/data/a.py has 21 lines; the limit is 20"),
        ({f"skindx/data/{n}.py": "x = 1\n" for n in "abc"}, "skindx/data has 3 files"),
        ({f"skindx/data/{n}.py": "x = 1\n" * 16 for n in "ab"}, "data has 32 lines; its budget"),
        ({"skindx/new/a.py": "x = 1\n"}, "new has no budget"),
        ({"skindx/a.py": "x = 1\n"}, "a budget for data, which is gone"),
        ({"skindx/data/deep/a.py": "x = 1\n"}, "the wheel has 2 depth"),
        ({"benchmarks/a.py": "x = 1\n" * 11}, "the lab has 11 lines"),
        ({"methods/a.py": "x = 1\n" * 11}, "the kit has 11 lines"),
        ({"skindx/data/a.py": "import os\n" * 4 + "x = 1\n"}, "80.0 % of the wheel's lines"),
        (
            {"skindx/data/a.py": "class Row: ...\n", "skindx/data/b.py": "class Row: ...\n"},
            "class Row is defined 2 times (skindx/data/a.py:1, skindx/data/b.py:1)",
        ),
        (
            {"skindx/data/a.py": '"""Of rows."""\nBEAT_S = 1\n"""Between two beats."""\n'},
            "2 docstrings and notes begin with a preposition; the limit is 1. ",
        ),
    ],
)
def test_each_limit_is_named_once_exceeded(structure, tmp_path, texts, sentence):
    assert any(sentence in problem for problem in found(structure, tmp_path, texts))


NOTED = '''"""Of the module."""
class Box:
    """A box."""
    side: int
    """In pixels."""
    def area(self):
        """Return the area.

        With a unit."""
        "of no field"
        self.kept = 1
        """`From` here on."""
async def wait(): "At once."
print()
"""Between two statements: it documents nothing."""
label = """of text"""
'''


def test_docstrings_and_field_notes_that_begin_with_a_preposition_are_found(structure):
    module = structure.Module(Path("a.py"), NOTED)
    lines = sorted(line for line, _ in structure.notes(module))
    assert lines == [1, 3, 5, 7, 12, 13]
    (sentence,) = structure.fragments([module], 3)
    assert sentence.startswith("4 docstrings and notes begin with a preposition;")
    assert sentence.endswith("a.py:1, a.py:5, a.py:12, a.py:13.")
    assert list(structure.fragments([module], 4)) == []


def test_every_text_of_a_package_counts(structure, tmp_path):
    for name in ("a.py", "page.jinja", "weights.npz", "__pycache__/a.pyc"):
        (tmp_path / "skindx" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "skindx" / name).write_text("x\ny\n")
    files = structure.all_files(tmp_path, "skindx")
    assert {path.name: lines for path, lines in files.items()} == {"a.py": 2, "page.jinja": 2}
    assert list(structure.beyond_files(files, {"files": 2, "lines": 4})) == []
    sentences = list(structure.beyond_files(files, {"files": 1, "lines": 3}))
    assert [words.split()[3:5] for words in sentences] == [["2", "files"], ["4", "lines"]]


MODULES = {
    "__init__": "from skindx.core import far\n",
    "cli/__init__": "def verbs():\n    from skindx.cli import other\n",
    "cli/train": "from skindx.core import a\n",
    "cli/other": "x = 1\n" * 50,
    "core/__init__": "",
    "core/a": "def lazy():\n    from skindx.core.b import c\n    import torch\n",
    "core/b": "if TYPE_CHECKING:\n    from skindx.core import far\nelse:\n    c = 1\n",
    "core/far": "x = 1\n" * 100,
}


def test_reach_counts_lazy_imports_and_no_types(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    reach = importlib.import_module("reach")
    for name, text in MODULES.items():
        (tmp_path / f"skindx/{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"skindx/{name}.py").write_text(text)
    lines = reach.reach_lines(tmp_path, ["train"])
    assert lines == {"train": 1 + 1 + 3 + 4}
    assert reach.costly_imports(tmp_path, "train")[0] == (7, "skindx.cli.train", "skindx.core.a")


def test_a_verb_that_reaches_more_than_it_may_is_named(structure):
    assert list(structure.beyond_reach({"train": 9, "build": 3}, {"train": 9})) == []
    (sentence,) = structure.beyond_reach({"train": 9}, {"train": 8})
    assert sentence.startswith("skindx train reaches 9 lines; the limit is 8. ")


JUNIT = """<testsuites><testsuite>
<testcase classname="tests.data.copies.test_a" name="one"><properties>
<property name="processor_s" value="6.5"/></properties></testcase>
<testcase classname="tests.data.test_b.TestBox" name="two"><properties>
<property name="other" value="7"/><property name="processor_s" value="1.5"/></properties></testcase>
<testcase classname="tests.test_c" name="three"><properties>
<property name="processor_s" value="2"/></properties></testcase>
<testcase classname="tests.ui.test_d" name="skipped"/>
</testsuite></testsuites>"""


def test_a_folder_beyond_its_share_of_the_processor_time_is_named(structure, tmp_path):
    (tmp_path / "junit.xml").write_text(JUNIT)
    shares = structure.processor_shares(tmp_path / "junit.xml")
    assert shares == {"data": pytest.approx(80), ".": pytest.approx(20)}
    assert list(structure.beyond_shares(shares, {".": 20, "data": 80, "ui": 5})) == []
    sentences = list(structure.beyond_shares(shares, {"data": 79}))
    assert [sentence[:12] for sentence in sentences] == ["tests/. has ", "tests/data t"]
    assert "80.0 % of the last suite's processor time; its budget" in sentences[1]


def test_each_folder_of_tests_has_a_budget_of_processor_time():
    limits = tomllib.loads((ROOT / ".ci/structure.toml").read_text())
    paths = [path.relative_to(ROOT / "tests").parts for path in ROOT.glob("tests/**/test_*.py")]
    folders = {parts[0] if len(parts) > 1 else "." for parts in paths}
    assert folders <= set(limits["processor_percent"])


def test_a_test_notes_its_processor_time(request):
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    item = SimpleNamespace(stash={conftest.BEGAN_S: conftest._processor_s()}, user_properties=[])
    used_s = time.process_time()
    while time.process_time() < used_s + 0.05:
        pass
    for when in ("setup", "call", "teardown"):
        conftest.pytest_runtest_makereport(item, SimpleNamespace(when=when))
    [(name, value)] = item.user_properties
    assert name == "processor_s"
    assert 0.03 < value < 5


def test_no_test_of_the_wheel_imports_the_lab_or_the_kit():
    """Also not in the code of a process that a test starts."""
    imports = re.compile(r"^\s*(?:from|import) skindx_(?:bench|methods)\b", re.MULTILINE)
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 400
    wrong = {file.name for file in files if imports.search(file.read_text(encoding="utf-8"))}
    # The guide names benchmarks, whose settings are looked up.
    assert wrong <= {"test_docs_commands.py"}


def test_the_glossary_has_at_most_40_words_and_each_is_used():
    table = (ROOT / "docs/reference/glossary.md").read_text()
    words = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]
    assert 20 <= len(words) <= 40
    assert len(set(words)) == len(words)
    pages = [page for page in ROOT.glob("docs/**/*.md") if page.stem != "glossary"]
    pages += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    guide = "\n".join(page.read_text() for page in pages).lower()
    unused = [word for word in words for part in word.split(", ") if part.rstrip("y") not in guide]
    assert not unused


def test_an_installed_bundle_is_data(structure, tmp_path):
    package = tmp_path / "models/toy/skindx_toy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""A bundle."""\n')
    assert not list(structure.code_in_boxes(tmp_path))
    (package / "__init__.py").write_text('"""A bundle."""\nprint(1)\n')
    (package / "more.py").write_text('"""Text."""\n')
    assert [line.split()[0] for line in structure.code_in_boxes(tmp_path)] == [
        "models/toy/skindx_toy/__init__.py", "models/toy/skindx_toy/more.py"
    ]  # fmt: skip
    assert not list(structure.code_in_boxes(ROOT))
