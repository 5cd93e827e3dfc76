"""Heads of one shape before their first step."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial

import torch

from skindx.training.config.run import TrainSettings
from skindx.training.finished.member import FinishedMember
from skindx.training.parallel.mesh import Mesh
from skindx.training.recipes.ema import WeightAverage
from skindx.training.recipes.losses import build_loss
from skindx.training.recipes.optimizer import build_optimizer
from skindx.training.state import Training, setup
from skindx.training.tasks.heads.data import HeadData
from skindx.training.tasks.heads.network import HeadStack
from skindx.training.tasks.heads.task import HeadsTask


def setup_heads(
    settings: TrainSettings,
    heads: Sequence[HeadData],
    *,
    label: str,
    place: str,
    mesh: Mesh,
    say: Callable[[str], None],
) -> Training[list[FinishedMember]]:
    """Return heads of one shape, recipe and number of steps before their first step."""
    recipe, kind = settings.recipe_of(heads[0].member), heads[0].member.head
    found = [head.scale() for head in heads]
    scales = [(torch.from_numpy(mean_D), torch.from_numpy(std_D)) for mean_D, std_D in found]
    classes = heads[0].classes
    stack = HeadStack(kind, scales, classes, [head.member.seed for head in heads]).to(mesh.device)
    criteria = [
        build_loss(head.labels_P[head.train_N], classes, recipe).to(mesh.device) for head in heads
    ]
    clip = mesh.settings.gradient_clip
    alone = _clipped_here(mesh)
    task = HeadsTask(heads, recipe, alone, criteria, place, label)
    training = setup(
        task,
        stack,
        build_optimizer(stack, recipe, ()),
        average=WeightAverage(stack, recipe.ema) if recipe.ema else None,
        settings=settings,
        mesh=alone,
        say=say,
    )
    training.engine.precondition = partial(_clip_heads, clip) if clip else None
    return training


def _clipped_here(mesh: Mesh) -> Mesh:
    """Return a mesh whose engine leaves whole gradients to `_clip_heads`.

    The engine would clip the gradient of all heads together, and ZeRO would keep a part of it on
    each rank; heads are too small to be shared out.
    """
    other = copy(mesh)
    settings = mesh.settings.model_copy(update={"gradient_clip": 0.0, "zero": 0})
    object.__setattr__(other, "settings", settings)  # a mesh of a test may be of another class
    return other


def _clip_heads(norm: float, stack: torch.nn.Module) -> None:
    assert isinstance(stack, HeadStack)
    for head in stack.heads:
        torch.nn.utils.clip_grad_norm_(head.parameters(), norm)
