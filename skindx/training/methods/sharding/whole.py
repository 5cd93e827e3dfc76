"""Split networks as whole ones: for checkpoints, evaluation and bundles."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.startup import light_imports
from skindx.models.classifier.heads import Mlp as MlpHead
from skindx.training.forms.tensor import TensorSettings
from skindx.training.gradient_sync import GradientSync
from skindx.training.method import METHOD, Group, Method, method_of
from skindx.training.methods.sharding.communicator import Communicator
from skindx.training.methods.sharding.cubes import (
    CUBE,
    CubeAttention,
    CubeLinear,
    CubeMlp,
    CubeMlpHead,
    cubes_of,
)
from skindx.training.methods.sharding.layerwise import SPLIT_OPTIMIZERS, split_groups
from skindx.training.methods.sharding.parts import PARTS, Part, build_split_sync, parts_of
from skindx.training.methods.sharding.transformer import (
    WHOLE_VALUES,
    ColumnLinear,
    RowLinear,
    enter,
    leave,
)
from skindx.training.methods.sharding.wide_layers import SplitConv, SplitLinear
from skindx.training.parallel.mesh import Mesh, Watch

PIPELINE = "pipeline"
"""What such a network calls its `Pipeline`."""


class Pipeline(Protocol):
    """This rank's stage, and the ranks before and behind it; all of them call all of it."""

    @property
    def links(self) -> Communicator:
        """Process group of its ranks."""

    @property
    def owners(self) -> Mapping[str, int]:
        """Rank that computes each of the network's statistics, by name."""

    def __deepcopy__(self, memo: object) -> Self:
        """A copied network stands beside the same stage."""

    def forward(self, images_b: Tensor) -> Tensor:
        """Return what the network gives for this rank's images."""

    def backward(self, before_last: Callable[[], None]) -> None:
        """Go back from the gradient of what `forward` returned.

        `before_last` is called before the last micro-batch makes this rank's gradients whole.
        """

    def discard(self) -> None:
        """Forget the micro-batches that are under way."""


def pipeline_of(module: nn.Module) -> Pipeline | None:
    """Return the pipeline of a network, or of a copy of it; None: it has none."""
    result: Pipeline | None = getattr(module, PIPELINE, None)
    return result


with light_imports():
    from timm.layers import Attention, Mlp

_WHOLE: dict[type[nn.Module], type[nn.Module]] = {
    SplitLinear: nn.Linear,
    SplitConv: nn.Conv2d,
    ColumnLinear: nn.Linear,
    RowLinear: nn.Linear,
    CubeLinear: nn.Linear,
    CubeAttention: Attention,
    CubeMlp: Mlp,
    CubeMlpHead: MlpHead,
}


def join_layers(net: nn.Module) -> None:
    """Make every split layer whole, in place, but for the values: these are on no device yet."""
    for layer in net.modules():
        for name, value in getattr(layer, WHOLE_VALUES, {}).items():
            setattr(layer, name, value)
        parts: dict[str, Part] = getattr(layer, PARTS, {})
        for name, part in parts.items():
            setattr(layer, name, nn.Parameter(torch.empty(part.shape, device="meta")))
        for attribute in (PARTS, CUBE):
            if hasattr(layer, attribute):
                delattr(layer, attribute)
        layer.__class__ = _WHOLE.get(type(layer), type(layer))
    for attribute in (PIPELINE, METHOD):
        if hasattr(net, attribute):
            delattr(net, attribute)


class WholeCopy:
    """A whole network beside a split one, whose split weights take memory only while it is used."""

    def __init__(self, module: nn.Module) -> None:
        """Copy a split network before an engine puts its hooks on it."""
        self._copy = deepcopy(module)
        join_layers(self._copy)
        self._names = list(parts_of(module))

    def filled(self, module: nn.Module) -> nn.Module:
        """Return the copy with the weights of a split network; every rank calls this.

        It holds the network's own tensors where these are whole.
        """
        self._copy.load_state_dict(method_of(module).whole_state(module), assign=True)
        return self._copy.train(module.training)

    def release(self) -> None:
        """Give back the memory of the split weights."""
        for name in self._names:
            place, _, leaf = name.rpartition(".")
            whole = self._copy.get_parameter(name)
            empty = nn.Parameter(torch.empty(whole.shape, device="meta"))
            setattr(self._copy.get_submodule(place), leaf, empty)


class SplitLayers(Method):
    """Layers of a network are split over ranks; each holds its parts, and some hold the same."""

    reduces = True

    def __init__(self, net: nn.Module, mesh: Mesh) -> None:
        """Take a network whose layers are split; it then calls this its method."""
        parts = parts_of(net)
        self._device = mesh.device
        self.axes = list(dict.fromkeys(part.links for part in parts.values()))
        """Along which ranks hold different parts."""
        self.links = self.axes[0] if self.axes else None
        self._pipeline = pipeline_of(net)
        # The ranks of a group see the images of all of them.
        in_groups = isinstance(mesh.settings.parallel, TensorSettings)
        self._group = self.links if in_groups else None
        self._copy: WholeCopy | None = None
        setattr(net, METHOD, self)

    def attach(self, module: nn.Module) -> None:
        """Copy the network before an engine puts its hooks on it."""
        self._copy = WholeCopy(module)

    def local_weights(self, module: nn.Module) -> Sequence[nn.Parameter]:
        """Return the weights of which this rank holds a part."""
        parts = parts_of(module)
        return [weight for name, weight in module.named_parameters() if name in parts]

    def train(self) -> None:
        """Give back the memory of whole weights."""
        if self._copy:
            self._copy.release()

    def whole(self, module: nn.Module) -> nn.Module:
        """Return a copy with whole weights, which the next call overwrites."""
        assert self._copy is not None
        return self._copy.filled(module)

    def layerwise(
        self, net: nn.Module, groups: list[Group], kind: type[torch.optim.Optimizer]
    ) -> tuple[list[Group], type[torch.optim.Optimizer]]:
        """Put split weights into groups of their own, whose norms are those of whole layers."""
        return split_groups(net, groups), SPLIT_OPTIMIZERS[kind]

    def forward(self, images: int) -> None:
        """Tell the ranks of each axis how many images this one has."""
        for links in self.axes:
            links.agree_on_rows(images, self._device)

    def run_forward(self, inputs: Tensor, network: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the outputs of this rank's images."""
        if self._pipeline:
            return self._pipeline.forward(inputs)
        if self._group is None:
            return network(inputs)
        return leave(network(enter(inputs, self._group)), self._group)

    def run_backward(
        self, network: Callable[[], None], begin: Callable[[bool], None], *, last: bool
    ) -> None:
        """Run the backward pass: a pipeline's goes on from that of its outputs."""
        if self._pipeline is None:
            super().run_backward(network, begin, last=last)
            return
        begin(False)
        network()
        self._pipeline.backward(partial(begin, last))

    def gradient_sync(
        self,
        settings: ExchangeSettings,
        module: nn.Module,
        mesh: Mesh,
        steps_per_epoch: int,
        say: Callable[[str], None],
    ) -> GradientSync | None:
        """Return the exchange among the ranks that hold the same."""
        return build_split_sync(settings, module, mesh, steps_per_epoch, say)

    def discard(self) -> None:
        """Drop the micro-batches that are under way."""
        if self._pipeline:
            self._pipeline.discard()

    def watch(self, around: Watch | None, module: nn.Module) -> None:
        """Let something stand round all that the ranks of an axis send each other."""
        cubes = cubes_of(module)
        for links in (*self.axes, *(axis for cube in cubes for axis in (cube.i, cube.j, cube.l))):
            links.watch = around

    def share_statistics(self, module: nn.Module) -> None:
        """Take what each rank of a pipeline has counted in its layers."""
        share_statistics(module)

    def whole_state(self, module: nn.Module) -> dict[str, Tensor]:
        """Return weights and statistics with every split weight whole."""
        share_statistics(module)
        parts = parts_of(module)
        return {
            name: parts[name].whole(value) if name in parts else value
            for name, value in module.state_dict().items()
        }

    def local_state(self, state: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
        """Undo `whole_state`: this rank's parts."""
        parts = parts_of(module)
        return {
            name: parts[name].local(value) if name in parts else value
            for name, value in state.items()
        }

    def whole_weights(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the parameters by name, split ones on the CPU: a device may not hold them all."""
        parts = parts_of(module)
        return {
            name: _on_cpu(parts[name], weight) if name in parts else weight.detach()
            for name, weight in module.named_parameters()
        }

    def whole_shapes(self, module: nn.Module) -> dict[str, torch.Size]:
        """Return the shapes of split weights as wholes."""
        return {name: part.shape for name, part in parts_of(module).items()}

    def whole_moments(self, state: Mapping[str, Any], module: nn.Module) -> dict[str, Any]:
        """Return an optimizer's state by name with every tensor whole, split ones on the CPU."""
        parts = parts_of(module)
        return {
            name: _each_row(kept, partial(_on_cpu, parts[name])) if name in parts else kept
            for name, kept in state.items()
        }

    def local_moments(self, state: Mapping[str, Any], module: nn.Module) -> dict[str, Any]:
        """Undo `whole_moments`: this rank's parts."""
        parts = parts_of(module)
        return {
            name: _each_row(kept, parts[name].local) if name in parts else kept
            for name, kept in state.items()
        }


def share_statistics(module: nn.Module) -> None:
    """Take what each rank of a pipeline has counted in its layers; all of them call this."""
    pipeline = pipeline_of(module)
    if pipeline is None:
        return
    for name, buffer in module.named_buffers():
        if name in pipeline.owners:
            values = buffer.contiguous()
            buffer.copy_(pipeline.links.broadcast(values, pipeline.owners[name]))


def _on_cpu(part: Part, local: Tensor) -> Tensor:
    return part.whole(local).cpu()


def _each_row(kept: Mapping[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {
        key: change(value) if isinstance(value, Tensor) and value.ndim else value
        for key, value in kept.items()
    }
