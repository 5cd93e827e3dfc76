"""Says whether the lab or the kit was tested as it stands: `python .ci/tested.py check lab`.

`make test-lab` and `make test-methods` note a hash in `.ci/tested.json` once all their tests pass.
It is one of the distribution's files and its tests, of the lock, of the helpers that the tests
share, and of the contracts with the wheel and each other: names, signatures and fields of each
module that they import, not the code inside, which that package's tests cover.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTED = ROOT / ".ci/tested.json"
FOLDERS = {"lab": ("benchmarks", "docs/measured"), "methods": ("methods",)}
PLACES = {"skindx": "", "skindx_methods": "methods", "skindx_bench": "benchmarks"}
SHARED = ("conftest.py", "requirements.lock")


def state(root: Path, folders: Iterable[str]) -> str:
    """Return the hash of what the tests of a distribution stand on."""
    files = [path for folder in folders for path in _files(root / folder)]
    files += [path for name in SHARED if (path := root / name).is_file()]
    helpers, contracts = _reached(root, files)
    sums = hashlib.sha256()
    for path in sorted({*files, *helpers}):
        sums.update(f"{path.relative_to(root)} {_sha256(path.read_bytes())}\n".encode())
    for path in sorted(contracts):
        text = contract(path.read_text(encoding="utf-8"))
        sums.update(f"{path.relative_to(root)} {_sha256(text.encode())}\n".encode())
    return sums.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        made = any(part[0] == "." or part in ("__pycache__", "dist", "build") for part in parts)
        if path.is_file() and not made and not any(part.endswith(".egg-info") for part in parts):
            yield path


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _reached(root: Path, files: list[Path]) -> tuple[set[Path], set[Path]]:
    """Return the helpers of tests, with those that they import, and modules of other packages."""
    own, helpers = set(files), set[Path]()
    contracts: set[Path] = set()
    waiting = [path for path in files if path.suffix == ".py"]
    while waiting:
        for name in imported(waiting.pop().read_text(encoding="utf-8")):
            for place in ("tests", "methods/tests"):
                helper = root / place / "support" / Path(*name.split(".")).with_suffix(".py")
                if helper.is_file() and helper not in helpers:
                    helpers.add(helper)
                    waiting.append(helper)
            package = name.partition(".")[0]
            if package in PLACES:
                module = root / PLACES[package] / Path(*name.split("."))
                both = (module.with_suffix(".py"), module / "__init__.py")
                contracts |= {path for path in both if path.is_file()} - own
    return helpers, contracts


def imported(text: str) -> Iterator[str]:
    """Yield the dotted name of each import, and of each name in it: that may be a module too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


class _Bare(ast.NodeTransformer):
    """Leaves out what functions do and what docstrings tell."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.body = [ast.Pass()]
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        node.body = [ast.Pass()]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def contract(text: str) -> str:
    """Return what others can see of a module: its names, signatures and fields."""
    tree = ast.parse(text)
    tree.body = [
        node
        for node in tree.body
        if not isinstance(node, ast.Import | ast.ImportFrom)
        and not (isinstance(node, ast.FunctionDef) and node.name.startswith("_"))
    ]
    return ast.dump(_Bare().visit(tree))


def main(task: str, name: str) -> int:
    """Return 0 where the noted hash is today's; with `note`, write today's."""
    noted = json.loads(NOTED.read_text(encoding="utf-8")) if NOTED.is_file() else {}
    now = state(ROOT, FOLDERS[name])
    if task == "check":
        return int(noted.get(name) != now)
    NOTED.write_text(json.dumps({**noted, name: now}, indent=2, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
