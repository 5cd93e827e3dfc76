"""Methods plug in: the core of training does not know them."""

import ast
import re
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError
from torch import nn

import skindx
from skindx.core import kinds
from skindx.core.kinds import Family
from skindx.training.config.method_settings import settings_of
from skindx.training.method import PLAIN, method_of

TRAINING = Path(skindx.__file__).parent / "training"

CORE = (
    "loop.py",
    "state.py",
    "checks.py",
    "gradient_sync.py",
    "method.py",
    "deepspeed/engine.py",
    "checkpoint/keeper.py",
    "checkpoint/resume.py",
    "checkpoint/saved_state.py",
    "tasks/optimizer.py",
)
"""What reads as if no method existed."""

NAMES = re.compile(
    r"k-?fac\b|sharding|split.layers|factored|\bowt|gpipe|pipeline|megatron|\bcubes?\b|\bhop|\btowers?\b"
)


NAMED_IN = {f"config/{name}.py" for name in ("engine", "parallel_form", "recipe")}
"""Where the keys and kinds of settings stand that the kit brings: no other module names them."""

OF_THE_KIT = re.compile(
    r"\b(hop(s|ping|per)?|lease[sd]?|k ?fac|kronecker|owt|one weird trick|(split|wide) layers?|"
    r"elastic(ity)?|local (steps?|settings)|outer steps?|(ranks|trains?) apart|factored|"
    r"plan search|skindx methods)\b|\| (apart|meets) \|"
)


def _words(source: str) -> str:
    """Return all names, attributes, imports and texts of a module as plain words."""
    texts: list[str] = []
    for node in ast.walk(ast.parse(source)):
        fields = ("id", "attr", "arg", "name", "asname", "module", "value")
        values = (getattr(node, field, None) for field in fields)
        texts += [value for value in values if isinstance(value, str)]
    # LocalSteps, local_steps and local.steps are two words each.
    parted = (re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text) for text in texts)
    plain = (re.sub(r"[\W_]+", " ", text).strip() for text in parted)
    return f"| {' | | '.join(plain)} |".lower()


def test_no_module_has_a_branch_for_a_method_of_the_kit() -> None:
    named = {}
    for file in TRAINING.rglob("*.py"):
        words = _words(file.read_text(encoding="utf-8"))
        if matches := [match[0] for match in OF_THE_KIT.finditer(words)]:
            named[file.relative_to(TRAINING).as_posix()] = matches
    assert named.keys() <= NAMED_IN, {name: named[name] for name in named.keys() - NAMED_IN}
    assert named.keys() >= NAMED_IN  # so that what is looked for is what there is


@pytest.mark.parametrize(
    "planted",
    [
        "if engine.apart: pass",
        "if settings.engine.elastic: pass",
        "from skindx.comm.local_steps import LocalSteps",
        "sync = LocalSettings()",
        "load('skindx_methods.kfac.kfac:KFAC')",
        "hop_units = 1",
        "isinstance(form, WideLayers)",
        "run(lease_s=1)",
        "def split_layers(): pass",
        "exchange.kind == 'factored'",
        "import skindx.plan.search",
        "import skindx.plan.estimate as owt",
    ],
)
def test_a_planted_branch_is_noticed(planted: str) -> None:
    assert OF_THE_KIT.search(_words(planted))


def test_every_part_of_the_kit_is_on_the_list() -> None:
    kit = TRAINING.parents[1] / "methods" / "skindx_methods"
    folders = {path.name for path in kit.iterdir() if (path / "__init__.py").is_file()}
    unknown = {name for name in folders - {"plan"} if not OF_THE_KIT.search(_words(name))}
    assert not unknown


@pytest.mark.parametrize("name", CORE)
def test_the_core_names_no_method(name: str) -> None:
    assert NAMES.findall((TRAINING / name).read_text(encoding="utf-8").lower()) == []


def test_kinds_of_the_kit_are_named_where_a_family_says_who_brings_them() -> None:
    """And among what is gone, which names what takes its place."""
    kinds = re.compile(r"\b(owt|factored|tensor3d)\b", re.IGNORECASE)
    homes = ("comm/exchange_kinds.py", "training/config/parallel_form.py", "core/removed_names.py")
    files = TRAINING.parent.rglob("*.py")
    named = {
        str(file.relative_to(TRAINING.parent)) for file in files if kinds.search(file.read_text())
    }
    assert named == set(homes)


def test_the_core_imports_no_method() -> None:
    for file in TRAINING.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert not f"{node.module}.".startswith("skindx_methods."), file


def test_a_network_without_a_method_is_trained_as_it_is() -> None:
    net = nn.Linear(2, 2)
    assert method_of(net) is PLAIN
    assert PLAIN.whole(net) is net
    assert PLAIN.whole_state(net).keys() == net.state_dict().keys()
    assert not PLAIN.whole_shapes(net)


def test_a_setting_of_the_kit_is_refused_without_it_unless_it_is_null() -> None:
    group = Family("engine setting", "no.such.group", {}, elsewhere={"elastic": kinds.METHODS})
    setting = TypeAdapter(settings_of(group, "elastic"))
    assert setting.validate_python(None) is None
    with pytest.raises(
        ValidationError, match=r"'elastic' needs skindx-methods, which is not"
    ) as no:
        setting.validate_python({})
    (problem,) = no.value.errors()
    assert "run `pip install " in problem["msg"]
