from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from skindx.training.config.recipe import Ema
from skindx.training.loop import average_agreed
from skindx.training.tasks.optimizer import WeightAverage


def _module(value: float) -> nn.Module:
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    with torch.no_grad():
        module[0].weight.fill_(value)
        module[1].running_mean.fill_(value)
    return module


def _values(average: WeightAverage) -> tuple[float, float]:
    return average.module[0].weight.item(), average.module[1].running_mean.item()


def test_the_average_by_hand() -> None:
    average = WeightAverage(_module(5), Ema(decay=0.9, warmup=False))
    average.update(_module(0), 1)  # the first step starts it
    assert _values(average) == (0, 0)
    average.update(_module(1), 2)
    assert _values(average) == pytest.approx((0.1, 0.1))
    average.update(_module(1), 3)
    assert _values(average) == pytest.approx((0.19, 0.19))
    assert not average.module.training


def test_the_warm_up_forgets_the_start() -> None:
    average = WeightAverage(_module(0), Ema(decay=0.9))
    average.update(_module(0), 1)
    average.update(_module(1), 2)
    kept = 1 - 2 ** (-2 / 3)
    assert _values(average)[0] == pytest.approx(1 - kept)
    average.update(_module(0), 10_000)
    assert _values(average)[0] == pytest.approx(0.9 * (1 - kept))  # the decay has an end


def test_a_checkpoint_goes_on() -> None:
    first, second = (WeightAverage(_module(0), Ema(decay=0.9)) for _ in range(2))
    for step in range(1, 6):
        first.update(_module(step), step)
    second.load_state_dict({name: each.clone() for name, each in first.state_dict().items()})
    for average in (first, second):
        average.update(_module(9), 6)
    assert _values(first) == _values(second)


def test_the_average_is_no_part_of_the_module() -> None:
    module = _module(1)
    average = WeightAverage(module, Ema())
    with torch.no_grad():
        module[0].weight.fill_(7)
    assert _values(average)[0] == 1


def test_what_ranks_agree_on_counts_for_each_step_that_led_to_it() -> None:
    average = WeightAverage(_module(0), Ema(decay=0.9, warmup=False))
    engine = SimpleNamespace(module=_module(1))
    mesh = SimpleNamespace(settings=SimpleNamespace(zero=0))
    training: Any = SimpleNamespace(
        engine=engine,
        average=average,
        mesh=mesh,
        task=SimpleNamespace(images=8, batch=4),
        position=SimpleNamespace(epoch=2, step=0),
    )
    average_agreed(training, 0, 1)  # ranks are apart
    assert _values(average) == (0, 0)
    average_agreed(training, 3, 1)
    assert _values(average) == pytest.approx((1 - 0.9**3, 1 - 0.9**3))


def test_an_average_is_told_all_steps_that_were_taken() -> None:
    """Its warm-up goes by them: nine and the one ahead, of which the last three are new."""
    told: list[int] = []
    average = SimpleNamespace(update=lambda module, step: told.append(step))
    training: Any = SimpleNamespace(
        engine=SimpleNamespace(module=_module(1)),
        average=average,
        mesh=SimpleNamespace(settings=SimpleNamespace(zero=0)),
        task=SimpleNamespace(images=8, batch=2),
        position=SimpleNamespace(epoch=2, step=1),
    )
    average_agreed(training, 3, 1)
    assert told == [8, 9, 10]
