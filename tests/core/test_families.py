"""Kinds of a family are named once: those from outside show up everywhere, no literal elsewhere."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from guide_pages import ROOT
from toy_kinds import TOY_POINTS, ask_beside_toys

sys.path.insert(0, str(ROOT / "docs"))

from generators.kinds import families

from skindx.comm.exchange_kinds import EXCHANGES
from skindx.core.kinds import Family

PACKAGE = ROOT / "skindx"

ASKS = """
import json
sys.path.insert(0, DOCS)
from generators.kinds import families, kinds
from skindx.core.errors import UserError
from skindx.training.config.run import TrainSettings

raw = {"exchange": {"kind": "toy", "tenths": 2}}
settings = TrainSettings.parse(raw, "run.yaml")
form = TrainSettings.parse({"engine": {"parallel": {"kind": "toyform"}}}, "run.yaml")

def refusal(raw):
    try:
        return TrainSettings.parse(raw, "run.yaml").exchange.kind
    except UserError as error:
        return str(error)

print(json.dumps({
    "kinds": [settings.exchange.kind, form.engine.parallel.kind],
    "refusals": [refusal({"exchange": {"kind": kind}}) for kind in ("broken", "gone")],
    "page": kinds(),
    "names": {family.group: family.names for family in families()},
}))
"""


def test_a_kind_of_another_distribution_is_in_settings_and_page(tmp_path: Path) -> None:
    groups = [family.group for family in families()]
    code = f"DOCS = {str(ROOT / 'docs')!r}\n{ASKS}"
    answers = ask_beside_toys(tmp_path, groups, code)
    assert answers["kinds"] == ["toy", "toyform"]
    broken, gone = answers["refusals"]
    assert "exchange 'broken' comes from the package toys, which cannot be imported" in broken
    assert "'gone' is not a valid kind; " in gone
    page = answers["page"]
    assert "| `toy` | Sends a tenth of everything" in page
    assert "Doe 2020, arXiv 2001.00001" in page
    assert page.count("| `anything` | Does whatever it says. |") == len(groups) - len(TOY_POINTS)
    assert all(("toy" if group in TOY_POINTS else "anything") in " ".join(names)
               for group, names in answers["names"].items())  # fmt: skip


ALLOWED = {
    # Whose pictures a report may show.
    ("local", "skindx/evaluation/image_table.py"),
}
"""Literals that are no kind of a family, by the place in which they stand."""


def literals(tree: ast.AST) -> Iterator[tuple[str, int, bool]]:
    """Yield strings that something is compared with, or that are keys: line, beside a `kind`."""

    def texts(node: ast.AST) -> Iterator[ast.Constant]:
        parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
        yield from (part for part in parts if isinstance(part, ast.Constant))

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            kind = any(getattr(side, "attr", getattr(side, "id", "")) == "kind" for side in sides)
            for side in sides:
                yield from ((str(text.value), text.lineno, kind) for text in texts(side))
        elif isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant):
                    yield str(key.value), key.lineno, False
        elif isinstance(node, ast.MatchValue) and isinstance(node.value, ast.Constant):
            yield str(node.value.value), node.lineno, True
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.Set):
            own = [text for text in texts(node.value) if text.value in EXCHANGES]
            if len(own) > 1:
                yield from ((str(text.value), text.lineno, False) for text in own)


@cache
def all_literals() -> dict[Path, list[tuple[str, int, bool]]]:
    """Return the literals of every module, read once for all families."""
    return {
        path: list(literals(ast.parse(path.read_text(encoding="utf-8"))))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def elsewhere(family: Family, *, words: bool) -> list[str]:
    """Return where a family's kinds are compared with, or keys, outside the family's folder.

    `words`: its names are no other words, so that any comparison counts, not only a `kind`'s.
    """
    homes = {Path(str(sys.modules[type(family).__module__].__file__)).parent}
    for kind in family:
        home = sys.modules[family.load(kind).__module__].__file__
        homes.add(Path(str(home)).parent)
    found = []
    for path, named in all_literals().items():
        if path.parent in homes:
            continue
        place = str(path.relative_to(ROOT))
        for text, line, kind in named:
            allowed = any(text == word and place.startswith(start) for word, start in ALLOWED)
            if text in family.names and (words or kind) and not allowed:
                found.append(f"{place}:{line} {text!r}")
    return found


@pytest.mark.parametrize("family", list(families()), ids=lambda family: family.noun)
def test_no_literal_of_a_kind_stands_outside_its_home(family: Family) -> None:
    assert elsewhere(family, words=family is EXCHANGES) == []


def test_a_literal_would_be_seen() -> None:
    code = 'a = x.kind == "topk"\nb = {"gtopk": 1}\nc = ("dense", "fused")\nd = y in ("fused", "z")'
    seen = {text for text, _, _ in literals(ast.parse(code))}
    assert {"topk", "gtopk", "dense", "fused"} <= seen
