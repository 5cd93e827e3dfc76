"""Batch-norm statistics of weights that nobody trained with."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from skindx.training.checkpoint.norm_statistics import norms_of, recompute_statistics
from skindx.training.loop import refresh_statistics


def test_dropout_stays_off_while_statistics_are_recomputed() -> None:
    net = nn.Sequential(nn.Dropout(1.0), nn.BatchNorm1d(2)).eval()
    recompute_statistics(norms_of(net).values(), lambda: net(torch.ones(4, 2)))
    assert net[1].running_mean.tolist() == [1, 1]
    net[1].momentum = 0.3
    recompute_statistics(norms_of(net).values(), lambda: net(torch.full((4, 2), 5.0)))
    assert net[1].running_mean.tolist() == [5, 5]  # nothing is left of the ones before
    assert (net[1].momentum, int(net[1].num_batches_tracked)) == (0.3, 1)
    recompute_statistics(
        norms_of(nn.Linear(1, 1)).values(), lambda: pytest.fail("nothing to recompute")
    )


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
