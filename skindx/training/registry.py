"""The methods and towers of a training by its settings: the one place that loads them, by name.

A plan too, which the methods kit reads and lays beside a run: its entry points in the group
`skindx.training_plans` are `follow` and `record`.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.core.kinds import METHODS, entry_of, load_entry, load_object, missing
from skindx.models.towers import is_tower, resolve_tower
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.method import Method, RunMethod
from skindx.training.parallel.mesh import Mesh
from skindx.training.state import Training

PLANS = "skindx.training_plans"
PLANNED = "plan.json"
"""File with the prediction, in a run that follows a plan."""


def run_method(settings: TrainSettings) -> RunMethod:
    """Return what may do something to a run of these settings."""
    name = settings.engine.run_method
    return load_object(name)(settings) if name else RunMethod(settings)


def resolve(settings: TrainSettings) -> TrainSettings:
    """Return the settings with what each tower's name stands for; others are as they were.

    A hub's repository is fetched here, once. Raises UserError, which names the member.
    """
    members = tuple(_resolved(member) for member in settings.members)
    return settings.model_copy(update={"members": members})


def _resolved(member: MemberSettings) -> MemberSettings:
    if not is_tower(member.model):
        return member
    preprocess = member.preprocess if "preprocess" in member.model_fields_set else None
    given = (
        {name: getattr(preprocess, name) for name in preprocess.model_fields_set}
        if preprocess
        else {}
    )
    try:
        tower = resolve_tower(
            member.model,
            pretrained=member.pretrained,
            user_args=member.model_args,
            user_preprocess=given,
        )
    except UserError as error:
        raise UserError(f"member {member.name}: {error}") from None
    result = tower.network
    return member.model_copy(
        update={
            "model": result.model,
            "model_args": result.model_args,
            "preprocess": result.preprocess,
            "attention_pool": result.attention_pool,
            "weights": tower.weights or member.weights,
            "pretrained": False,
            "tower": tower.origin,
        }
    )


def change_network(
    net: nn.Module, mesh: Mesh, image: Tensor, batch: int, say: Callable[[str], None]
) -> None:
    """Let the parallel form change a network, in place, before its optimizer is made.

    It is for steps of `batch` images; `image` is one image, 1 x …. Every rank calls
    this, with equal networks. `say` gets a line.
    """
    if name := mesh.settings.parallel.changes_network:
        load_object(name)(net, mesh, image, batch, say)


def build_preconditioner(
    recipe: Recipe,
    net: nn.Module,
    mesh: Mesh,
    *,
    draw: Callable[[Tensor, torch.Generator], Tensor],
    seed: int,
    steps_per_epoch: int,
    peak_rate: float,
    say: Callable[[str], None],
) -> Method | None:
    """Return what changes the reduced gradients of a network as a recipe says, or None.

    `draw` makes the summed loss of labels that it draws from the network's outputs; `peak_rate` is
    the largest learning rate of the schedule.
    """
    settings = recipe.preconditioner
    if settings is None:
        return None
    made: Method = load_object(settings.builds)(
        settings,
        net,
        mesh,
        draw=draw,
        seed=seed,
        steps_per_epoch=steps_per_epoch,
        peak_rate=peak_rate,
        say=say,
    )
    return made


def follow_plan(
    plan: Path, config: Path | None, sets: list[str], dataset: Path
) -> tuple[TrainSettings, Callable[[Path], None]]:
    """Return the settings of a config under a plan, and what writes the prediction into a run.

    Raises UserError, also where the methods kit is not installed.
    """
    entry = entry_of(PLANS, "follow")
    if entry is None:
        raise UserError(f"{missing('skindx train --plan', METHODS)}.")
    settings, keep = load_entry(entry, "skindx train --plan")(plan, config, sets, dataset)
    return settings, keep


def recorded(training: Training[Any], run: Path, key: str) -> Training[Any]:
    """Return a training that records a step for its plan; without the methods kit, as it was."""
    entry = entry_of(PLANS, "record")
    if entry is None:
        return training
    take = load_entry(entry, f"recording a step for {run / PLANNED}")(run, key)
    return replace(training, take=take)
