"""Split the layers of a network as `engine.parallel` says."""

from collections.abc import Callable, Mapping
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor, nn

from skindx.training.forms.operators import OperatorsSettings
from skindx.training.forms.owt import OwtSettings
from skindx.training.forms.pipeline import ModelSettings
from skindx.training.forms.tensor import TensorSettings
from skindx.training.forms.tensor3d import Tensor3dSettings
from skindx.training.parallel.mesh import Mesh
from skindx.training.parallel.sharding import cubes, owt, transformer
from skindx.training.parallel.sharding.communicator import Communicator
from skindx.training.parallel.sharding.cubes import Cube
from skindx.training.parallel.sharding.owt import wide_layers


def split_network(
    net: nn.Module,
    mesh: Mesh,
    image: Tensor,
    batch: int,
    say: Callable[[str], None],
    *,
    pieces: int = 1,
) -> None:
    """Split a network for steps of `batch` images in some pieces, in place; names stay the same.

    `image` is one image, 1 x …. Every rank calls this, with equal networks. `say` gets a line.
    """
    parallel, ranks = mesh.settings.parallel, mesh.tensor.size
    if ranks == 1:
        return
    if isinstance(parallel, ModelSettings):
        # Tracing is of no use to the other forms, and takes a second to import.
        from skindx.training.parallel.sharding.stages import place_stages

        place_stages(net, mesh, image, batch // pieces, say)
        return
    before = _weights(net)
    found: Mapping[str, nn.Module]
    if isinstance(parallel, OwtSettings):
        wires = Communicator(mesh.tensor)
        found = wide_layers(net, image, batch, ranks, parallel)
        for layer in found.values():
            owt.split_layer(layer, wires, scheme=parallel.scheme)
    elif isinstance(parallel, OperatorsSettings):
        found = owt.split(net, mesh, parallel)
    elif isinstance(parallel, Tensor3dSettings):
        found = _put_on_cubes(net, mesh, parallel)
    else:
        assert isinstance(parallel, TensorSettings)
        wires = Communicator(mesh.tensor)
        found = {
            name: block
            for name, block in net.named_modules()
            if transformer.can_be_split(block, ranks)
        }
        for block in found.values():
            transformer.split_block(block, wires)
    what = f"engine.parallel.kind={parallel.kind}"
    if not found:
        say(f"{what}: nothing of this network can be split, so all of it is data-parallel")
        return
    names = [*found] if len(found) <= _SHOWN else [*list(found)[:_SHOWN], "…"]
    most = "up to " if isinstance(parallel, OperatorsSettings) else ""
    say(
        f"{what}: {', '.join(names)} are split over {most}{ranks} ranks; this one holds "
        f"{_weights(net) / 1e6:.1f} of {before / 1e6:.1f} million weights"
    )


_SHOWN = 4


def _put_on_cubes(
    net: nn.Module, mesh: Mesh, parallel: Tensor3dSettings
) -> Mapping[str, nn.Module]:
    """Split all blocks that have equal parts for a cube, and return them by name."""
    q = parallel.side
    found = {name: block for name, block in net.named_modules() if cubes.can_be_split(block, q)}
    rank, peers = dist.get_rank(), mesh.replicas or ()
    first = rank - mesh.tensor.rank
    cube = Cube.of(first, q, timedelta(seconds=mesh.settings.timeout_s))
    wires, keep = Communicator(mesh.tensor), not parallel.gather_again
    for block in found.values():
        cubes.split_block(block, wires, cube, peers, keep=keep)
    return found


def _weights(net: nn.Module) -> int:
    return sum(weight.numel() for weight in net.parameters())
