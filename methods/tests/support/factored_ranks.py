"""What ranks do in the tests of factored gradients: one wide layer, and a plain copy beside it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from skindx.comm.exchange import Reducer
from skindx.comm.fabric import Fabric, GradientBuffer
from skindx_methods.factored import factored_exchange
from skindx_methods.factored.factored import FactoredSettings
from skindx_methods.factored.factored_exchange import Factored

INSIDE, OUTSIDE = 48, 64
Loss = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Linear(INSIDE, OUTSIDE)
        self.head = nn.Linear(OUTSIDE, 3)
        self.other = nn.Parameter(torch.ones(3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.wide(inputs).relu_()) + self.other
        return outputs


def once(net: Net, inputs: Tensor) -> Tensor:
    return net(inputs).square().mean()


def past_the_layer(net: Net, inputs: Tensor) -> Tensor:
    return net.other.square().mean()


def twice(net: Net, inputs: Tensor) -> Tensor:
    return (net(inputs) + net(2 * inputs)).square().mean()


def recomputed(net: Net, inputs: Tensor) -> Tensor:
    outputs: Any = checkpoint(net, inputs, use_reentrant=False)
    return outputs.square().mean()


def beside(net: Net, inputs: Tensor) -> Tensor:
    return net(inputs).square().mean() + net.wide.weight.square().mean()


class Job:
    """Steps of a network by factors; each returns how far they are from the mean."""

    def __init__(self, fabric: Fabric) -> None:
        self.net, self.plain, self.fabric = Net(), Net(), fabric
        self.exchange = Factored(FactoredSettings(least_mb=0.01, bucket_mb=0.001))
        self.gradients = GradientBuffer(list(self.net.named_parameters()))
        self.exchange.attach(fabric, self.gradients, 1)
        self.exchange.observe(self.net)
        self.reducer = Reducer(self.gradients, self.exchange)
        self._steps = 0

    def step(self, rows: Sequence[int] = (2,), loss: Loss = once, spoil: float = 0) -> Any:
        """Take a step of some passes; return (distance from the mean, bytes that were sent)."""
        self._steps += 1
        generator = torch.Generator().manual_seed(10 * self._steps + self.fabric.rank)
        for net in (self.net, self.plain):
            net.zero_grad()
        sent = self.fabric.bytes_sent
        for number, count in enumerate(rows):
            inputs = torch.randn(count, INSIDE, generator=generator)
            if spoil and self.fabric.rank == 1:
                inputs[0, 0] = spoil
            self.reducer.begin()
            if number == len(rows) - 1:
                self.reducer.arm()
            for net in (self.net, self.plain):
                loss(net, inputs).backward()  # type: ignore[no-untyped-call]
        norm = self.reducer.finish()
        sent = self.fabric.bytes_sent - sent
        if norm is None:
            return None, sent
        apart = 0.0
        for name, weight in self.plain.named_parameters():
            mean = torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
            dist.all_reduce(mean)
            mean /= self.fabric.world
            found = self.net.get_parameter(name).grad
            assert found is not None
            scale = float(mean.abs().max()) or 1.0
            apart = max(apart, float((found - mean).abs().max()) / scale)
        return apart, sent


def _refusal(job: Job) -> str:
    try:
        job.step(loss=beside)
    except RuntimeError as error:
        return str(error)
    return "taken"


def _copy_learns(job: Job) -> bool:
    """A copy of the network trains like any other, and leaves the exchange alone."""
    copy = deepcopy(job.net)
    copy.zero_grad()
    once(copy, torch.ones(2, INSIDE)).backward()  # type: ignore[no-untyped-call]
    return copy.wide.weight.grad is not None and bool(copy.wide.weight.grad.any())


def _failing_forward(job: Job) -> bool:
    """Is the weight trained on after a forward pass that failed?"""
    try:
        job.net(torch.ones(2, INSIDE + 1))
    except RuntimeError:
        return job.net.wide.weight.requires_grad
    return False


@contextmanager
def _other_machine(rank: int) -> Iterator[None]:
    with patch.object(factored_exchange, "machine_fingerprint", lambda *more: 32 * str(rank)):
        yield


def all_cases() -> dict[str, Any]:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    fabric = Fabric(torch.device("cpu"), timedelta(seconds=60))
    rank, found = fabric.rank, dict[str, Any]()
    job = Job(fabric)
    found["first"], found["second"] = job.step(), job.step()
    found["order"] = job.gradients.names
    found["fewer rows on one rank"] = job.step(rows=(1 + rank % 2,))
    found["a layer that the loss does not reach"] = job.step(loss=(past_the_layer, once)[rank % 2])
    found["recomputed"] = job.step(loss=recomputed)
    found["more rows on one rank"] = job.step(rows=(2 + rank % 2,))
    found["as many rows again"] = job.step(rows=(3,))
    found["two passes"] = job.step(rows=(1, 2))
    found["not finite"] = job.step(spoil=float("nan"))
    found["after that"] = job.step()
    found["copy"], found["failed"] = _copy_learns(job), _failing_forward(job)
    found["after these"] = job.step()
    found["too many rows to pay"] = job.step(rows=(100,))
    found["and from then on"] = job.step()
    job.reducer.close()
    job = Job(fabric)
    found["twice"] = [job.step(loss=twice), job.step(loss=twice)]
    job.reducer.close()
    with _other_machine(rank):
        job = Job(fabric)
        found["other machines"] = [job.step(), job.step()]
        job.reducer.close()
    job = Job(fabric)
    job.step()
    found["beside"] = _refusal(job)
    dist.destroy_process_group()
    return found
