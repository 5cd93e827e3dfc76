"""One rank of the plan bench, a process in a namespace: it reads commands and answers them."""

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from skindx.comm.dense import DenseSettings
from skindx.comm.exchange_kinds import AnyExchange
from skindx.comm.fused_exchange import Fused
from skindx.training.config.engine import EngineSettings
from skindx.training.gradient_sync import GradientSync, build_gradient_sync
from skindx.training.parallel.mesh import Mesh, ProcessGroup
from skindx_bench.cluster.gradient_load import Waiting, heavy_tailed
from skindx_bench.cluster.network_probe import cluster_of
from skindx_bench.harness.answering import answer_commands
from skindx_methods.plan.measured_steps import local_work

_TIMEOUT = timedelta(minutes=5)


class PlanRank:
    """State of a rank between commands."""

    def __init__(self, per_node: int) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=_TIMEOUT)
        settings = EngineSettings(accelerator="cpu", gradient_clip=0)
        place = ProcessGroup(dist.get_rank(), dist.get_world_size())
        self.mesh = Mesh(place, torch.device("cpu"), settings)
        self.per_node = per_node
        self.shapes: dict[str, list[int]] = {}
        self.steps: dict[str, Callable[[], float]] = {}

    def links(self, budget_s: float) -> dict[str, Any]:
        """Measure the links, as `skindx bench network` does."""
        return cluster_of(self.mesh, self.per_node, budget_s).model_dump(mode="json")

    def load(self, shapes: dict[str, list[int]]) -> dict[str, Any]:
        """Take a network; return the work of the exchanges, measured as for a plan."""
        self.shapes, self.steps = shapes, {}
        module = self._module()
        local = local_work(module, self.mesh.device)
        flat_M = torch.cat([gradient.reshape(-1) for gradient in module.gradients])
        norms = []
        for _ in range(5):
            started = time.perf_counter()
            float(torch.linalg.vector_norm(flat_M))
            norms.append(time.perf_counter() - started)
        dist.barrier()
        return {
            "local": {kind: work.model_dump(mode="json") for kind, work in local.items()},
            "norm_s": sorted(norms)[2],
        }

    def _module(self) -> Waiting:
        sizes = [torch.Size(shape).numel() for shape in self.shapes.values()]
        source_M = heavy_tailed(sizes, self.mesh.data.rank)
        return Waiting(list(self.shapes.values()), torch.split(source_M, sizes))

    def step(
        self, exchange: dict[str, Any], groups: list[int], ready_s: list[float]
    ) -> dict[str, Any]:
        """Take a step that waits as long as the layers would compute; return its seconds."""
        key = json.dumps(exchange, sort_keys=True)
        if key not in self.steps:
            settings = TypeAdapter(AnyExchange).validate_python(exchange)
            self.steps[key] = (
                self._under_deepspeed()
                if isinstance(settings, DenseSettings)
                else self._synchronised(settings)
            )
        self.groups, self.ready_s = groups, list(reversed(ready_s))
        return {"seconds": self.steps[key]()}

    def _synchronised(self, settings: AnyExchange) -> Callable[[], float]:
        """Return a step by our own exchange, as the engine takes it."""
        module = self._module()
        sync = build_gradient_sync(settings, module, self.mesh, 1, lambda line: None)
        assert isinstance(sync, GradientSync)

        def take() -> float:
            if isinstance(sync.exchange, Fused):
                sync.exchange.plan(self.groups)
            self._begin(module)
            number = module(torch.zeros((), requires_grad=True))
            sync.forward()
            sync.backward(last=True)
            number.backward()
            if not sync.reduce(None):
                raise RuntimeError("the gradient is not finite")
            seconds = time.perf_counter() - module.start
            sync.step_done()
            return seconds

        return take

    def _under_deepspeed(self) -> Callable[[], float]:
        """Return a step by DeepSpeed's own reduction."""
        from skindx.training.deepspeed.engine import Engine
        from skindx.training.deepspeed.ranks import init_distributed

        init_distributed("gloo")
        module = self._module()
        engine = Engine(
            module, _Still(module.parameters(), lr=0.1), self.mesh, dist.get_world_size()
        )

        def take() -> float:
            self._begin(module)
            loss = engine(torch.zeros(1, requires_grad=True)).sum()
            engine.backward(loss, dist.get_world_size())
            if not engine.step(0.0):
                raise RuntimeError("the gradient is not finite")
            return time.perf_counter() - module.start

        return take

    def _begin(self, module: Waiting) -> None:
        module.ready_s = self.ready_s
        dist.barrier()
        module.start = time.perf_counter()


class _Still(torch.optim.SGD):
    """Moves nothing: the update is no part of the exchange."""

    def step(self, closure: Any = None) -> Any:
        """Do nothing."""


if __name__ == "__main__":
    answer_commands(lambda job: PlanRank(**job))
