"""The methods of a training by its settings: the one place that loads them, by name."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from skindx.core.kinds import load_object
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import TrainSettings
from skindx.training.method import Method, RunMethod
from skindx.training.parallel.mesh import Mesh

_OF_EVERY_RUN = ("skindx.training.methods.tower_members:Towers",)


def run_methods(settings: TrainSettings) -> list[RunMethod]:
    """Return what may do something to a run of these settings."""
    engine = settings.engine
    names = (*_OF_EVERY_RUN, engine.schedule_kind.run_method)
    return [load_object(name)(settings) for name in names if name]


def resolve(settings: TrainSettings) -> TrainSettings:
    """Return settings in which what a method's names stand for is written out."""
    for method in run_methods(settings):
        settings = method.resolve(settings)
    return settings


def change_network(
    net: nn.Module,
    mesh: Mesh,
    image: Tensor,
    batch: int,
    say: Callable[[str], None],
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
