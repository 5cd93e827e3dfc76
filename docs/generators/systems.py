"""The table of published systems, from the `PAPER` line of the module that is each one's home."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("skindx", "methods/skindx_methods", "benchmarks/skindx_bench")


@dataclass(frozen=True)
class System:
    """A published system: its paper, and where its code, its test and its figure are."""

    name: str
    paper: str
    file: str
    test: str
    figure: str


def systems() -> list[System]:
    """Return every system named by a `PAPER` line, sorted by name; nothing is imported."""
    homes = [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "\nPAPER = " in path.read_text(encoding="utf-8")
    ]
    return sorted(
        (system for path in homes for system in _of(path)), key=lambda system: system.name.lower()
    )


def _of(path: Path) -> Iterator[System]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign) or ast.unparse(node.targets[0]) != "PAPER":
            continue
        lines = ast.literal_eval(node.value)
        for line in (lines,) if isinstance(lines, str) else lines:
            name, paper, test, figure = (part.strip() for part in line.split(" | "))
            yield System(name, paper, path.relative_to(ROOT).as_posix(), test, figure)


def systems_page() -> str:
    """Return the page with the table, for the generated reference."""
    rows = [
        f"| {system.name} | {system.paper} | "
        f"`{system.file}`<br>`{system.test}`<br>`{system.figure}` |"
        for system in systems()
    ]
    return "\n".join([_LEAD, *rows, ""])


_LEAD = """# Published systems

Each published system that skindx builds on has one module as its home. Its `PAPER` line names the
paper, the test that compares the code with the paper's rule, and the JSON of its measured figure.

| system | paper | file, test, figure |
|---|---|---|"""
