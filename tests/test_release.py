"""The release checklist: where versions stand, what it lists, and that a failure ends it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci/release.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["release"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project whose version was just set to 1.2.3."""
    (tmp_path / "skindx").mkdir()
    (tmp_path / "skindx/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CITATION.cff").write_text("title: x\nversion: 1.2.2\ndate-released: 2026-01-01\n")
    (tmp_path / ".zenodo.json").write_text('{"version": "1.2.2", "title": "x"}')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (unreleased)\n\n- x\n")
    return tmp_path


def test_the_version_is_the_same_everywhere(release: ModuleType) -> None:
    assert release.disagreements(ROOT) == []
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert 5 < release.newest_lines(changelog) <= release._LONGEST_CHANGELOG


def test_write_makes_a_release_of_it(release: ModuleType, project: Path) -> None:
    assert len(release.disagreements(project)) == 2
    assert "says 1.2.2, not 1.2.3: run `python" in release.disagreements(project)[0]
    assert release.unfinished(project) == ["CHANGELOG.md calls 1.2.3 unreleased: --write dates it."]
    for _ in range(2):
        release.write(project, "2026-12-01")
        assert release.disagreements(project) + release.unfinished(project) == []
    citation = yaml.safe_load((project / "CITATION.cff").read_text())
    assert (citation["version"], str(citation["date-released"])) == ("1.2.3", "2026-12-01")
    assert json.loads((project / ".zenodo.json").read_text()) == {"version": "1.2.3", "title": "x"}


def test_what_is_no_release(release: ModuleType, project: Path) -> None:
    (project / "skindx/__init__.py").write_text('__version__ = "1.3.0.dev0"\n')
    (project / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (2026-12-01)\n" + "\n" * 120)
    wrong = release.unfinished(project)
    assert [sentence.partition(" ")[0] for sentence in wrong] == [
        *("skindx/__init__.py", "CHANGELOG.md", "the")
    ]
    assert "121 lines, not 120" in wrong[2]


def test_dry_lists_and_runs_nothing() -> None:
    command = [sys.executable, ROOT / ".ci/release.py", "--dry", "--long", "--offline"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [line.partition(":")[0] for line in ran.stdout.splitlines()]
    assert names == [
        *("clean", "version", "free-tag", "stable", "check", "dist", "sbom", "tests"),
        *("long", "tag"),
    ]


def test_a_failure_is_a_line_and_costly_steps_wait(
    release: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> str:
        raise release.StepFailedError("not committed: x")

    step = release.Step
    good = release.go_through(
        [
            step("clean", "nothing is left", fails),
            step("version", "all agree", lambda: "1.2.3"),
            step("tests", "the whole suite", fails, costly=True),
        ]
    )
    assert not good
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "FAILED   clean: not committed: x"
    assert second == "ok    0 s version: all agree: 1.2.3"
    assert third == "not run  tests: the whole suite"
