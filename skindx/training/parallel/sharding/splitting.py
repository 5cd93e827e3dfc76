"""Split the layers of a network as `engine.parallel` says."""

from collections.abc import Callable

from torch import Tensor, nn

from skindx.training.config.parallel import OwtSettings, TensorSettings
from skindx.training.parallel.mesh import Mesh
from skindx.training.parallel.sharding import owt, transformer
from skindx.training.parallel.sharding.communicator import Communicator
from skindx.training.parallel.sharding.wide import wide_layers


def split_network(
    net: nn.Module, mesh: Mesh, image: Tensor, batch: int, say: Callable[[str], None]
) -> None:
    """Split a network for steps of `batch` images, in place; names stay the same.

    `image` is one image, 1 x …. Every rank calls this, with equal networks. `say` gets a line.
    """
    parallel, ranks = mesh.settings.parallel, mesh.tensor.size
    if ranks == 1:
        return
    wires = Communicator(mesh.tensor)
    before = _weights(net)
    if isinstance(parallel, OwtSettings):
        found = wide_layers(net, image, batch, ranks, parallel)
        for layer in found.values():
            owt.split_layer(layer, wires)
    else:
        assert isinstance(parallel, TensorSettings)
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
    say(
        f"{what}: {', '.join(names)} are split over {ranks} ranks; this one holds "
        f"{_weights(net) / 1e6:.1f} of {before / 1e6:.1f} million weights"
    )


_SHOWN = 4


def _weights(net: nn.Module) -> int:
    return sum(weight.numel() for weight in net.parameters())
