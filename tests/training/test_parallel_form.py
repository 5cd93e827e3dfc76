"""What a parallel form that splits layers does not go with; a toy form stands for those outside."""

from types import SimpleNamespace
from typing import Any, Literal

import pytest

from skindx.training.config.engine import EngineSettings
from skindx.training.config.parallel_form import DataSettings, ParallelSettings
from skindx.training.config.recipe import Recipe


class Halves(ParallelSettings):
    """Splits something."""

    kind: Literal["halves"] = "halves"


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"zero": 1}, "which does not work with ZeRO; set engine.zero=0"),
        ({"precision": "fp16"}, "set engine.precision=bf16"),
        ({"compile": True}, "set engine.compile=false"),
    ],
)
def test_engines_that_need_whole_layers_are_refused(change: dict[str, Any], reported: str) -> None:
    engine = EngineSettings.model_validate(change)
    DataSettings().check_engine(engine)
    with pytest.raises(ValueError, match=reported):
        Halves().check_engine(engine)


@pytest.mark.parametrize(
    ("optimizer", "reported"),
    [("lamb", "goes by the norms of whole layers"), ("muon", "multiplies whole layers")],
)
def test_optimizers_that_need_whole_layers_are_refused(optimizer: str, reported: str) -> None:
    recipe = Recipe(optimizer=optimizer)
    DataSettings().check_member("a", recipe)
    with pytest.raises(ValueError, match=f"member a: .*kind=halves .*{reported}"):
        Halves().check_member("a", recipe)


def test_what_works_on_whole_layers_is_refused() -> None:
    recipe = SimpleNamespace(preconditioner=SimpleNamespace(kind="whitening"))
    with pytest.raises(ValueError, match=r"preconditioner\.kind=whitening needs whole layers"):
        Halves().check_member("a", recipe)
