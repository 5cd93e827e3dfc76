"""The reference that is generated from the code is complete, and its examples are right."""

import dataclasses
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from guide_pages import ROOT
from pydantic import BaseModel

from skindx.cli import app

sys.path.insert(0, str(ROOT / "docs"))

from generators.command_line import command_line
from generators.docstrings import models
from generators.http import http_interface, prometheus_names
from generators.metric_keys import metric_keys, sentences
from generators.settings import Page


def roots() -> list[type[BaseModel]]:
    from skindx.data.recipe import BuildSettings
    from skindx.models.bundle.bundle_index import BundleSpec
    from skindx.training.config.run import TrainSettings

    return [BuildSettings, TrainSettings, BundleSpec]


@pytest.mark.parametrize("root", roots(), ids=lambda root: root.__name__)
def test_every_key_of_every_settings_class_is_on_its_page(root: type[BaseModel]) -> None:
    page = Page(root, "x")
    text = page.text()
    for model in models(root):
        section = text
        if model is not root:
            section = text.partition(f"(x-{model.__name__.lower()})=")[2].partition("\n(x-")[0]
            assert section, model.__name__
        keys = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
        wanted = {field.alias or name for name, field in model.model_fields.items()}
        assert wanted <= keys, model.__name__


def test_bounds_defaults_and_docstrings_are_there() -> None:
    text = Page(roots()[1], "x").text()
    assert "| `folds` | whole number, ≥ 2, ≤ 20 | `5` | Number of folds of train" in text
    assert "| `optimizer` | `adamw`, `sgd`, `lars`, `lamb`, `muon` | `adamw` |" in text
    assert "`exchange`, `kind: gtopk`" in text


def leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, child in getattr(command, "commands", {}).items():
        yield from leaves(child, (*words, name))
    if not getattr(command, "commands", None):
        yield words, command


def test_every_verb_and_option_is_on_the_page_of_the_command_line() -> None:
    text = command_line()
    for words, command in leaves(typer.main.get_command(app), ("skindx",)):
        section = text.partition(f"## `{' '.join(words)}`\n")[2].partition("\n## ")[0]
        options = [
            name for parameter in command.params for name in parameter.opts if name.startswith("-")
        ]
        assert [name for name in options if f"`{name}`" not in section] == [], words


def test_the_http_pages_name_routes_and_counters() -> None:
    text = http_interface()
    assert all(f"/v1/{name}" in text for name in ("diagnose", "health", "metrics"))
    assert "### `Diagnosis`" in text
    names = prometheus_names()
    for name in ("skindx_cases_total", "skindx_case_seconds", "skindx_queue_depth"):
        assert f"| `{name}` |" in names


@dataclasses.dataclass
class Bare:
    unheard_of: int


def test_every_key_of_metrics_has_a_sentence() -> None:
    assert "| `abstained_rate` | The same as a share of all these images. |" in metric_keys()
    with pytest.raises(SystemExit, match="Bare has no sentence for unheard_of"):
        sentences(Bare)
