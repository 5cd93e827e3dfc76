"""Split the layers of a network as `engine.parallel` says."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from skindx.data.manifest import Record
from skindx.training.config.run import MemberSettings
from skindx.training.forms.owt_form import OwtSettings
from skindx.training.forms.pipeline import ModelSettings
from skindx.training.forms.tensor import TensorSettings
from skindx.training.forms.tensor3d import Tensor3dSettings
from skindx.training.method import RunMethod
from skindx.training.methods.sharding import cubes, transformer
from skindx.training.methods.sharding import wide_layers as owt
from skindx.training.methods.sharding.communicator import Communicator
from skindx.training.methods.sharding.cubes import Cube
from skindx.training.methods.sharding.whole import SplitLayers
from skindx.training.methods.sharding.wide_layers import wide_layers
from skindx.training.parallel.mesh import Mesh


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
        from skindx.training.methods.sharding.stages import place_stages

        place_stages(net, mesh, image, batch // pieces, say)
        SplitLayers(net, mesh)
        return
    before = _weights(net)
    result: Mapping[str, nn.Module]
    if isinstance(parallel, OwtSettings):
        links = Communicator(mesh.tensor)
        result = wide_layers(net, image, batch, ranks, parallel)
        for layer in result.values():
            owt.split_layer(layer, links, scheme=parallel.scheme)
    elif isinstance(parallel, Tensor3dSettings):
        result = _put_on_cubes(net, mesh, parallel)
    else:
        assert isinstance(parallel, TensorSettings)
        links = Communicator(mesh.tensor)
        result = {
            name: block
            for name, block in net.named_modules()
            if transformer.can_be_split(block, ranks)
        }
        for block in result.values():
            transformer.split_block(block, links)
    what = f"engine.parallel.kind={parallel.kind}"
    if not result:
        say(f"{what}: nothing of this network can be split, so all of it is data-parallel")
        return
    SplitLayers(net, mesh)
    names = [*result] if len(result) <= _SHOWN else [*list(result)[:_SHOWN], "…"]
    say(
        f"{what}: {', '.join(names)} are split over {ranks} ranks; this one holds "
        f"{_weights(net) / 1e6:.1f} of {before / 1e6:.1f} million weights"
    )


_SHOWN = 4


def _put_on_cubes(
    net: nn.Module, mesh: Mesh, parallel: Tensor3dSettings
) -> Mapping[str, nn.Module]:
    """Split all blocks that have equal parts for a cube, and return them by name."""
    q = parallel.side
    result = {name: block for name, block in net.named_modules() if cubes.can_be_split(block, q)}
    rank, peers = dist.get_rank(), mesh.replicas or ()
    first = rank - mesh.tensor.rank
    cube = Cube.of(first, q, timedelta(seconds=mesh.settings.timeout_s))
    links, keep = Communicator(mesh.tensor), not parallel.gather_again
    for block in result.values():
        cubes.split_block(block, links, cube, peers, keep=keep)
    return result


def _weights(net: nn.Module) -> int:
    return sum(weight.numel() for weight in net.parameters())


class SplitRun(RunMethod):
    """Checks whether the networks of a run can be split as their settings say."""

    def check_member(
        self, member: MemberSettings, classifier: nn.Module, train: Sequence[Record], ranks: int
    ) -> None:
        """Raise UserError for a network that has no such stages."""
        engine = self.settings.engine
        if isinstance(parallel := engine.parallel, ModelSettings):
            # Tracing is of no use to the other forms, and takes a second to import.
            from skindx.training.methods.sharding.pieces import check_stages

            side, recipe = member.preprocess.size, self.settings.recipe_of(member)
            image = torch.zeros(1, side, side, 3, dtype=torch.uint8, device="meta")
            pipelines = 1 if engine.hostfile else max(1, ranks // parallel.stages)
            images = recipe.batch // pipelines // recipe.accumulate
            check_stages(classifier, image, parallel, images)
