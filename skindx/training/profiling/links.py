"""What the collectives of a training take between these ranks: measured by the very ones in use."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

import torch
import torch.distributed as dist
from torch import nn

from skindx.comm.fabric import Fabric, Transfer
from skindx.comm.gradients import Gradients
from skindx.comm.hierarchical import Hierarchical, HierarchicalSettings
from skindx.comm.multicolor import Multicolor, MulticolorSettings
from skindx.planning.cluster import Collective, Kind, Link
from skindx.planning.cost import fit
from skindx.planning.events import Resource, Task, run

SIZES_BYTES = tuple(1 << power for power in (10, 13, 16, 18, 20, 22, 23, 24, 25))
REPEATS = 5
_SLOW_S = 0.6
"""A size that takes so long is the last one: beyond it time grows with the bytes."""
_LARGE_BYTES = 1 << 20
_BOTH_BYTES = 1 << 20
"""Size at which several are sent at once."""
_SMALL_BYTES = 1 << 14
"""And another one, whose time is nearly all latency."""


@dataclass(frozen=True)
class Found:
    """What a rank measured; the same on every rank."""

    collectives: tuple[Collective, ...]
    between: Link | None
    inside: Link | None
    at_once: int


def measure_links(fabric: Fabric, nodes: int, per_node: int, budget_s: float = 40.0) -> Found:
    """Measure; ranks of a node are neighbours. Every rank calls this."""
    meter = _Meter(fabric, nodes, per_node, budget_s)
    collectives = [meter.collective(kind, call) for kind, call in meter.calls().items()]
    at_once = meter.share(collectives)
    first_of_others = per_node if nodes > 1 else None
    return Found(
        tuple(collectives),
        meter.link(first_of_others),
        meter.link(1 if per_node > 1 else None),
        at_once,
    )


class _Meter:
    def __init__(self, fabric: Fabric, nodes: int, per_node: int, budget_s: float) -> None:
        self.fabric, self.nodes, self.per_node = fabric, nodes, per_node
        self.parts_s = budget_s / 6
        self.buffer = torch.zeros(SIZES_BYTES[-1] // 4, device=fabric.device)
        self.gradients = Gradients([("all", nn.Parameter(torch.zeros(1, device=fabric.device)))])

    def calls(self) -> dict[Kind, Callable[[int], None]]:
        """Return what sends so many elements, for each collective that a training may use."""
        fabric, world = self.fabric, self.fabric.world
        found: dict[Kind, Callable[[int], None]] = {
            "all_reduce": lambda count: _drop(fabric.all_reduce(self.buffer[:count]).wait()),
            "all_gather": lambda count: _drop(fabric.all_gather(self.buffer[:count])),
        }
        if world & (world - 1) == 0:
            found["exchange"] = self._butterfly
        if self.nodes > 1 and self.per_node > 1:
            levels = Hierarchical(HierarchicalSettings(ranks_per_node=self.per_node))
            levels.attach(fabric, self.gradients, 1)
            found["hierarchical"] = lambda count: levels.sum(self.buffer[:count])
        if world > 2:
            colors = Multicolor(MulticolorSettings())
            colors.attach(fabric, self.gradients, 1)
            found["multicolor"] = lambda count: colors.sum(self.buffer[:count])
        return found

    def _butterfly(self, count: int) -> None:
        """Swap with one partner a round."""
        rank, received = self.fabric.rank, torch.empty_like(self.buffer[:count])
        for bit in range(self.fabric.world.bit_length() - 1):
            peer = rank ^ (1 << bit)
            self.fabric.swap([Transfer(self.buffer[:count], peer)], [Transfer(received, peer)])

    def collective(self, kind: Kind, call: Callable[[int], None]) -> Collective:
        """Time sizes from small to large, as far as the time allows."""
        rounds = max(1, self.fabric.world.bit_length() - 1) if kind == "exchange" else 1
        most = 1 << 22 if kind in ("all_gather", "exchange") else SIZES_BYTES[-1]
        samples: list[tuple[int, float]] = []
        spreads: list[float] = []
        cpu = 0.0
        began = time.monotonic()
        for size in (each for each in SIZES_BYTES if each <= most):
            before = time.process_time()
            times = self._times(lambda size=size: call(size // 4), REPEATS)  # type: ignore[misc]
            cpu = (time.process_time() - before) / (REPEATS + 1) / rounds / size
            samples += [(size, seconds / rounds) for seconds in times]
            spreads.append(pstdev(times) / fmean(times))
            if self._enough(size, median(times), began):
                break
        line = fit(samples)
        sizes = sorted({size for size, _ in samples})
        points = rising(
            [(size, median(s for known, s in samples if known == size)) for size in sizes]
        )
        return Collective(
            collective=kind,
            nodes=self.nodes,
            ranks_per_node=self.per_node,
            alpha_s=line.alpha_s,
            beta_s_per_byte=max(line.beta_s_per_byte, 1e-15),
            spread=min(10.0, median(spreads[-4:])),
            points=points,
            cpu_s_per_byte=self._slowest([cpu])[0],
        )

    def share(self, collectives: list[Collective]) -> int:
        """Send several at once: how many go at once, and what of a link one leaves free."""
        one = next(each for each in collectives if each.collective == "all_reduce")
        large = min(_BOTH_BYTES, one.points[-1][0])
        times = {(count, large): self._several(count, large) for count in (1, 2, 4)}
        times[8, _SMALL_BYTES] = self._several(8, _SMALL_BYTES)
        alone_s, two_s = times.pop((1, large)), times[2, large]
        alpha_s = min(one.alpha_s, alone_s)
        wire_s = min(max(0.0, two_s - alone_s), alone_s - alpha_s)
        own = 1 - wire_s / (alone_s - alpha_s) if alone_s > alpha_s else 0.0
        found = {
            slots: one.model_copy(update={"own_share": own if slots > 1 else 0.0})
            for slots in (1, 2, 4)
        }
        best = min(found, key=lambda slots: _unlike(found[slots], slots, times))
        collectives[collectives.index(one)] = found[best]
        return best

    def _several(self, count: int, size: int) -> float:
        """Return the seconds of so many all-reduces that are begun together."""
        spans = torch.split(self.buffer[: count * (size // 4)], size // 4)

        def send() -> None:
            for work in [self.fabric.all_reduce(span) for span in spans]:
                work.wait()

        return median(self._times(send, REPEATS))

    def link(self, peer: int | None) -> Link | None:
        """Time the first rank and `peer`, which swap with nobody else at work."""
        if peer is None:
            return None
        rank = self.fabric.rank
        other = {0: peer, peer: 0}.get(rank)
        received = torch.empty_like(self.buffer)
        samples, began = [], time.monotonic()
        spread = 0.0
        for size in SIZES_BYTES[:-2]:

            def swap(count: int = size // 4) -> None:
                if other is not None:
                    self.fabric.swap(
                        [Transfer(self.buffer[:count], other)], [Transfer(received[:count], other)]
                    )

            times = self._times(swap, REPEATS)
            samples += [(size, seconds) for seconds in times]
            spread = pstdev(times) / fmean(times)
            if self._enough(size, median(times), began):
                break
        line = fit(samples)
        return Link(
            alpha_s=line.alpha_s,
            beta_s_per_byte=max(line.beta_s_per_byte, 1e-15),
            spread=min(10.0, spread),
        )

    def _times(self, call: Callable[[], None], repeats: int) -> list[float]:
        """Return the seconds of the slowest rank, time by time; the first one opens connections."""
        times = []
        for _ in range(repeats + 1):
            self.fabric.all_reduce(self.buffer[:1]).wait()  # begin together
            self._settle()
            started = time.perf_counter()
            call()
            self._settle()
            times.append(time.perf_counter() - started)
        return self._slowest(times[1:])

    def _slowest(self, times: Sequence[float]) -> list[float]:
        every: list[list[float]] = [[] for _ in range(self.fabric.world)]
        dist.all_gather_object(every, list(times))
        return [max(column) for column in zip(*every, strict=True)]

    def _enough(self, size: int, seconds: float, began: float) -> bool:
        """Tell, on all ranks alike, whether larger sizes are left out: bandwidth must be seen."""
        over = size >= _LARGE_BYTES and time.monotonic() - began > self.parts_s
        slow = size > SIZES_BYTES[0] and seconds > _SLOW_S
        return self._slowest([float(over or slow)])[0] > 0

    def _settle(self) -> None:
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize(self.fabric.device)


def _unlike(known: Collective, slots: int, times: dict[tuple[int, int], float]) -> float:
    """Return how far the simulation is from what several at once took, over all of them."""
    link = [Resource("link", slots, shared=True)]
    total = 0.0
    for (count, size), seconds in times.items():
        alpha_s = min(known.alpha_s, known.curve(size))
        own_s = known.own_share * (known.curve(size) - alpha_s)
        work_s = known.curve(size) - alpha_s - own_s
        tasks = [Task("message", "link", work_s, latency_s=alpha_s + own_s)] * count
        total += abs(math.log(max(span.end_s for span in run(tasks, link)) / seconds))
    return total


def rising(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Return points that never fall: neighbours that do are averaged (isotonic regression)."""
    pools: list[tuple[float, list[int]]] = []
    for size, seconds in points:
        pools.append((seconds, [size]))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (second, later), (first, earlier) = pools.pop(), pools.pop()
            count = len(earlier) + len(later)
            mean = (first * len(earlier) + second * len(later)) / count
            pools.append((mean, earlier + later))
    return tuple((size, seconds) for seconds, sizes in pools for size in sizes)


def _drop(gathered: object) -> None:
    """Gathered tensors are not looked at."""
