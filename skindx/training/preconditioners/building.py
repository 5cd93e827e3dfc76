"""The preconditioner of a recipe."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from skindx.training.config.preconditioner import KfacSettings
from skindx.training.parallel.mesh import Mesh
from skindx.training.preconditioners.kfac.kfac import Kfac
from skindx.training.preconditioners.preconditioner import Preconditioner


def build_preconditioner(
    settings: KfacSettings | None,
    module: nn.Module,
    mesh: Mesh,
    *,
    draw: Callable[[Tensor, torch.Generator], Tensor],
    seed: int,
    steps_per_epoch: int,
    peak_rate: float,
    say: Callable[[str], None],
) -> Preconditioner | None:
    """Return the preconditioner of these settings, which watches `module`, or None for none.

    `draw` makes the summed loss of labels that it draws from the module's outputs; `peak_rate` is
    the largest learning rate of the schedule.
    """
    if settings is None:
        return None
    return Kfac(
        settings,
        module,
        mesh,
        draw=draw if settings.fisher == "sampled" else None,
        seed=seed,
        steps_per_epoch=steps_per_epoch,
        peak_rate=peak_rate,
        say=say,
    )
