"""What ranks do in the tests of exchanges: one spawned group runs every kind."""

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from skindx.comm.exchange import Exchange, Reducer
from skindx.comm.exchange_kinds import EXCHANGES, build_exchange
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fabric import Fabric, GradientBuffer
from skindx.training.parallel.mesh import is_lost

STEPS_PER_EPOCH = 2


class Net(nn.Module):
    """Odd sizes, a convolution channels last, a parameter that the loss never reaches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 7, 3, bias=False).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(7)
        self.unused = nn.Parameter(torch.ones(5))
        self.wide = nn.Linear(7 * 9, 130)
        self.head = nn.Linear(130, 11)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.convolution(inputs)).relu()
        outputs: Tensor = self.head(self.wide(hidden.flatten(1)).relu_()) * self.scale
        return outputs


def joined() -> tuple[int, int]:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    return dist.get_rank(), dist.get_world_size()


@cache
def _shared() -> Fabric:
    return Fabric(torch.device("cpu"), timedelta(seconds=60))


def _fabric() -> Fabric:
    """Return this rank's, with a new count: to make process groups takes longer than all else."""
    fabric = _shared()
    fabric.bytes_sent = 0
    return fabric


class Job:
    """One network under one exchange, and the plain gradient beside it."""

    def __init__(self, settings: ExchangeSettings) -> None:
        self.net, self.plain = Net(), Net()
        exchange = build_exchange(settings)
        assert exchange is not None
        self.exchange: Exchange = exchange
        self.fabric = _fabric()
        self.gradients = GradientBuffer(list(self.net.named_parameters()))
        exchange.attach(self.fabric, self.gradients, STEPS_PER_EPOCH)
        exchange.observe(self.net)
        self.reducer = Reducer(self.gradients, exchange)

    def backward(self, step: int, pieces: int = 1, spoil: Callable[[], None] | None = None) -> None:
        """Let both networks make the gradients of this rank's own images."""
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        for net in (self.net, self.plain):
            for parameter in net.parameters():
                parameter.grad = None
        for piece in range(pieces):
            inputs = torch.randn(4, 3, 5, 5, generator=generator)
            with torch.autocast("cpu", torch.bfloat16, enabled=step % 2 == 1):
                losses = [net(inputs).float().square().mean() for net in (self.net, self.plain)]
            self.reducer.begin()
            if piece == pieces - 1:
                self.reducer.arm()
            for loss in losses:
                loss.backward()
        if spoil:
            spoil()

    def own(self) -> Tensor:
        """Return this rank's plain gradient in the layout of the flat buffer."""
        named = dict(self.plain.named_parameters())
        flat = torch.zeros_like(self.gradients.flat)
        for name, offset, view in zip(
            self.gradients.names, self.gradients.offsets, self.gradients.views, strict=False
        ):
            grad = named[name].grad
            if grad is not None:
                there = flat.as_strided(view.size(), view.stride(), offset)
                there.copy_(grad)
        return flat

    def move(self) -> None:
        """Take an update that keeps both networks equal."""
        for parameter, twin in zip(self.net.parameters(), self.plain.parameters(), strict=True):
            assert parameter.grad is not None
            with torch.no_grad():
                parameter.sub_(parameter.grad, alpha=0.1)
                twin.copy_(parameter)


def summed(tensor: Tensor) -> Tensor:
    total = tensor.double()
    dist.all_reduce(total)
    return total


def residual(exchange: Exchange) -> Tensor:
    state = exchange.state_dict()
    return state["residual"].clone() if "residual" in state else torch.zeros(1)


def follow(settings: ExchangeSettings, steps: int, pieces: int) -> dict[str, Any]:
    """Take some steps; return how far results are from the mean, one another, and the identity."""
    job, world = Job(settings), dist.get_world_size()
    found: dict[str, Any] = dict.fromkeys(("dense", "dense_bf16", "apart", "identity", "norm"), 0.0)
    for step in range(steps):
        before = residual(job.exchange)
        job.backward(step, pieces)
        own = job.own()
        norm = job.reducer.finish()
        assert norm is not None
        flat = job.gradients.flat
        mean = summed(own) / world
        gathered = [torch.empty_like(flat) for _ in range(world)]
        dist.all_gather(gathered, flat)
        put_in = summed(own) + summed(before)
        came_out = summed(residual(job.exchange)) + world * flat.double()
        exact = "dense_bf16" if step % 2 else "dense"
        found[exact] = max(found[exact], _distance(flat.double(), mean))
        found["apart"] = max(found["apart"], *(_distance(other, flat) for other in gathered))
        found["identity"] = max(found["identity"], _distance(came_out, put_in))
        found["norm"] = max(found["norm"], abs(norm - float(flat.norm())))
        job.move()
    found["bytes"] = job.exchange.bytes_sent
    found["elements"] = len(job.gradients.flat)
    found["sizes"] = list(job.gradients.sizes)
    job.reducer.close()
    return found


def resumed(settings: ExchangeSettings) -> bool:
    """Are two steps, a state, and two more in a new job equal to four, to the bit?"""
    whole, first = Job(settings), Job(settings)
    for step in range(4):
        whole.backward(step)
        assert whole.reducer.finish() is not None
        whole.move()
    for step in range(2):
        first.backward(step)
        assert first.reducer.finish() is not None
        first.move()
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, first.exchange.state_dict())
    second = Job(settings)
    second.net.load_state_dict(first.net.state_dict())
    second.plain.load_state_dict(first.net.state_dict())
    second.exchange.load_state_dict(states)
    for step in range(2, 4):
        second.backward(step)
        assert second.reducer.finish() is not None
        second.move()
    for job in (whole, first, second):
        job.reducer.close()
    weights = zip(whole.net.parameters(), second.net.parameters(), strict=True)
    return all(torch.equal(one, other) for one, other in weights)


def spoiled(settings: ExchangeSettings) -> tuple[bool, bool, bool]:
    """A NaN on the last rank: is the step refused, is nothing remembered of it, does it go on?"""
    job = Job(settings)
    for step in range(2):
        job.backward(step)
        assert job.reducer.finish() is not None
        job.move()
    before = _flattened(job.exchange.state_dict())

    def spoil() -> None:
        if dist.get_rank() == dist.get_world_size() - 1:
            job.gradients.flat[-3] = float("nan")

    job.reducer.exchange = _Late(job.exchange, spoil)
    job.backward(2)
    refused = job.reducer.finish() is None
    job.reducer.exchange = job.exchange
    after = _flattened(job.exchange.state_dict())
    untouched = len(before) == len(after) and all(
        torch.equal(one, other) for one, other in zip(before, after, strict=True)
    )
    job.backward(3)
    goes_on = job.reducer.finish() is not None
    job.reducer.close()
    return refused, untouched, goes_on


class _Late:
    """Spoils the buffer before anything is launched."""

    def __init__(self, exchange: Exchange, spoil: Callable[[], None]) -> None:
        self._exchange, self._spoil, self.groups = exchange, spoil, exchange.groups
        self.begin, self.computes, self.norm = exchange.begin, exchange.computes, exchange.norm
        self.sums = exchange.divided = False

    def launch(self, group: int) -> None:
        if group == len(self.groups) - 1:
            self._spoil()
            for number in range(len(self.groups)):
                self._exchange.launch(number)

    def finish(self) -> bool:
        return self._exchange.finish()


def _flattened(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state.clone()]
    if isinstance(state, dict):
        return [leaf for value in state.values() for leaf in _flattened(value)]
    if isinstance(state, list):
        return [leaf for value in state for leaf in _flattened(value)]
    return [torch.tensor(float(state))] if isinstance(state, int | float) else []


def _distance(one: Tensor, other: Tensor) -> float:
    scale = float(other.abs().max()) or 1.0
    return float((one.double() - other.double()).abs().max()) / scale


def every_kind(cases: dict[str, ExchangeSettings]) -> dict[str, Any]:
    """Run every case on this rank."""
    joined()
    found: dict[str, Any] = {}
    for name, settings in cases.items():
        assert EXCHANGES.load(settings.kind).code
        found[name] = {
            "plain": follow(settings, steps=3, pieces=1),
            "accumulated": follow(settings, steps=2, pieces=2),
            "resumed": resumed(settings),
            "spoiled": spoiled(settings),
        }
    dist.destroy_process_group()
    return found


def assert_mean(name: str, runs: dict[str, Any], bf16: float = 3e-6) -> None:
    """Both runs of an exact kind gave the mean; under autocast within `bf16`."""
    for run in (runs["plain"], runs["accumulated"]):
        assert run["dense"] < 3e-6, name
        assert run["dense_bf16"] < bf16, name
        assert run["norm"] < 1e-6, name


def assert_consistent(name: str, runs: dict[str, Any]) -> None:
    """Ranks hold the same bits, also after a pause, and all refuse a NaN of one of them."""
    assert runs["plain"]["apart"] == runs["accumulated"]["apart"] == 0, name
    assert runs["resumed"], name
    refused, untouched, goes_on = runs["spoiled"]
    assert refused, name
    assert untouched, name
    assert goes_on, name


def left_alone(settings: ExchangeSettings) -> str:
    """The last rank leaves after a step; return what the others are told."""
    rank, world = joined()
    job = Job(settings)
    job.backward(0)
    assert job.reducer.finish() is not None
    job.move()
    dist.barrier()
    if rank == world - 1:
        return ""
    try:
        for step in range(1, 50):
            job.backward(step)
            job.reducer.finish()
            job.move()
    except (RuntimeError, dist.DistError) as error:
        return str(error) if is_lost(error) else ""
    return "nobody noticed"
