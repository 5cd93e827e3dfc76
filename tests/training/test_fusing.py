"""The live tuning of `exchange.kind=fused`, and the settings that go with exchanges."""

from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor, nn

from skindx.comm.dense import DenseSettings
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fused import FusedSettings
from skindx.comm.fused_exchange import Fused
from skindx.core.errors import UserError
from skindx.training.config.engine import EngineSettings
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.mesh import leave

CPU = EngineSettings(accelerator="cpu")
TUNED = FusedSettings(profile_steps=2, trial_steps=3)
STEPS = 1 + 2 + 3 * 4 + 2


class _Deep(nn.Module):
    """Made in another order than backward meets it, with a parameter that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(30, 3)
        self.unused = nn.Parameter(torch.ones(7))
        self.first = nn.Linear(9, 30)
        self.middle = nn.ModuleList(nn.Linear(30, 30) for _ in range(4))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        for layer in self.middle:
            hidden = layer(hidden).relu()
        outputs: Tensor = self.last(hidden)
        return outputs


def _train(exchange: ExchangeSettings) -> tuple[list[str], list[Any], Any, list[str]]:
    mesh, net, lines = join(CPU), _Deep(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    engine = Engine(net, optimizer, mesh, batch=8, exchange=exchange, say=lines.append)
    for step in range(STEPS):
        inputs = torch.randn(
            4, 9, generator=torch.Generator().manual_seed(9 * step + mesh.data.rank)
        )
        engine.backward(engine(inputs).square().sum(), 4 * mesh.data.size)
        assert engine.step(0.1)
    state = engine.exchange.state_dict() if engine.exchange else {}
    order = []
    if isinstance(engine.exchange, Fused):
        order = list(engine.exchange.gradients.names)
        again = Fused(TUNED)
        again.attach(engine.exchange.fabric, engine.exchange.gradients, 1)
        again.load_state_dict([state])
        assert list(again.groups) == state["groups"]
        assert again.planned
    engine.close()
    return lines, [parameter.detach().numpy() for parameter in net.parameters()], state, order


def _both() -> list[Any]:
    found = [_train(DenseSettings()), _train(TUNED)]
    leave()
    return found


@pytest.mark.distributed
def test_a_plan_is_found_while_training_goes_on_as_ever() -> None:
    results = run_ranks(2, _both)
    for dense, (lines, weights, state, order) in results:
        for found, expected in zip(weights, dense[1], strict=True):
            assert abs(found - expected).max() < 1e-5
        (line,) = lines
        assert line.startswith("fused: keeps ")
        for said in ("ddp", " ms a step; backward ", "all-reduce "):
            assert said in line
        assert sum(state["groups"]) == len(state["order"]) == 13
        assert order == state["order"]
        # As backward goes, whatever order the module's parts were made in.
        assert [name.split(".")[0] for name in order[:2]] == ["last", "last"]
        assert order[-1] == "unused"
        assert order.index("middle.3.weight") < order.index("middle.0.weight")
        assert order.index("middle.0.weight") < order.index("first.weight")
    assert results[0][1][2] == results[1][1][2], "ranks agree on the plan"


def test_kinds_are_checked_and_saved() -> None:
    raw = {"exchange": {"kind": "gtopk", "density": 0.01}}
    settings = TrainSettings.parse(raw, origin="here")
    assert TrainSettings.model_validate(settings.model_dump(mode="json")) == settings
    assert settings.exchange_fields()["exchange"]["density"] == 0.01
    assert TrainSettings().exchange_fields() == {}
    with pytest.raises(UserError, match=r"'gtopc'.*dense.*fused.*gtopk") as error:
        TrainSettings.parse({"exchange": {"kind": "gtopc"}}, origin="here")
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="density"):
        TrainSettings.parse({"exchange": {"kind": "topk", "density": 0}}, origin="here")
    with pytest.raises(UserError, match=r"set engine.zero=0, or keep engine.zero"):
        TrainSettings.parse({"engine": {"zero": 1}, **raw}, origin="here")


def test_momentum_is_applied_once() -> None:
    corrected = {"exchange": {"kind": "gtopk", "momentum": 0.9}}
    sgd = {"recipe": {"optimizer": "sgd", "momentum": 0}}
    TrainSettings.parse({**corrected, **sgd}, origin="here")
    for recipe in ({}, {"recipe": {"optimizer": "sgd"}}):
        with pytest.raises(UserError, match=r"recipe.momentum=0 with recipe.optimizer=sgd"):
            TrainSettings.parse({**corrected, **recipe}, origin="here")
    with pytest.raises(UserError, match="train the detector in a separate run"):
        TrainSettings.parse({**corrected, **sgd, "detector": {}}, origin="here")
