"""What ranks of local steps agree on, and what they do alone until then."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_engine import Alone
from torch import nn

from skindx.training.config.engine import CheckpointSettings
from skindx.training.config.run import TrainSettings
from skindx.training.position import Position, count_step
from skindx_methods.local_steps import round_guard
from skindx_methods.local_steps.local import LocalSettings
from skindx_methods.local_steps.local_steps import LocalSteps
from skindx_methods.local_steps.round_guard import RoundGuard, refresh_statistics


def test_ranks_apart_ask_for_a_stop_once_in_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of half a second: every fourth asks, or where they meet or save by their steps."""
    now, looked, save = [0.0], list[int](), [False]
    monkeypatch.setattr(round_guard.time, "monotonic", lambda: now[0])
    guard = RoundGuard(Alone(), 3, lambda: bool(looked.append(step)), agree_s=2.0)
    guard.due_alike = lambda: save[0]
    for step in range(1, 14):
        now[0] += 0.5
        save[0] = step == 10
        guard.agree(Position(), synced=step == 7)
    assert looked == [1, 5, 7, 10]


def test_ranks_apart_count_their_own_skipped_steps_until_they_meet() -> None:
    guard, stands = RoundGuard(Alone(), 9, agree_s=1e9), Position()
    guard.agree(stands, synced=True)
    exchange = LocalSteps(LocalSettings())
    training: Any = SimpleNamespace(
        name="a",
        position=stands,
        guard=guard,
        engine=SimpleNamespace(exchange=exchange),
        task=SimpleNamespace(images=99, batch=1),
    )
    batch: Any = SimpleNamespace(local_count=4, count=8)
    sink: Any = SimpleNamespace(line=lambda text: None)
    exchange.agreed = 0
    for loss in (None, None):
        count_step(training, loss, batch, sink, rate=0.1)
    assert (stands.skipped, guard.skipped, guard.skipped_pictures) == (0, 2, 8)
    exchange.agreed = 3
    count_step(training, 1.0, batch, sink, rate=0.1)
    assert (stands.skipped, stands.skipped_pictures, guard.skipped) == (2, 8, 0)


def test_a_stop_is_agreed_on_in_its_grace() -> None:
    for grace_s, agree_s in ((25.0, 2.0), (5.0, 0.5)):
        settings = CheckpointSettings(grace_s=grace_s, bad_steps=3)
        guard = RoundGuard.for_training(Alone(), settings)
        assert (guard.bad_steps, guard._agree_s) == (3, agree_s)


class _Engine:
    """Its first norm is frozen."""

    def __init__(self, net: nn.Sequential) -> None:
        self.module = net

    def train(self, mode: bool = True) -> None:
        self.module.train(mode)
        self.module[0].eval()

    def __call__(self, inputs: torch.Tensor) -> Any:
        return self.module(inputs)


def test_statistics_are_those_of_the_last_steps_with_the_weights_that_ranks_agreed_on() -> None:
    net = nn.Sequential(*(nn.BatchNorm1d(1) for _ in range(2)))
    average = nn.Sequential(*(nn.BatchNorm1d(1) for _ in range(2))).eval()
    with torch.no_grad():
        net[0].bias.fill_(1.0)
        average[0].bias.fill_(3.0)
    seen: list[int] = []

    def batches(epoch: int, first: int) -> Any:
        for step in range(first, 50):
            seen.append(step)
            inputs = torch.tensor([[float(step)], [step + 2.0]])
            yield SimpleNamespace(pieces=lambda inputs=inputs: [(inputs, None)])

    training: Any = SimpleNamespace(
        engine=_Engine(net),
        task=SimpleNamespace(images=100, batch=2, batches=batches),
        average=SimpleNamespace(module=average),
        position=SimpleNamespace(epoch=3),
    )
    refresh_statistics(training)
    assert seen == [*range(30, 50)] * 2
    for network, bias in ((net, 1), (average, 3)):
        assert (network[0].running_mean, network[0].running_var) == (0, 1)
        # Steps 30 to 49 have a mean of 40.5, which the frozen norm leaves as it is.
        assert network[1].running_mean.item() == pytest.approx(40.5 + bias, rel=1e-4)
        assert network[1].running_var.item() == pytest.approx(2, rel=1e-4)
        assert not network[1].training


def _engine(agreed: int) -> Any:
    net = nn.Linear(2, 1)
    exchange = LocalSteps(LocalSettings(steps=2))
    exchange.agreed, exchange.taken = agreed, 1
    return SimpleNamespace(
        exchange=exchange, module=net, optimizer=torch.optim.SGD(net.parameters()), mesh=Alone()
    )


def test_an_average_takes_in_the_steps_of_a_round_where_it_ends() -> None:
    guard = RoundGuard(Alone(), 3)
    assert [guard.agreed(_engine(0), taken=taken) for taken in (False, True)] == [0, 0]
    assert [guard.agreed(_engine(2), taken=taken) for taken in (False, True)] == [2, 2]


def test_a_rank_holds_its_moments_alone_and_stands_at_a_round() -> None:
    guard, engine = RoundGuard(Alone(), 3), _engine(0)
    assert list(guard.per_rank(engine)) == ["moments"]
    training: Any = SimpleNamespace(engine=engine, position=Position(epoch=1, step=7))
    assert guard.place(training) == (1, False, 0)
    assert guard.counts(training) == {"exchange": {"taken": 1}}
    assert guard.complete(engine)  # the second of two steps comes next
    engine.exchange.taken = 0
    assert not guard.complete(engine)


def test_the_fingerprint_of_a_training_is_that_of_every_version_before() -> None:
    settings = TrainSettings.parse({"exchange": {"kind": "local", "steps": 4}})
    assert settings.exchange_fields() == {
        "exchange": {
            "kind": "local",
            "steps": 4,
            "density": 1.0,
            "bits": 2,
            "overlap": 0,
            "outer_rate": 1.0,
            "outer_momentum": 0.0,
        }
    }
