"""What ranks do in the tests of an engine with an exchange: steps, one of them spoiled."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.training.config.engine import EngineSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.mesh import leave

CPU = EngineSettings(accelerator="cpu", gradient_clip=0.5)
Runs = dict[tuple[str, str, int], Any]
"""Name of an exchange, precision and pieces of a step -> what `steps` returns."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 7, 3)
        self.unused = nn.Parameter(torch.ones(5))
        self.wide = nn.Linear(7 * 9, 90)
        self.head = nn.Linear(90, 11)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.wide(self.first(inputs).relu().flatten(1)))
        return outputs


def steps(settings: EngineSettings, exchange: ExchangeSettings, pieces: int) -> dict[str, Any]:
    """Two steps, one that is spoiled on the last rank, and one more."""
    mesh, net = join(settings), Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    engine = Engine(net, optimizer, mesh, batch=8, exchange=exchange)
    taken, held = [], []
    for step in range(4):
        generator = torch.Generator().manual_seed(10 * step + mesh.data.rank)
        for piece in range(pieces):
            inputs = torch.randn(4 // pieces, 3, 5, 5, generator=generator)
            outputs = engine(inputs)
            if step == 2 and mesh.data.rank == mesh.data.size - 1 and piece == pieces - 1:
                outputs.register_hook(lambda grad: grad * float("nan"))
            loss = outputs.float().square().sum()
            engine.backward(loss, 4 * mesh.data.size, last=piece == pieces - 1)
        taken.append(engine.step(0.01))
        held.append([parameter.detach().clone() for parameter in net.parameters()])
    sent = engine.exchange.bytes_sent if engine.exchange else 0
    engine.close()
    unchanged = all(torch.equal(*pair) for pair in zip(held[1], held[2], strict=True))
    weights = [tensor.numpy() for tensor in held[3]]
    return {"taken": taken, "unchanged": unchanged, "weights": weights, "sent": sent}


def all_kinds(kinds: Mapping[str, ExchangeSettings], precisions: list[str]) -> Runs:
    """Run every kind on this rank."""
    found = {}
    for precision in precisions:
        settings = CPU.model_copy(update={"precision": precision})
        for name, exchange in kinds.items():
            for pieces in (1, 2):
                found[name, precision, pieces] = steps(settings, exchange, pieces)
    leave()
    return found


def assert_trained_as_dense(
    what: object, run: dict[str, Any], dense: dict[str, Any], near: float = 2e-4
) -> None:
    """AdamW turns a rounding of a tiny gradient into part of a whole step of 0.01."""
    for found, expected in zip(run["weights"], dense["weights"], strict=True):
        assert abs(found - expected).max() < near, what


def assert_same_on_all(ranks: list[Runs]) -> None:
    """All ranks hold the same weights; all skipped the spoiled step, and none changed by it."""
    for result in ranks:
        for key, run in result.items():
            for found, first in zip(run["weights"], ranks[0][key]["weights"], strict=True):
                assert (found == first).all(), key
            assert (run["sent"] > 0) == (key[0] != "dense")
            assert run["taken"] == [True, True, False, True], key
            assert run["unchanged"], key
