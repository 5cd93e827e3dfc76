"""Checks of heads, recipes and settings that go with a frozen trunk."""

from pathlib import Path

from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.models.classifier.heads import Head, KnnHead, LinearHead, PrototypeHead
from skindx.training.config.recipe import Recipe


class LoraSettings(Settings):
    """Low-rank updates of a trunk's linear layers (Hu et al. 2021)."""

    rank: int = Field(8, ge=1, le=256)
    alpha: float = Field(16, gt=0, le=1024)
    """The update counts alpha / rank."""


def check_head(head: Head, trunk: str, *, snapshots: int, targets: Path | None) -> None:
    """Raise ValueError for a head that its trunk cannot have."""
    solved = isinstance(head, KnnHead | PrototypeHead) or (
        isinstance(head, LinearHead) and head.solver == "exact"
    )
    name = "head.solver=exact" if isinstance(head, LinearHead) else f"head={head.kind}"
    if solved and trunk != "frozen":
        raise ValueError(f"{name} stands on fixed features; set trunk=frozen")
    if solved and targets:
        raise ValueError(f"{name} learns labels, not targets; take head=linear or mlp")
    if trunk == "frozen" and snapshots:
        raise ValueError("a head on a frozen trunk keeps no snapshots; leave them out")


def check_frozen_recipe(name: str, recipe: Recipe) -> None:
    """Raise ValueError for what of a recipe needs images, which a frozen trunk saw before."""
    if recipe.resize:
        raise ValueError(
            f"{name}: recipe.resize needs images, and a frozen trunk sees each once; leave it out"
        )
    if recipe.layer_decay < 1:
        raise ValueError(f"{name}: recipe.layer_decay has no layers to slow down; leave it out")
    if recipe.mix and not recipe.mix.mixup:
        raise ValueError(
            f"{name}: features can be blended and not cut; set recipe.mix.mixup above 0"
        )
