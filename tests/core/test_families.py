"""Kinds of a family are named once: those from outside show up everywhere, no literal elsewhere."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from guide_pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))

from generators.kinds import families

from skindx.comm.exchange_kinds import EXCHANGES
from skindx.core.kinds import Family

PACKAGE = ROOT / "skindx"

TOYS = '''
"""Kinds from outside, one a family."""
from typing import ClassVar, Literal
from pydantic import Field
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.cost.pricing import StepSchedule, after_backward
from skindx.core.settings_base import Settings
from skindx.training.forms.owt_form import OwtForm
from skindx.training.forms.parallel_form import ParallelSettings

class ToyExchange(ExchangeSettings):
    """Sends a tenth of everything (Doe 2020, arXiv 2001.00001)."""
    kind: Literal["toy"] = "toy"
    tenths: int = Field(1, ge=1, le=10)
    code: ClassVar[str] = "pathlib:PurePath"

    def schedule(self, load, network, rule=""):
        price = network.price("all_reduce")
        size = self.tenths * load.size_bytes // 10
        return StepSchedule((after_backward(load, size, price(size)),), spread=price.spread)

class ToyForm(OwtForm):
    """Splits as owt does."""
    name = "toyform"

class ToyParallel(ParallelSettings):
    """Splits something."""
    kind: Literal["toyform"] = "toyform"
    price: ClassVar = ToyForm

class Anything(Settings):
    """Does whatever it says."""
    kind: Literal["anything"] = "anything"
'''
ASKS = """
import json, sys
sys.path.insert(0, DOCS)
from generators.kinds import families, kinds
from skindx.cli.plan import plan
from skindx.core.errors import UserError
from skindx.plan.plan import make
from skindx.plan.plan_text import plan_values
from skindx.plan.plan import PlanRequest, plan_of_trace
from skindx.plan.search import PlanLimits
from skindx.training.config.run import TrainSettings
from pathlib import Path
import typer

raw = {"exchange": {"kind": "toy", "tenths": 2}}
settings = TrainSettings.parse(raw, "run.yaml")
form = TrainSettings.parse({"engine": {"parallel": {"kind": "toyform"}}}, "run.yaml")

def refusal(raw):
    try:
        return TrainSettings.parse(raw, "run.yaml").exchange.kind
    except UserError as error:
        return str(error)

command = typer.main.get_command(plan).commands["make"]
command.complete()
helps = next(option.help for option in command.params if option.name == "strategy")
asked = PlanRequest(PlanLimits(lossy=True, extrapolate=True), Path(TRACE), "10gbe:4")
rows = plan_values(plan_of_trace(asked))["candidates"]
print(json.dumps({
    "kinds": [settings.exchange.kind, form.engine.parallel.kind],
    "refusals": [refusal({"exchange": {"kind": kind}}) for kind in ("broken", "gone")],
    "help": helps,
    "page": kinds(),
    "names": {family.group: family.names for family in families()},
    "rows": {row["strategy"]: row["settings"] for row in rows},
}))
"""
TRACED = {
    "name": "two",
    "batch": 32,
    "layers": [
        {"name": "conv", "operator": "Conv2d", "forward_s": 1e-3, "backward_s": 2e-3,
         "activation_bytes": 4000, "parameter_bytes": 4_000_000, "outputs": 64},
        {"name": "fc", "operator": "Linear", "forward_s": 3e-3, "backward_s": 4e-3,
         "activation_bytes": 128_000, "parameter_bytes": 8_000_000, "outputs": 1000,
         "input_bytes": 4000},
    ],
}  # fmt: skip


def test_a_kind_of_another_distribution_is_in_settings_help_page_and_plan(tmp_path: Path) -> None:
    (tmp_path / "toys.py").write_text(TOYS)
    (tmp_path / "trace.json").write_text(json.dumps({"networks": [TRACED]}))
    info = tmp_path / "toys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    own = {"skindx.exchanges": "toy = toys:ToyExchange\nbroken = no_module:X",
           "skindx.parallel_forms": "toyform = toys:ToyParallel"}  # fmt: skip
    groups = {family.group: "anything = toys:Anything" for family in families()} | own
    text = "\n".join(f"[{group}]\n{points}" for group, points in groups.items())
    (info / "entry_points.txt").write_text(text)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); DOCS = {str(ROOT / 'docs')!r}\n"
    code += f"TRACE = {str(tmp_path / 'trace.json')!r}\n{ASKS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kinds"] == ["toy", "toyform"]
    broken, gone = found["refusals"]
    assert "exchange 'broken' comes from toys, which cannot be imported" in broken
    assert "'gone' is no kind; " in gone
    assert "toy, " in found["help"]
    assert "toyform" in found["help"]
    assert "| `toy` | Sends a tenth of everything" in found["page"]
    assert "Doe 2020, arXiv 2001.00001" in found["page"]
    assert found["page"].count("| `anything` | Does whatever it says. |") == len(groups) - len(own)
    assert all(("toy" if group in own else "anything") in " ".join(names)
               for group, names in found["names"].items())  # fmt: skip
    assert found["rows"]["toy"]["exchange"] == {"kind": "toy"}


ALLOWED = {
    # Work of a rank's own cores, in a profile.
    ("local", "skindx/plan/plan.py"),
    # Whose pictures a report may show.
    ("local", "skindx/evaluation/mistakes.py"),
    # The kind of an operator whose price is asked for, not of a head.
    ("linear", "skindx/core/cost"),
    ("linear", "skindx/training/forms"),
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


def elsewhere(family: Family, *, words: bool) -> list[str]:
    """Return where a family's kinds are compared with, or keys, outside the family's folder.

    `words`: its names are no other words, so that any comparison counts, not only a `kind`'s.
    """
    homes = {Path(str(sys.modules[type(family).__module__].__file__)).parent}
    for kind in family:
        home = sys.modules[family.load(kind).__module__].__file__
        homes.add(Path(str(home)).parent)
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent in homes:
            continue
        place = str(path.relative_to(ROOT))
        for text, line, kind in literals(ast.parse(path.read_text(encoding="utf-8"))):
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
