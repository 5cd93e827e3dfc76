"""The engine's duties in plain PyTorch, so that a test need not start DeepSpeed."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from timm.optim import Lamb, Lars
from torch import Tensor, nn

from skindx.training.checkpoint.saved_state import State, load_named_state, named_state
from skindx.training.config.engine import EngineSettings
from skindx.training.parallel.mesh import Mesh, ProcessGroup


class Alone(Mesh):
    """A mesh of one that nobody has to join."""

    def __init__(self) -> None:
        settings = EngineSettings(accelerator="cpu")
        super().__init__(ProcessGroup(0, 1), torch.device("cpu"), settings)

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self) -> None:
        pass


class Plain:
    """A small network with its optimizer, as an engine saves them."""

    def __init__(self, optimizer: str = "adamw") -> None:
        torch.manual_seed(0)
        self.module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
        groups = [
            {"params": list(self.module[0].parameters()), "weight_decay": 0.1},
            {"params": [*self.module[2].parameters(), *self.module[1].parameters()]},
        ]
        make: dict[str, Callable[[], torch.optim.Optimizer]] = {
            "adamw": lambda: torch.optim.AdamW(groups, lr=0.1),
            "sgd": lambda: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
            "lamb": lambda: Lamb(groups, lr=0.1),
            "lars": lambda: Lars(groups, lr=0.1, momentum=0.9),
        }
        self.optimizer = make[optimizer]()

    def step(self, number: int) -> None:
        inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(number))
        self.optimizer.zero_grad()
        self.module(inputs).square().mean().backward()
        self.optimizer.step()

    def state_dict(self) -> State:
        return {
            "weights": dict(self.module.named_parameters()),
            "optimizer": named_state(self.optimizer, self.module),
        }

    def load_state_dict(self, state: State) -> None:
        self.module.load_state_dict(state["weights"], strict=False)
        load_named_state(self.optimizer, self.module, state["optimizer"])


class PlainEngine:
    """Forward, backward and step as the engine documents them."""

    exchange = None

    def skip(self) -> None:
        self.module.zero_grad()

    def check_ranks(self) -> None:
        """There is no other rank."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        mesh: Mesh,
        batch: int,
        **exchanging: Any,
    ) -> None:
        self.module, self.optimizer, self.mesh = module, optimizer, mesh

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
        if self.mesh.data.size > 1:
            for parameter in self.module.parameters():
                dist.all_reduce(parameter.grad)
        nn.utils.clip_grad_norm_(self.module.parameters(), self.mesh.settings.gradient_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group["lr_scale"]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return True

    def close(self) -> None:
        pass


class HeadsEngine(PlainEngine):
    """Clips by what was set to, as heads do one by one, and takes the rate of each group."""

    precondition: Any = None

    def step(self, learning_rate: float) -> bool:
        if self.precondition:
            self.precondition(self.module)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group["lr_scale"]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return True
