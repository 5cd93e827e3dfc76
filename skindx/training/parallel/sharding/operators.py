"""Layers split by their outputs, each over as many ranks as a plan says.

A layer of degree k is split over groups of k neighbours, as under one weird trick (`owt`); the
ranks in the same place of all groups hold the same part, and take the mean of its gradient.
"""

from collections import Counter
from datetime import timedelta
from typing import cast

import torch.distributed as dist
from torch import nn

from skindx.core.errors import UserError
from skindx.training.config.parallel import OperatorsSettings
from skindx.training.parallel.mesh import Mesh, ProcessGroup
from skindx.training.parallel.sharding.communicator import Communicator
from skindx.training.parallel.sharding.owt import can_be_split, split_layer


def layers_of(net: nn.Module, parallel: OperatorsSettings) -> dict[str, nn.Module]:
    """Return the layers that a plan splits, by name; those of other networks are left out.

    Raises UserError for what cannot be split.
    """
    holders = Counter(
        id(parameter) for layer in net.modules() for parameter in layer.parameters(recurse=False)
    )
    named, found = dict(net.named_modules()), {}
    for name, degree in parallel.degrees.items():
        if name not in named:
            continue
        layer = named[name]
        tied = any(holders[id(weight)] > 1 for weight in layer.parameters(recurse=False))
        if tied or not can_be_split(layer, degree):
            raise UserError(
                f"engine.parallel.degrees: {name} cannot be split over {degree} ranks: it must be "
                "a plain linear layer or convolution with an output for each rank, whose weights "
                "no other layer shares; take it out."
            )
        found[name] = layer
    return found


def split(net: nn.Module, mesh: Mesh, parallel: OperatorsSettings) -> dict[str, nn.Module]:
    """Split the layers of a plan, in place, and return them; every rank calls this."""
    found, ranks, rank = layers_of(net, parallel), mesh.data.size, mesh.data.rank
    axes = {degree: _axis(mesh, degree) for degree in sorted(set(parallel.degrees.values()))}
    for name, layer in found.items():
        degree = parallel.degrees[name]
        split_layer(layer, axes[degree], tuple(range(rank % degree, ranks, degree)))
    return found


def _axis(mesh: Mesh, degree: int) -> Communicator:
    """Return what the neighbours of a group talk through."""
    if degree == mesh.data.size:
        return Communicator(mesh.tensor)
    rank = mesh.data.rank
    first, timeout = rank - rank % degree, timedelta(seconds=mesh.settings.timeout_s)
    made = dist.new_group(
        list(range(first, first + degree)), timeout=timeout, use_local_synchronization=True
    )
    return Communicator(ProcessGroup(rank % degree, degree, cast(dist.ProcessGroup, made)))
