"""The loop by hand: two epochs of a task that writes down what it is asked for."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_engine import Alone
from torch import nn

from skindx.data.loader.batches import step_seed
from skindx.training import loop
from skindx.training.position import Position, StepGuard, Waiting
from skindx.training.state import Batch

EPOCHS, STEPS = 2, 3


class _Recorder:
    """Task, engine, statistics and callbacks in one; a rank of two, whose steps are of 4 images."""

    seed, epochs, batch, images, name = 7, EPOCHS, 4, 4 * STEPS, "a"
    exchange = None

    def __init__(self, bad: int = -1) -> None:
        self.module, self.optimizer = nn.Linear(1, 1), None
        self.bad, self.asked = bad, []
        """The number of the piece whose loss is not finite; what was asked for, in order."""
        self.pieces, self.shown, self.speeds = 0, list[float](), list[Any]()

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        for _ in range(first, STEPS):
            yield Batch(lambda: [(torch.ones(1), None)] * 2, local_count=2, count=4)

    def __call__(self, inputs: Any) -> int:
        assert self.module.training
        self.asked.append(torch.initial_seed())
        self.pieces += 1
        return self.pieces

    def loss(self, outputs: int, targets: Any, count: int) -> torch.Tensor:
        return torch.tensor(float("nan") if outputs == self.bad else float(outputs))

    def rate(self, step: int) -> float:
        return float(step)

    def backward(self, loss: torch.Tensor, count: int, *, last: bool) -> None:
        self.asked.append("last" if last else "more")

    def step(self, rate: float) -> bool:
        self.asked.append(rate)
        return True

    def skip(self) -> None:
        self.asked.append("skip")

    def remember(self) -> None:
        self.asked.append("remember")

    def go_back(self) -> None:
        self.asked.append("go back")

    def train(self, mode: bool = True) -> None:
        self.module.train(mode)

    def validate(self, network: nn.Module, speed: Any, stop: Any) -> dict[str, Any]:
        assert not network.training
        self.speeds.append(speed)
        return {}

    def training(self) -> Any:
        rank = SimpleNamespace(rank=1, size=1)
        mesh = SimpleNamespace(
            data=rank, is_main=False, device=torch.device("cpu"), gather=lambda one: [one, 2 * one]
        )
        return SimpleNamespace(
            task=self,
            mesh=mesh,
            engine=self,
            average=None,
            statistics=self,
            take=None,
            name="a",
            guard=StepGuard(Alone(), 3),
            position=Position(),
            waiting=Waiting(),
            evaluated=lambda: self.module,
        )

    def callbacks(self) -> Any:
        return SimpleNamespace(
            start=lambda history: None,
            step=lambda step, loss: self.shown.append((step, loss)),
            epoch=lambda history, line: None,
            line=lambda text: None,
        )

    def enough(self, history: Any) -> str:
        return ""

    def line(self, row: Any) -> str:
        return ""

    def result(self, network: nn.Module, stop: Any) -> str:
        return "done"

    def check_ranks(self) -> None: ...


def test_each_step_has_its_seed_and_its_rate_and_counts_all_of_its_pieces() -> None:
    kept = _Recorder()
    training = kept.training()
    assert loop.fit(training, kept.callbacks()) == "done"
    expected: list[Any] = []
    for done in range(EPOCHS * STEPS):
        seed = step_seed(7, done // STEPS, done % STEPS, 1)
        expected += ["remember", seed, "more", seed, "last", float(done)]
    assert kept.asked == expected
    # Pieces 1 and 2, 3 and 4 … of two images in all; an epoch has those of both ranks.
    assert kept.shown == [(done + 1, (4 * done + 3) / 2) for done in range(EPOCHS * STEPS)]
    training.position.history[-1]["seconds"] = 1000.0
    kept.epochs += 1
    loop.fit(training, kept.callbacks())
    assert kept.speeds[-2].seconds < 1000 <= kept.speeds[-1].seconds  # goes on after a stop
    losses = [row["loss"] for row in training.position.history]
    assert losses == pytest.approx(
        [3 * sum(range(1, 7)) / 12, 3 * sum(range(7, 13)) / 12, 3 * sum(range(13, 19)) / 12]
    )


def test_a_step_that_is_not_taken_leaves_the_statistics_as_they_were() -> None:
    kept = _Recorder(bad=4)
    training = kept.training()
    loop.take_steps(training, kept.callbacks(), lambda training: None)
    assert kept.asked.count("remember") == STEPS
    assert kept.asked.count("go back") == 1
    at = kept.asked.index("skip")
    assert kept.asked[at + 1] == "go back"
    assert [each for each in kept.asked if type(each) is float] == [0.0, 2.0]
    assert loop.last_rate(training) == 2.0
    training.position.next_epoch()
    assert loop.last_rate(training) == 2.0


def test_an_epoch_that_goes_on_counts_the_images_of_its_own_steps() -> None:
    kept = _Recorder()
    training = kept.training()
    training.position.step = 1
    loop.take_steps(training, kept.callbacks(), lambda training: None)
    assert loop._speed(training, 1, 2.0, 9.0).images_per_s == 4.0  # two steps of three in 2 s
