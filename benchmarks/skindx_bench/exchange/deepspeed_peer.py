"""The same backward pass under DeepSpeed: its own reduction, and ours in its place.

What `skindx train` runs, but for the layers: each takes its time by waiting.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from skindx.comm.dense import DenseSettings
from skindx.comm.fused import FusedSettings
from skindx.comm.fused_exchange import Fused
from skindx.comm.kinds import AnyExchange
from skindx.training.config.engine import EngineSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import adopt_process_group
from skindx.training.parallel.mesh import Mesh, ProcessGroup


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
        adopt_process_group()
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
        loss = engine(torch.zeros((), requires_grad=True))
        dist.barrier()
        module.start = time.perf_counter()
        engine.backward(loss, dist.get_world_size())
        if not engine.step(0.0):
            raise RuntimeError("the gradient is not finite")
        return time.perf_counter() - module.start
