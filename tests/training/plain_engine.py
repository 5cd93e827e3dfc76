"""The engine's duties in plain PyTorch, so that a test need not start DeepSpeed."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from skindx.training.parallel.mesh import Cluster, EngineSettings


class Alone(Cluster):
    """A cluster of one that nobody has to join."""

    def __init__(self) -> None:
        super().__init__(0, 1, torch.device("cpu"), EngineSettings(accelerator="cpu"))

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self) -> None:
        pass


class PlainEngine:
    """Forward, backward and step as the engine documents them."""

    exchange = None

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        cluster: Cluster,
        batch: int,
        **exchanging: Any,
    ) -> None:
        self.module, self.optimizer, self.cluster = module, optimizer, cluster

    def __call__(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.module(inputs)
        return outputs

    def whole(self) -> nn.Module:
        return self.module

    def train(self, mode: bool = True) -> None:
        self.module.train(mode)

    def backward(self, loss_sum: Tensor, global_count: int, *, last: bool = True) -> None:
        (loss_sum / global_count).backward()

    def step(self, learning_rate: float) -> bool:
        if self.cluster.world > 1:
            for parameter in self.module.parameters():
                dist.all_reduce(parameter.grad)
        nn.utils.clip_grad_norm_(self.module.parameters(), self.cluster.settings.gradient_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group["lr_scale"]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return True

    def average_buffers(self, module: nn.Module | None = None) -> None:
        pass

    def close(self) -> None:
        pass
