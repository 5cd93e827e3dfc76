"""A network as an exchange sees it: shapes, gradients, and a backward pass that waits.

Under DeepSpeed it is what `skindx train` runs, but for the layers: each takes its time by waiting.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from skindx.comm.dense import DenseSettings
from skindx.comm.exchange_kinds import AnyExchange
from skindx.comm.fused import FusedSettings
from skindx.comm.fused_exchange import Fused
from skindx.core.errors import UserError
from skindx.training.config.engine import EngineSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import init_distributed
from skindx.training.parallel.mesh import Mesh, ProcessGroup

# M = elements of the gradient

_SIDE = 224
"""Pixels of the images for which operations are counted."""


@dataclass(frozen=True)
class Load:
    """A network as an exchange sees it; all in the order in which parameters are made."""

    shapes: dict[str, tuple[int, ...]]
    work: dict[str, float]
    """Each parameter's share of the backward pass; sums to 1."""

    @property
    def elements(self) -> int:
        """How many there are in the whole gradient."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def sizes(self) -> list[int]:
        """Elements of each tensor in backward order, as `skindx.comm.fabric` lays them out."""
        return [math.prod(shape) for shape in reversed(self.shapes.values())]


def load_of(model: str) -> Load:
    """Return a timm model's load without its weights, by an empty pass over the meta device.

    A weight's share of the time is its share of the operations: elements times positions. Raises
    UserError for an unknown model.
    """
    import timm

    if not timm.is_model(model):
        raise UserError(f"timm has no model {model!r}; see timm.list_models() for those it has.")
    with torch.device("meta"):
        network = timm.create_model(model, pretrained=False).eval()
        positions: dict[str, int] = {}
        hooks = [
            module.register_forward_hook(_counting(name, positions))
            for name, module in network.named_modules()
        ]
        network(torch.empty(1, 3, _SIDE, _SIDE))
    for hook in hooks:
        hook.remove()
    work = {
        name: parameter.numel() * positions[name.rpartition(".")[0]]
        for name, parameter in network.named_parameters()
    }
    total = sum(work.values())
    return Load(
        {name: tuple(parameter.shape) for name, parameter in network.named_parameters()},
        {name: share / total for name, share in work.items()},
    )


def _counting(
    name: str, positions: dict[str, int]
) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    def count(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        positions[name] = math.prod(output.shape[2:])

    return count


def heavy_tailed(sizes: Sequence[int], rank: int) -> Tensor:
    """Return a gradient: cubes of normal numbers, half of each common to all ranks.

    Most elements are tiny and a few are large, and each tensor has a scale of its own, as in real
    gradients; so the largest elements of two ranks are partly the same.
    """
    common, own = np.random.default_rng(0), np.random.default_rng(rank + 1)
    flat_M = np.empty(sum(sizes), dtype=np.float32)
    start = 0
    for size in sizes:
        scale = np.float32(math.exp(common.normal()))
        part = common.standard_normal(size, dtype=np.float32)
        part += own.standard_normal(size, dtype=np.float32)
        flat_M[start : start + size] = scale * part**3
        start += size
    return torch.from_numpy(flat_M)


class Waiting(nn.Module):
    """Parameters whose gradients are ready, each at its moment of the backward pass."""

    def __init__(self, shapes: Sequence[Sequence[int]], gradients: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(*shape)) for shape in shapes)
        self.gradients = [
            gradient.view_as(weight)
            for gradient, weight in zip(gradients, self.weights, strict=True)
        ]
        self.ready_s: Sequence[float] = ()
        """Seconds after the start of backward, in the order of the parameters."""
        self.start = 0.0

    def forward(self, nothing: Tensor) -> Tensor:
        """Return a number whose backward goes through the parameters from last to first."""
        number = nothing
        for index, weight in enumerate(self.weights):
            number = _Layer.apply(number, weight, self, index)
        return number

    def layer(self, index: int) -> Tensor:
        """Wait until the gradient would have been computed, and return it."""
        time.sleep(max(0.0, self.start + self.ready_s[index] - time.perf_counter()))
        return self.gradients[index]


class _Layer(Function):
    @staticmethod
    def forward(ctx: Any, number: Tensor, weight: Tensor, module: Waiting, index: int) -> Tensor:
        ctx.place = module, index
        return number.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        module, index = ctx.place
        return gradient, module.layer(index), None, None


class _Still(torch.optim.SGD):
    """Moves nothing: the update would cost both the same."""

    def step(self, closure: Any = None) -> Any:
        """Do nothing."""


class UnderDeepSpeed:
    """Two engines on the same parameters, by name: `deepspeed` (ZeRO 0) and `fused`."""

    def __init__(self, shapes: dict[str, list[int]], source_M: Tensor) -> None:
        """`source_M` is the gradient in the order of the parameters; every rank calls this."""
        init_distributed("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        settings = EngineSettings(accelerator="cpu", gradient_clip=0)
        mesh = Mesh(ProcessGroup(rank, world), torch.device("cpu"), settings)
        sizes = [torch.Size(shape).numel() for shape in shapes.values()]
        kinds: dict[str, AnyExchange] = {
            "deepspeed": DenseSettings(),
            "fused": FusedSettings(tune=False),
        }
        self.engines = {}
        for name, exchange in kinds.items():
            module = Waiting(list(shapes.values()), torch.split(source_M, sizes))
            optimizer = _Still(module.parameters(), lr=0.1)
            self.engines[name] = Engine(module, optimizer, mesh, world, exchange=exchange)

    def step(self, kind: str, groups: Sequence[int], ready_s: Sequence[float]) -> float:
        """Return the seconds of a backward pass and of what comes before the update."""
        engine = self.engines[kind]
        module = engine.module
        assert isinstance(module, Waiting)
        if isinstance(engine.exchange, Fused):
            engine.exchange.plan(groups)
        module.ready_s = list(reversed(ready_s))  # they come in backward order
        loss = engine(torch.zeros(1, requires_grad=True)).sum()
        dist.barrier()
        module.start = time.perf_counter()
        engine.backward(loss, dist.get_world_size())
        if not engine.step(0.0):
            raise RuntimeError("the gradient is not finite")
        return time.perf_counter() - module.start
