"""The release checklist: `make release` does everything but the upload, `FLAGS=--dry` lists it.

The version stands in `skindx/__init__.py` alone. `python .ci/release.py --write` copies it into
CITATION.cff and .zenodo.json, and dates the changelog; a test compares them.

Cheap steps all run, so that one call names all that is missing; the first costly one that fails
ends it. What a step printed is in build/release/STEP.log. Nothing is pushed and nothing uploaded.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = Path("build/release")
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_HEAD = re.compile(r"^## (\S+) \(([^)]*)\)$", re.MULTILINE)
_LONGEST_CHANGELOG = 120


class StepFailedError(Exception):
    """A step is not as it should be, in one sentence with what to do."""


def version_of(root: Path) -> str:
    """Return the version, from the one place where it stands."""
    match = _VERSION.search((root / "skindx/__init__.py").read_text(encoding="utf-8"))
    assert match is not None
    return match[1]


def disagreements(root: Path) -> list[str]:
    """Return where another version stands, or none, in sentences."""
    version = version_of(root)
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    cited = re.search(r"^version: (\S+)$", citation, re.MULTILINE)
    places = {
        "CITATION.cff": cited[1] if cited else "no version",
        ".zenodo.json": json.loads((root / ".zenodo.json").read_text(encoding="utf-8"))["version"],
    }
    return [
        f"{place} says {there}, not {version}: run `python .ci/release.py --write`."
        for place, there in places.items()
        if there != version
    ]


def newest_lines(changelog: str) -> int:
    """Return how many lines the newest version's section has."""
    return "\n".join(changelog.split("\n## ")[1:2]).count("\n")


def unfinished(root: Path) -> list[str]:
    """Return what else keeps the version from being a release."""
    version, text = version_of(root), (root / "CHANGELOG.md").read_text(encoding="utf-8")
    head = _HEAD.search(text)
    wrong = []
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        wrong.append(f"skindx/__init__.py has the version {version}: set the one of the release.")
    if head is None or head[1] != version:
        wrong.append(f"CHANGELOG.md does not begin with a section of {version}: write one.")
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", head[2]):
        wrong.append(f"CHANGELOG.md calls {version} {head[2]}: --write dates it.")
    if (lines := newest_lines(text)) > _LONGEST_CHANGELOG:
        wrong.append(
            f"the newest section of CHANGELOG.md has {lines} lines, not {_LONGEST_CHANGELOG}: "
            "shorten it."
        )
    return wrong


def write(root: Path, today: str) -> None:
    """Copy the version to where it stands too, and date the newest section of the changelog."""
    version = version_of(root)
    citation = root / "CITATION.cff"
    lines = citation.read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith(("version: ", "date-released: "))]
    lines += [f"version: {version}", f"date-released: {today}"]
    citation.write_text("\n".join(lines) + "\n", encoding="utf-8")
    zenodo = root / ".zenodo.json"
    record = json.loads(zenodo.read_text(encoding="utf-8")) | {"version": version}
    zenodo.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    dated = text.replace(f"## {version} (unreleased)", f"## {version} ({today})", 1)
    changelog.write_text(dated, encoding="utf-8")


@dataclass(frozen=True)
class Step:
    """One line of the checklist; `run` returns what to add to it."""

    name: str
    what: str
    run: Callable[[], str]
    costly: bool = False


def _output(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StepFailedError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


def _logged(name: str, *command: str, cwd: Path = ROOT) -> str:
    log = ROOT / LOGS / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        print("$", *command, file=file, flush=True)
        done = subprocess.run(command, cwd=cwd, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise StepFailedError(f"`{' '.join(command)}` failed; see {LOGS / log.name}")
    return ""


def _clean() -> str:
    if changed := _output("git", "status", "--porcelain"):
        raise StepFailedError(f"not committed: {', '.join(changed.splitlines()[:5])}")
    return _output("git", "rev-parse", "--short", "HEAD")


def _agree() -> str:
    if wrong := disagreements(ROOT) + unfinished(ROOT):
        raise StepFailedError(" ".join(wrong))
    return version_of(ROOT)


def _free_tag() -> str:
    tag = f"v{version_of(ROOT)}"
    if _output("git", "tag", "--list", tag):
        raise StepFailedError(f"the tag {tag} is there: set another version.")
    return tag


def _stable() -> str:
    listed = ROOT / "docs/reference/stable-names.txt"
    with tempfile.TemporaryDirectory() as temporary:
        now = Path(temporary) / "names.txt"
        _logged("stable", sys.executable, "tests/support/stable_names.py", str(now))
        if now.read_bytes() != listed.read_bytes():
            raise StepFailedError(
                "new names are not on the list, or listed ones are gone: run `python "
                "tests/support/stable_names.py docs/reference/stable-names.txt` and read its diff."
            )
    return f"{len(listed.read_text(encoding='utf-8').splitlines()):,} names"


def _dist() -> str:
    """Build here and in a clone, and compare the files by hash."""
    commit_s = _output("git", "log", "-1", "--format=%ct")
    os.environ["SOURCE_DATE_EPOCH"] = commit_s
    with tempfile.TemporaryDirectory() as temporary:
        clone = Path(temporary) / "clone"
        _logged("dist", "git", "clone", "--quiet", str(ROOT), str(clone))
        first = _built(ROOT, Path(temporary) / "here")
        second = _built(clone, Path(temporary) / "cloned")
        if first != second:
            names = sorted({name for name, _ in first.items() ^ second.items()})
            raise StepFailedError(f"two builds differ in {', '.join(names)}")
        (ROOT / "dist").mkdir(exist_ok=True)
        for name in first:
            shutil.copy2(Path(temporary) / "here" / name, ROOT / "dist" / name)
    return ", ".join(f"{name} {sha256[:12]}" for name, sha256 in first.items())


def _built(root: Path, out: Path) -> dict[str, str]:
    build = (sys.executable, "-m", "hatchling", "build", "-d", str(out))
    boxes = [file.parent for file in sorted(root.glob("models/*/pyproject.toml"))]
    for folder in (root, root / "methods", root / "benchmarks", *boxes):
        _logged("dist", *build, cwd=folder)
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(out.iterdir())
        if file.name.endswith((".whl", ".tar.gz"))
    }


def _tag() -> str:
    tag = f"v{version_of(ROOT)}"
    return (
        f"git tag -s {tag} -m 'skindx {tag[1:]}' && git push origin {tag}; then upload dist/*.whl "
        "dist/*.tar.gz dist/skindx.cdx.json. Neither was done."
    )


def steps(*, long: bool, offline: bool) -> list[Step]:
    """Return the checklist in order."""

    def make(name: str) -> Callable[[], str]:
        return lambda: _logged(name, "make", name)

    return [
        Step("clean", "nothing is left uncommitted", _clean),
        Step("version", "version, CHANGELOG, CITATION and .zenodo agree and are dated", _agree),
        Step("free-tag", "no tag of the version is there", _free_tag),
        Step("stable", "the list of stable names is complete", _stable),
        Step("check", "sizes, style, types, imports, the guide", make("check"), costly=True),
        Step("dist", "wheels and sdists, built twice to the same bytes", _dist, costly=True),
        Step("sbom", "the software bill of materials", make("sbom"), costly=True),
        *([] if offline else [Step("links", "every link of the guide", make("docs-links"), True)]),
        Step("tests", "all tests, with those of methods and lab", make("test-all"), costly=True),
        *([Step("long", "soak and fault tests", make("test-long"), True)] if long else []),
        Step("tag", "the commands that are left", _tag, costly=True),
    ]


def go_through(checklist: list[Step]) -> bool:
    """Run the steps, a line each; return whether all are as they should be."""
    good = True
    for step in checklist:
        if step.costly and not good:
            print(f"not run  {step.name}: {step.what}", flush=True)
            continue
        began = time.monotonic()
        try:
            added = step.run()
        except StepFailedError as error:
            good = False
            print(f"FAILED   {step.name}: {error}", flush=True)
        else:
            took = time.monotonic() - began
            words = ": ".join(filter(None, (f"{step.name}: {step.what}", added)))
            print(f"ok {took:4.0f} s {words}", flush=True)
    return good


def main(arguments: list[str]) -> int:
    """Parse the flags and go through the list."""
    parser = argparse.ArgumentParser(description="The release checklist.")
    parser.add_argument("--dry", action="store_true", help="list the steps and run none")
    parser.add_argument("--long", action="store_true", help="the long tests and the lab too")
    parser.add_argument("--offline", action="store_true", help="leave the links out")
    parser.add_argument("--write", action="store_true", help="copy the version, date the changelog")
    flags = parser.parse_args(arguments)
    if flags.write:
        write(ROOT, f"{datetime.now(UTC):%Y-%m-%d}")
        return 0
    checklist = steps(long=flags.long, offline=flags.offline)
    if flags.dry:
        print("\n".join(f"{step.name}: {step.what}" for step in checklist))
        return 0
    return 0 if go_through(checklist) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
