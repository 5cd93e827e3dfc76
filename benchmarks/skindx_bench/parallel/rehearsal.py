"""Measurements of one rank that a plan of the forms needs."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import fmean, median, stdev
from typing import Any

import torch
from torch import Tensor, nn

from skindx.comm.clocks import HostMark, LayerClock, layers_of
from skindx.core.cost.profile import AtBatch, Profile
from skindx.plan.local_work import local_work

_LEAST = 3
"""Steps that are timed at each batch at least, after one that is not."""

Batch = tuple[Tensor, Tensor]


def half_or_not(precision: str) -> AbstractContextManager[Any]:
    """Return what casts products to bf16 in its block, as the engine does, unless it is fp32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")


def profile_of(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Callable[[int], Batch],
    *,
    images: int,
    side: int,
    budget_s: float,
    precision: str = "fp32",
) -> Profile:
    """Time steps of a network at half of so many `images` and at all of them.

    `batch` makes so many images with labels. All ranks do so at once: they share the cores.
    """
    points: list[AtBatch] = []
    for size in sorted({max(1, images // 2), images}):
        clock = LayerClock(net)
        inputs, labels = batch(size)
        forwards, readies, computing, backwards, updates = [], [], [], [], []
        began = time.monotonic()
        number = 0
        while number <= _LEAST or time.monotonic() - began < budget_s / 3:
            optimizer.zero_grad()
            clock.begin()
            start = HostMark()
            with half_or_not(precision):
                outputs = net(inputs)
            loss: Tensor = nn.functional.cross_entropy(outputs.float(), labels)
            back = HostMark()
            loss.backward()  # type: ignore[no-untyped-call]
            over = HostMark()
            optimizer.step()
            end = HostMark()
            number += 1
            if number == 1:  # opens what later steps find open
                continue
            forwards.append(clock.forward_s(start, back))
            readies.append(clock.ready_s(back))
            computing.append(over.seconds_since(start))
            backwards.append(over.seconds_since(back))
            updates.append(end.seconds_since(over))
        spread = min(10.0, stdev(computing) / fmean(computing))
        points.append(AtBatch(batch=size, compute_s=median(computing), spread=spread))
        layers = layers_of(clock, forwards, readies, median(backwards))
        clock.close()
    kept = sum(
        value.nbytes
        for own in optimizer.state.values()
        for value in own.values()
        if isinstance(value, Tensor)
    )
    return Profile(
        name="alexnet",
        size=side,
        batch=images,
        precision=precision,
        layers=layers,
        at=tuple(points),
        update_s=median(updates),
        optimizer="sgd",
        optimizer_bytes=kept,
        local=local_work(net, torch.device("cpu"), budget_s / 3),
    )
