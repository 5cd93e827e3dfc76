"""Batch-norm statistics of weights that nobody trained with."""

import pytest
import torch
from torch import nn

from skindx_methods.local_steps.round_guard import norms_of, recompute_statistics


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
