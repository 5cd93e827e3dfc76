"""Finds the fastest plan of `fused`: probes the network, plans by a cost model, times the plans."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import astuple
from itertools import accumulate
from statistics import median
from typing import Any, Protocol, TypeVar

import torch

from skindx.comm.clocks import Recorder
from skindx.comm.exchange import Reducer
from skindx.comm.fabric import Fabric
from skindx.comm.fused_exchange import Fused
from skindx.comm.grouping import GroupingCandidate, candidates
from skindx.core.cost.collectives import Cost, fit
from skindx.core.cost.profile import Trace

SIZES_BYTES = tuple(1 << power for power in (10, 13, 16, 18, 20, 22, 24))

REPEATS = 5


def probe(fabric: Fabric, most_bytes: int) -> list[tuple[int, float]]:
    """Return (bytes, seconds) of this rank for sizes up to `most_bytes`; every rank calls this.

    What it sends is not counted.
    """
    counted, samples = fabric.bytes_sent, []
    # Two at least: one cannot tell latency from bandwidth.
    sizes = [size for size in SIZES_BYTES if size <= max(most_bytes, SIZES_BYTES[1])]
    tensors = [torch.zeros(size // 4, device=fabric.device) for size in sizes]
    for repeat in range(REPEATS + 1):
        for tensor in tensors:
            fabric.all_reduce(tensor[:1]).wait()  # begin together
            _settle(fabric.device)
            started = time.perf_counter()
            fabric.all_reduce(tensor).wait()
            _settle(fabric.device)
            if repeat:  # the first one opens connections
                samples.append((tensor.nbytes, time.perf_counter() - started))
    fabric.bytes_sent = counted
    return samples


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_MB = 1e6

T = TypeVar("T")


class RankGroup(Protocol):
    """The ranks of a training, as the tuner talks to them."""

    @property
    def device(self) -> torch.device:
        """Device of this rank."""

    def broadcast_from_main(self, make: Callable[[], T]) -> T:
        """Return on every rank what the main one makes."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order."""


class Tuner:
    """Profiles some steps, plans by `skindx.comm.grouping`, and times the best plans live.

    All of these are steps like any other: every plan gives the mean gradient. The winner is never
    slower than DDP's buckets, which are always among the candidates: the model sees one collective
    after the other, and real ones overlap.
    """

    def __init__(
        self,
        fused: Fused,
        reducer: Reducer,
        fabric: Fabric,
        mesh: RankGroup,
        say: Callable[[str], None],
    ) -> None:
        self._fused, self._reducer, self._fabric = fused, reducer, fabric
        self._mesh, self._say = mesh, say
        self._recorder: Recorder | None = None
        self._work = self._tune()

    def forward(self) -> None:
        """A forward pass begins."""
        if self._recorder:
            self._recorder.forward()

    def backward(self) -> None:
        """The last backward pass of a step begins."""
        if self._recorder:
            self._recorder.backward()
            self._reducer.saw = self._recorder.saw

    def step_done(self) -> bool:
        """A step is done; the next one may have another plan. False: tuning is over."""
        self._reducer.saw = None
        if self._fused.planned:  # by the checkpoint from which this training goes on
            return False
        if self._recorder:
            self._recorder.end()
        return next(self._work, False)

    def _tune(self) -> Generator[bool, None, None]:
        """Yield True after each step; the code between two yields runs between two steps."""
        recorders = yield from self._record(self._fused.settings.profile_steps)
        self._recorder = None
        trace = self._trace(recorders)
        cost = self._cost(trace)
        rows = self._mesh.broadcast_from_main(
            lambda: [astuple(candidate) for candidate in candidates(trace, cost)]
        )
        plans = [GroupingCandidate(*row) for row in rows]
        times: list[list[float]] = [[] for _ in plans]
        for _ in range(self._fused.settings.trial_steps):
            for candidate, seconds in zip(plans, times, strict=True):
                self._fused.plan(candidate.plan)
                (recorder,) = yield from self._record(1)
                seconds.append(recorder.step_s)
        self._recorder = None
        self._keep(plans, [median(seconds) for seconds in times], trace, cost)

    def _record(self, steps: int) -> Generator[bool, None, list[Recorder]]:
        result = []
        for _ in range(steps):
            self._recorder = Recorder(self._mesh.device)
            yield True
            result.append(self._recorder)
        return result

    def _trace(self, recorders: Sequence[Recorder]) -> Trace:
        """Lay gradients out in the order in which the main rank's come, and say when."""
        gradients = self._fused.gradients
        ready = {
            name: median(recorder.ready_s().get(name, 0.0) for recorder in recorders)
            for name in recorders[-1].ready_s()
        }
        forward_s = median(recorder.forward_s for recorder in recorders)
        order = self._mesh.broadcast_from_main(lambda: _completed(list(ready), gradients.names))
        gradients.reorder(order)
        every = self._mesh.gather((ready, forward_s))
        ready_s = list(
            accumulate((_latest(name, [times for times, _ in every]) for name in order), max)
        )
        bytes_each = 2 if self._fused.settings.wire == "bf16" else 4
        return Trace(
            names=tuple(order),
            sizes_bytes=tuple(bytes_each * size for size in gradients.sizes),
            backward_s=tuple(b - a for a, b in zip([0.0, *ready_s[:-1]], ready_s, strict=True)),
            forward_s=max(seconds for _, seconds in every),
        )

    def _cost(self, trace: Trace) -> Cost:
        samples = probe(self._fabric, sum(trace.sizes_bytes))
        every = self._mesh.gather(samples)
        slowest = [
            (size, max(answers[number][1] for answers in every))
            for number, (size, _) in enumerate(samples)
        ]
        return fit(slowest)

    def _keep(
        self, plans: Sequence[GroupingCandidate], medians: Sequence[float], trace: Trace, cost: Cost
    ) -> None:
        every = self._mesh.gather(list(medians))
        slowest = [max(answers[number] for answers in every) for number in range(len(plans))]
        best = min(range(len(plans)), key=slowest.__getitem__)
        self._fused.plan(plans[best].plan)
        self._fused.planned = True
        timed = ", ".join(
            f"{candidate.name} ({_groups(candidate.plan)}) {1000 * seconds:.0f} ms"
            for candidate, seconds in sorted(
                zip(plans, slowest, strict=True), key=lambda pair: pair[1]
            )
        )
        self._say(
            f"fused: keeps {plans[best].name}, the fastest of {timed} a step; backward "
            f"{1000 * sum(trace.backward_s):.0f} ms, {sum(trace.sizes_bytes) / _MB:.1f} MB, "
            f"all-reduce {1000 * cost.alpha_s:.2f} ms + {1e9 * cost.beta_s_per_byte:.2f} ms/MB"
        )


def _completed(seen: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return all names: those that were seen, then those that no loss reaches."""
    return [*seen, *(name for name in names if name not in set(seen))]


def _latest(name: str, ready: Sequence[Mapping[str, float]]) -> float:
    return max(times.get(name, 0.0) for times in ready)


def _groups(plan: Sequence[int]) -> str:
    return "1 group" if len(plan) == 1 else f"{len(plan)} groups"
