"""Split networks as whole ones: for checkpoints, evaluation and bundles."""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.training.gradient_sync import GradientSync
from skindx.training.method import METHOD, Method, method_of
from skindx.training.parallel.mesh import Mesh, Watch
from skindx_methods.split_layers.parts import PARTS, Part, build_split_sync, parts_of

WHOLE_VALUES = "whole_values"
"""What a split layer calls the attributes that it had as a whole."""


def join_layers(net: nn.Module) -> None:
    """Make every split layer whole, in place, but for the values: these are on no device yet.

    The class of a split layer has the one that it was as `whole_class`.
    """
    for layer in net.modules():
        for name, value in getattr(layer, WHOLE_VALUES, {}).items():
            setattr(layer, name, value)
        parts: dict[str, Part] = getattr(layer, PARTS, {})
        for name, part in parts.items():
            setattr(layer, name, nn.Parameter(torch.empty(part.shape, device="meta")))
        if parts:
            delattr(layer, PARTS)
        layer.__class__ = getattr(layer, "whole_class", type(layer))
    if hasattr(net, METHOD):
        delattr(net, METHOD)


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
        self._device = mesh.device
        self.links = next(iter(parts_of(net).values())).links
        """Communicator among the ranks that hold different parts."""
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

    def forward(self, images: int) -> None:
        """Tell the ranks how many images this one has."""
        self.links.agree_on_rows(images, self._device)

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

    def watch(self, around: Watch | None, module: nn.Module) -> None:
        """Let something stand round all that the ranks send each other."""
        self.links.watch = around

    def whole_state(self, module: nn.Module) -> dict[str, Tensor]:
        """Return weights and statistics with every split weight whole."""
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


def _on_cpu(part: Part, local: Tensor) -> Tensor:
    return part.whole(local).cpu()


def _each_row(kept: Mapping[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {
        key: change(value) if isinstance(value, Tensor) and value.ndim else value
        for key, value in kept.items()
    }


_SHOWN = 4
"""Layers that a line names."""


def split_and_attach(
    net: nn.Module,
    mesh: Mesh,
    split: Callable[[], Collection[str]],
    say: Callable[[str], None],
    method: type[SplitLayers] = SplitLayers,
) -> None:
    """Split layers in place by `split`, which returns their names, and attach the method.

    `say` gets a line.
    """
    before = _weights(net)
    result = list(split())
    what = f"engine.parallel.kind={mesh.settings.parallel.kind}"
    if not result:
        say(f"{what}: nothing of this network can be split, so all of it is data-parallel")
        return
    method(net, mesh)
    names = result if len(result) <= _SHOWN else [*result[:_SHOWN], "…"]
    say(
        f"{what}: {', '.join(names)} are split over {mesh.tensor.size} ranks; this one holds "
        f"{_weights(net) / 1e6:.1f} of {before / 1e6:.1f} million weights"
    )


def _weights(net: nn.Module) -> int:
    return sum(weight.numel() for weight in net.parameters())
