"""Checks how the code is laid out: sizes, budgets, class names, notes. `python .ci/structure.py`.

It reports sizes, and fails only beyond a limit of `.ci/structure.toml`.
A commit that needs more lines raises the budget of its package there, on purpose.
The processor time of each folder of tests in the last `make test` is compared with its budget.
"""

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
LIMITS = ROOT / ".ci/structure.toml"
JUNIT = ROOT / "build/junit.xml"
"""File that `make test` writes."""
PACKAGES = ("skindx", "methods/skindx_methods", "benchmarks/skindx_bench")
"""The wheel, the kit of methods and the lab."""
NO_TEXT = frozenset((".npz", ".safetensors", ".png", ".jpg", ".ico"))
PREPOSITION = re.compile(
    r"`?(above|after|against|among|as|at|before|behind|below|beside|between|beyond|by|during|for|from"
    r"|in|instead|into|like|of|on|over|per|since|than|through|to|under|until|with|within|without)"
    r"(?=[\s`,:;])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Module:
    """A Python file of a package; `path` is relative to the repository."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Return the parsed file."""
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        """Return the number of lines."""
        return self.text.count("\n")

    @property
    def import_lines(self) -> int:
        """Return the lines of all import statements."""
        return sum(
            node.end_lineno - node.lineno + 1
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Import | ast.ImportFrom) and node.end_lineno is not None
        )


def modules(root: Path, package: str) -> list[Module]:
    """Read all Python files of a package, for example `skindx`."""
    return [
        Module(path.relative_to(root), path.read_text(encoding="utf-8"))
        for path in sorted((root / package).rglob("*.py"))
    ]


def all_files(root: Path, package: str) -> dict[Path, int]:
    """Return the lines of every file of a package but weights, pictures and compiled modules."""
    return {
        path.relative_to(root): path.read_text(encoding="utf-8").count("\n")
        for path in sorted((root / package).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in NO_TEXT
    }


def beyond_reach(reach: Mapping[str, int], limits: Mapping[str, int]) -> Iterator[str]:
    """Yield one sentence for each verb that reaches more lines than it may."""
    for verb, most in limits.items():
        if reach[verb] > most:
            yield (
                f"skindx {verb} reaches {reach[verb]} lines; the limit is {most}. "
                f"`python .ci/reach.py {verb}` names the imports that cost the most."
            )


def beyond_files(files: Mapping[Path, int], limits: Mapping[str, int]) -> Iterator[str]:
    """Yield one sentence where the wheel's files of all kinds are too many or too long."""
    for what, value in (("files", len(files)), ("lines", sum(files.values()))):
        if value > limits[what]:
            yield f"the wheel has {value} {what} of all kinds; the limit is {limits[what]}."


def problems(
    wheel: list[Module], kit: list[Module], lab: list[Module], limits: Mapping[str, Any]
) -> Iterator[str]:
    """Yield one sentence for each limit that is exceeded."""
    yield from _totals("the wheel", wheel, limits["wheel"])
    yield from _totals("the kit", kit, limits["kit"])
    yield from _totals("the lab", lab, limits["lab"])
    yield from _sizes([*wheel, *kit], limits["file"], limits["folder"])
    yield from _budgets(wheel, limits["budget"])
    yield from repeated_classes([*wheel, *kit])
    yield from fragments([*wheel, *kit], limits["notes"]["begin_with_a_preposition"])


def _totals(name: str, files: list[Module], limits: Mapping[str, int]) -> Iterator[str]:
    values = {
        "lines": sum(module.lines for module in files),
        "files": len(files),
        "folders": len({module.path.parent for module in files}),
        "depth": max((len(module.path.parts) - 2 for module in files), default=0),
    }
    for what, most in limits.items():
        if what == "import_percent":
            share = 100 * sum(module.import_lines for module in files) / max(values["lines"], 1)
            if share > most:
                yield f"{share:.1f} % of {name}'s lines are imports; the limit is {most} %."
        elif values[what] > most:
            yield f"{name} has {values[what]} {what}; the limit is {most}."


def _sizes(
    files: list[Module], file: Mapping[str, int], folder: Mapping[str, int]
) -> Iterator[str]:
    for module in files:
        if module.lines > file["lines"]:
            yield f"{module.path} has {module.lines} lines; the limit is {file['lines']}. Split it."
    for path, count in Counter(module.path.parent for module in files).items():
        if count > folder["files"]:
            yield f"{path} has {count} files; the limit is {folder['files']}. Merge or split them."


def _budgets(files: list[Module], budget: Mapping[str, int]) -> Iterator[str]:
    lines = lines_by_package(files)
    for package, count in lines.items():
        if package not in budget:
            yield f"{package} has no budget of lines; add one to {LIMITS.name}."
        elif count > budget[package]:
            yield (
                f"{package} has {count} lines; its budget in {LIMITS.name} is {budget[package]}. "
                "Remove what the change makes superfluous, or raise the budget in the same commit."
            )
    for package in sorted(set(budget) - set(lines)):
        yield f"{LIMITS.name} has a budget for {package}, which is gone; remove the line."


def lines_by_package(files: Iterable[Module]) -> dict[str, int]:
    """Return the lines of each package directly below the root; its loose files count as `.`."""
    lines: Counter[str] = Counter()
    for module in files:
        below = module.path.parts[1:]
        lines[below[0] if len(below) > 1 else "."] += module.lines
    return dict(sorted(lines.items()))


def processor_shares(junit: Path) -> dict[str, float]:
    """Return what percentage of the suite's processor time each folder of `tests` took.

    `junit` is the file of the last `make test`; loose files count as `.`.
    """
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(junit).iter("testcase"):  # noqa: S314 (pytest wrote it)
        below = case.get("classname", "").split(".")[1:]
        folder = "." if not below or below[0].startswith("test_") else below[0]
        for spent in case.iterfind("properties/property[@name='processor_s']"):
            seconds[folder] += float(spent.get("value", 0))
    whole = max(sum(seconds.values()), 1e-9)
    return {folder: 100 * spent / whole for folder, spent in sorted(seconds.items())}


def beyond_shares(shares: Mapping[str, float], budget: Mapping[str, int]) -> Iterator[str]:
    """Yield one sentence for each folder whose tests take more of the whole than they may.

    They are remarks: a machine without a browser has other shares.
    """
    for folder, share in shares.items():
        if folder not in budget:
            yield f"tests/{folder} has no budget of processor time; add one to {LIMITS.name}."
        elif share > budget[folder]:
            yield (
                f"tests/{folder} took {share:.1f} % of the last suite's processor time; its budget "
                f"in {LIMITS.name} is {budget[folder]} %. Share what its tests start, or move "
                "faults and soaks to `make test-long`."
            )


def code_in_boxes(root: Path) -> Iterator[str]:
    """Yield one sentence for each file of an installed bundle that is more than a docstring."""
    for path in sorted(root.glob("models/*/skindx_*/**/*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        if path.name != "__init__.py" or len(body) > 1 or not isinstance(body[0], ast.Expr):
            yield f"{path.relative_to(root)} holds code; a bundle is data, and is never imported."


def repeated_classes(files: Iterable[Module]) -> Iterator[str]:
    """Yield one sentence for each class name that is defined more than once."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in files:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module.path}:{node.lineno}")
    for name, where in sorted(places.items()):
        if len(where) > 1:
            yield f"class {name} is defined {len(where)} times ({', '.join(where)}); rename one."


def fragments(files: Iterable[Module], most: int) -> Iterator[str]:
    """Yield a sentence where more than `most` docstrings and notes begin with a preposition."""
    found = [
        f"{module.path}:{line}"
        for module in files
        for line, text in sorted(notes(module))
        if PREPOSITION.match(text.lstrip())
    ]
    if len(found) > most:
        places = ", ".join(found[:20]) + (", …" if len(found) > 20 else "")
        yield (
            f"{len(found)} docstrings and notes begin with a preposition; the limit is {most}."
            f" Say first what the value is, as in `Seconds between two heartbeats`: {places}."
        )


def notes(module: Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, and of each string behind a field or constant."""
    documented = (
        ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign
        | ast.AnnAssign
    )  # fmt: skip
    for node in ast.walk(module.tree):
        body = getattr(node, "body", None)
        for above, one in pairwise([node, *body] if isinstance(body, list) else []):
            if isinstance(above, documented) and isinstance(one, ast.Expr):
                value = one.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield one.lineno, value.value


def report(wheel: list[Module], kit: list[Module], lab: list[Module]) -> str:
    """Return the sizes of the distributions, largest packages and files first."""
    rows = []
    for name, files in (("wheel", wheel), ("kit", kit), ("lab", lab)):
        lines = sum(module.lines for module in files)
        imports = sum(module.import_lines for module in files)
        folders = len({module.path.parent for module in files})
        small = sum(module.lines < 40 and module.path.name[:2] != "__" for module in files)
        rows.append(
            f"{name}: {lines} lines in {len(files)} files and {folders} folders; "
            f"{100 * imports / max(lines, 1):.1f} % imports; {small} files under 40 lines"
        )
    by_size = sorted(lines_by_package(wheel).items(), key=lambda item: -item[1])
    rows.append("packages: " + ", ".join(f"{name} {lines}" for name, lines in by_size))
    longest = sorted(wheel, key=lambda module: -module.lines)[:5]
    rows.append("longest: " + ", ".join(f"{module.path} {module.lines}" for module in longest))
    return "\n".join(rows)


def main() -> int:
    """Print the report and every problem; return 1 where there is one."""
    from reach import reach_lines

    wheel, kit, lab = (modules(ROOT, package) for package in PACKAGES)
    print(report(wheel, kit, lab))
    limits = tomllib.loads(LIMITS.read_text(encoding="utf-8"))
    files, reach = all_files(ROOT, "skindx"), reach_lines(ROOT)
    kinds = Counter(path.suffix or path.name for path in files).most_common()
    print(
        f"all files of the wheel: {sum(files.values())} lines in {len(files)} files: "
        + ", ".join(f"{count} {suffix}" for suffix, count in kinds)
    )
    print("reach by imports: " + ", ".join(f"{verb} {lines}" for verb, lines in reach.items()))
    exceeded = list(problems(wheel, kit, lab, limits))
    exceeded += beyond_files(files, limits["wheel_of_all_kinds"])
    exceeded += beyond_reach(reach, limits["reach"])
    exceeded += code_in_boxes(ROOT)
    for sentence in exceeded:
        print(sentence)
    if JUNIT.is_file():
        for sentence in beyond_shares(processor_shares(JUNIT), limits["processor_percent"]):
            print(sentence)
    return int(bool(exceeded))


if __name__ == "__main__":
    sys.exit(main())
