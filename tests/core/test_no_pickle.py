"""Nothing of wheel and lab reads a pickle: not from a file, a peer, a pipe or a store."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
OBJECTS = {
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list", "read_pickle", "ProcessPoolExecutor"),
}
"""Of torch.distributed, pandas and the library: each of them unpickles what comes."""
OF_PROCESSES = {"Queue", "JoinableQueue", "Manager", "Pool", "Listener", "Client"}
"""Of multiprocessing; its `SimpleQueue` has the name of the one of threads."""


def _unpickles(tree: ast.AST) -> Iterator[str]:
    """Yield what a module does by which something is unpickled."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            of = getattr(node, "module", None) or ""
            names = {alias.name for alias in node.names}
            yield from {name.split(".")[0] for name in {of, *names}} & MODULES
            if of.startswith("multiprocessing"):
                yield from names & (OF_PROCESSES | {"SimpleQueue"})
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        if isinstance(node, ast.Attribute | ast.Name):
            yield from {name} & OBJECTS
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield from _by_call(node, node.func)


def _by_call(call: ast.Call, of: ast.Attribute) -> Iterator[str]:
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    owner = ast.unparse(of.value)
    if of.attr == "recv" and not call.args:
        yield "recv"  # of a Connection; a socket's is told how many bytes
    if of.attr in OF_PROCESSES and owner in {"multiprocessing", "context", "get_context('spawn')"}:
        yield of.attr
    if (owner, of.attr) == ("torch", "load") and given.get("weights_only") != "True":
        yield "torch.load"
    if given.get("allow_pickle", "False") != "False":
        yield "allow_pickle"


def test_no_module_unpickles() -> None:
    found = [
        (str(path.relative_to(ROOT)), name)
        for folder in ("skindx", "benchmarks/skindx_bench")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in _unpickles(ast.parse(path.read_text()))
    ]
    assert not found


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import pickle", "pickle"),
        ("from joblib import load", "joblib"),
        ("dist.all_gather_object(every, one)", "all_gather_object"),
        ("deepspeed.comm.broadcast_object_list(one)", "broadcast_object_list"),
        ("answer = ours.recv()", "recv"),
        ("queue = multiprocessing.Queue()", "Queue"),
        ("from multiprocessing import Queue", "Queue"),
        ("with get_context('spawn').Pool(1) as pool: ...", "Pool"),
        ("torch.load(file)", "torch.load"),
        ("np.load(file, allow_pickle=True)", "allow_pickle"),
    ],
)
def test_each_way_to_unpickle_is_seen(line: str, name: str) -> None:
    assert list(_unpickles(ast.parse(line))) == [name]
    fine = "connection.recv(8); np.load(f, allow_pickle=False); torch.load(f, weights_only=True)"
    assert not list(_unpickles(ast.parse(fine)))
