"""Split networks as whole ones: for checkpoints, evaluation and bundles."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from skindx.core.startup import light_imports
from skindx.models.classifier.heads import Mlp as MlpHead
from skindx.training.parallel.sharding.communicator import Communicator
from skindx.training.parallel.sharding.cubes import (
    CUBE,
    CubeAttention,
    CubeLinear,
    CubeMlp,
    CubeMlpHead,
)
from skindx.training.parallel.sharding.owt import SplitConv, SplitLinear
from skindx.training.parallel.sharding.parts import PARTS, Part, parts_of
from skindx.training.parallel.sharding.transformer import WHOLE_VALUES, ColumnLinear, RowLinear

PIPELINE = "pipeline"
"""What such a network calls its `Pipeline`."""


class Pipeline(Protocol):
    """This rank's stage, and the ranks before and behind it; all of them call all of it."""

    @property
    def wires(self) -> Communicator:
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
    found: Pipeline | None = getattr(module, PIPELINE, None)
    return found


def share_statistics(module: nn.Module) -> None:
    """Take what each rank of a pipeline has counted in its layers; all of them call this."""
    pipeline = pipeline_of(module)
    if pipeline is None:
        return
    for name, buffer in module.named_buffers():
        if name in pipeline.owners:
            values = buffer.contiguous()
            buffer.copy_(pipeline.wires.broadcast(values, pipeline.owners[name]))


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
        for own in (PARTS, CUBE):
            if hasattr(layer, own):
                delattr(layer, own)
        layer.__class__ = _WHOLE.get(type(layer), type(layer))
    if pipeline_of(net):
        delattr(net, PIPELINE)


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """Return weights and statistics with every split weight whole; every rank calls this.

    What is not split is the module's own tensor, which the next step changes.
    """
    share_statistics(module)
    parts = parts_of(module)
    return {
        name: parts[name].whole(value) if name in parts else value
        for name, value in module.state_dict().items()
    }


def whole_moments(state: Mapping[str, Any], module: nn.Module) -> dict[str, Any]:
    """Return an optimizer's state by name with every tensor whole; every rank calls this.

    What was split comes on the CPU: a device may not hold the whole of all.
    """
    parts = parts_of(module)
    return {
        name: _each_row(kept, partial(_on_cpu, parts[name])) if name in parts else kept
        for name, kept in state.items()
    }


def whole_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by name, split ones whole and on the CPU; every rank calls this."""
    parts = parts_of(module)
    return {
        name: _on_cpu(parts[name], weight) if name in parts else weight.detach()
        for name, weight in module.named_parameters()
    }


def _on_cpu(part: Part, own: Tensor) -> Tensor:
    return part.whole(own).cpu()


def own_moments(state: Mapping[str, Any], module: nn.Module) -> dict[str, Any]:
    """Undo `whole_moments`: this rank's parts."""
    parts = parts_of(module)
    return {
        name: _each_row(kept, parts[name].own) if name in parts else kept
        for name, kept in state.items()
    }


def _each_row(kept: Mapping[str, Any], change: Any) -> dict[str, Any]:
    return {
        key: change(value) if isinstance(value, Tensor) and value.ndim else value
        for key, value in kept.items()
    }


def own_state(state: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Undo `whole_state`: this rank's parts."""
    parts = parts_of(module)
    return {
        name: parts[name].own(value) if name in parts else value for name, value in state.items()
    }


def whole_shapes(module: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of split weights as wholes."""
    return {name: part.shape for name, part in parts_of(module).items()}


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
        self._copy.load_state_dict(whole_state(module), assign=True)
        return self._copy.train(module.training)

    def release(self) -> None:
        """Give back the memory of the split weights."""
        for name in self._names:
            place, _, own = name.rpartition(".")
            whole = self._copy.get_parameter(name)
            empty = nn.Parameter(torch.empty(whole.shape, device="meta"))
            setattr(self._copy.get_submodule(place), own, empty)
