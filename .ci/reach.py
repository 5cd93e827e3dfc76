"""Counts the lines of the wheel that each verb reaches by imports: `python .ci/reach.py [VERB …]`.

Imports inside functions count. Those for types alone do not, and neither do kinds that are loaded
by their names, of which a run needs one. With a verb it also names the imports that cost the most:
how many lines fewer would be reached without each.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERBS = ("build", "audit", "train", "evaluate", "diagnose", "scan", "serve")
"""Those of `skindx/cli` whose reach is in the report."""
_DOORS = ("skindx", "skindx.cli")
"""They lead to every verb, of which a process takes one."""


def module_files(root: Path) -> dict[str, Path]:
    """Return the file of each module of the wheel by its dotted name."""
    files = {}
    for path in (root / "skindx").rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports_of(text: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of the wheel that a module imports, with their packages."""
    for name in _names(ast.parse(text)):
        parts = name.split(".")
        for last in range(1, len(parts) + 1):
            if (module := ".".join(parts[:last])) in modules:
                yield module


def _names(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _names(other)
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from _names(child)


def import_graph(root: Path) -> dict[str, set[str]]:
    """Return the modules that each module of the wheel imports."""
    files = module_files(root)
    return {
        name: set(imports_of(path.read_text(encoding="utf-8"), files)) - {name}
        if name not in _DOORS
        else set()
        for name, path in files.items()
    }


def reached(graph: Mapping[str, set[str]], entry: str) -> set[str]:
    """Return an entry's module and all that it imports, directly or through others."""
    seen, waiting = {entry}, [entry]
    while waiting:
        for name in graph[waiting.pop()] - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def line_counts(root: Path) -> dict[str, int]:
    """Return the lines of each module of the wheel."""
    files = module_files(root)
    return {name: path.read_text(encoding="utf-8").count("\n") for name, path in files.items()}


def reach_lines(root: Path, verbs: Iterable[str] = VERBS) -> dict[str, int]:
    """Return the lines that each verb reaches."""
    graph, lines = import_graph(root), line_counts(root)
    return {
        verb: sum(lines[name] for name in reached(graph, f"skindx.cli.{verb}")) for verb in verbs
    }


def costly_imports(root: Path, verb: str) -> list[tuple[int, str, str]]:
    """Return lines, importer and imported of each import that alone makes a verb reach lines."""
    graph, lines = import_graph(root), line_counts(root)
    entry = f"skindx.cli.{verb}"
    whole = sum(lines[name] for name in reached(graph, entry))
    costs = []
    for importer in reached(graph, entry):
        for name in sorted(graph[importer]):
            without = {**graph, importer: graph[importer] - {name}}
            saved = whole - sum(lines[other] for other in reached(without, entry))
            if saved:
                costs.append((saved, importer, name))
    return sorted(costs, reverse=True)


def main(verbs: list[str]) -> None:
    """Print the reach of each verb; of named ones also the costliest imports."""
    for verb, count in reach_lines(ROOT, verbs or VERBS).items():
        print(f"{verb} reaches {count} lines")
        for saved, importer, name in costly_imports(ROOT, verb)[:30] if verbs else ():
            print(f"  {saved:6} {importer} imports {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
