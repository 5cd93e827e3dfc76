"""A family's kinds: names without imports, unions of settings, entry points good and broken."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from skindx.core.errors import UserError
from skindx.core.kinds import METHODS, Family, load_object
from skindx.core.settings_base import Settings

ROOT = Path(__file__).resolve().parents[2]
FRUIT = f"{__name__}:"


class Apple(Settings):
    """Grows on trees.

    More of it.
    """

    kind: str = Field("apple", pattern="^apple$")


def test_names_are_known_without_an_import_and_objects_on_demand() -> None:
    family = Family("fruit", "skindx.no_fruits", {"path": "pathlib:Path", "no": "no_such_module:A"})
    assert family.names == ["path", "no"] == list(family)
    assert "no" in family
    assert "stone" not in family
    assert family.load("path") is Path
    assert load_object("pathlib:Path") is Path


def test_an_unknown_kind_lists_the_valid_ones_and_a_former_one_says_what_to_do() -> None:
    family = Family(
        "fruit",
        "skindx.no_fruits",
        {"apple": FRUIT + "Apple"},
        gone={"plum": "plum is gone: take apple"},
    )
    with pytest.raises(
        UserError, match=r"'aple' is not a valid fruit; did you mean 'apple'\? Valid: apple"
    ):
        family.load("aple")
    with pytest.raises(UserError, match=r"plum is gone: take apple\."):
        family.load("plum")
    with pytest.raises(ValidationError, match="plum is gone: take apple"):
        TypeAdapter(family.union()).validate_python({"kind": "plum"})
    assert family.summaries() == {"apple": "Grows on trees."}


TOY = '''
"""A kind from outside."""
from typing import Literal
from skindx.core.settings_base import Settings

class Pear(Settings):
    """Grows elsewhere."""
    kind: Literal["pear"] = "pear"

class Plum(Settings):
    """Grows here."""
    kind: Literal["plum"] = "plum"
'''
ASKS = """
import json
from pydantic import TypeAdapter
from skindx.core.settings_base import Settings
from skindx.core.kinds import Family
from skindx.core.kinds import METHODS
from skindx.core.errors import UserError

family = Family("fruit", "skindx.fruits", {"plum": "toy_fruits:Plum"})

class Basket(Settings):
    fruit: family.union()

def message(raw):
    try:
        return Basket.parse(raw, "basket.yaml").fruit.kind
    except UserError as error:
        return str(error)

answers = [message({"fruit": {"kind": kind}}) for kind in ("plum", "pear", "rotten", "fig")]
print(json.dumps([family.names, family.summaries(), answers]))
"""


def test_an_entry_point_joins_the_family_and_a_broken_one_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "toy_fruits.py").write_text(TOY)
    info = tmp_path / "toy_fruits-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-fruits\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[skindx.fruits]\npear = toy_fruits:Pear\nplum = toy_fruits:Pear\nrotten = no_module:X\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{ASKS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, summaries, (plum, pear, rotten, fig) = json.loads(done.stdout)
    assert names == ["plum", "pear", "rotten"]
    assert summaries == {"plum": "Grows here.", "pear": "Grows elsewhere."}
    assert (plum, pear) == ("plum", "pear")
    assert (
        "fruit 'rotten' comes from the package toy-fruits, which cannot be imported (ModuleNotFound"
        in rotten
    )
    assert rotten.endswith("update or uninstall toy-fruits.")
    assert "\n" not in rotten
    assert "'fig' is not a valid kind; " in fig
    assert "Valid: plum, pear" in fig


def test_a_kind_of_the_kit_is_refused_with_the_folder_to_install_it_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = Family("exchange", "no.such.group", {}, elsewhere={"factored": METHODS})
    folder = ROOT / "methods"
    expected = f"exchange 'factored' needs {METHODS}, which is not installed; run `pip install"
    with pytest.raises(UserError, match="which is not installed") as refused:
        family.load("factored")
    assert str(refused.value) == f"{expected} {folder}`."
    # Without a checkout no message names what a stranger could put on an index.
    monkeypatch.setattr("skindx.core.kinds.skindx.__file__", "/nowhere/skindx/__init__.py")
    with pytest.raises(UserError, match=r"run `pip install \./methods` in a checkout of skindx"):
        family.load("factored")


def test_settings_that_name_a_missing_kind_say_what_to_install() -> None:
    for kinds in ({}, {"plain": "skindx.comm.dense:DenseSettings"}):
        family = Family("exchange", "no.such.group", kinds, elsewhere={"factored": METHODS})
        checked = TypeAdapter(family.union())
        with pytest.raises(ValidationError, match="needs skindx-methods, which is not installed"):
            checked.validate_python({"kind": "factored"})
        if not kinds:
            with pytest.raises(
                ValidationError, match="'odd' is not a valid exchange; none is installed"
            ):
                checked.validate_python({"kind": "odd"})
            with pytest.raises(ValidationError, match="exchange 'factored' needs skindx-methods"):
                checked.validate_python({"tune": False})
            optional = TypeAdapter(family.union(optional=True))
            assert optional.validate_python(None) is None
            with pytest.raises(ValidationError, match="needs skindx-methods") as refused:
                optional.validate_python({"kind": "factored"})
            assert refused.value.error_count() == 1
