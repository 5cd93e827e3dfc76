"""`skindx bench network`: ranks measure the collectives and the links between them.

What they find is a cluster file for `skindx plan make --cluster`.
"""

import math
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median, variance

import psutil
import torch
import torch.distributed as dist
from scipy.stats import norm
from scipy.stats import t as student_t
from sklearn.isotonic import IsotonicRegression
from torch import nn

from skindx.comm.bucketed_exchange import BucketedExchange, nodes_of
from skindx.comm.exchange_kinds import EXCHANGES, build_exchange
from skindx.comm.fabric import Fabric, GradientBuffer, Transfer
from skindx.core import measurement
from skindx.core.cost.collectives import fit
from skindx.core.cost.pricing import Kind
from skindx.core.errors import UserError
from skindx.training.config.engine import EngineSettings
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.ranks import join, launch
from skindx.training.launching.place import settle_place
from skindx.training.launching.supervise import RANKS, end_with_parent, write_note
from skindx.training.parallel.mesh import Mesh, leave, resolve_accelerator
from skindx_methods.plan.cluster import Cluster, Collective, Link, Links
from skindx_methods.plan.events import Resource, StepTask, run

_QUANTILE = 0.95
"""Above which a twentieth lies: an interval of 90 % has two such ends."""
_LARGEST = 5
"""Sizes whose spread counts: what is nearly all latency varies more, and is little of a step."""


@dataclass(frozen=True)
class Visit:
    """Seconds of the calls of a collective, in order."""

    seconds: dict[int, list[float]]
    """By bytes."""
    cpu_s_per_byte: float

    @property
    def samples(self) -> list[tuple[int, float]]:
        """All of them as (bytes, seconds)."""
        return [(size, once) for size, times in self.seconds.items() for once in times]

    @property
    def medians(self) -> dict[int, float]:
        """One for each size."""
        return {size: median(times) for size, times in self.seconds.items()}


def collective_of(
    kind: Kind, nodes: int, ranks_per_node: int, visits: Sequence[Visit]
) -> Collective:
    """Return the line through all that was timed, and its points."""
    samples = [pair for visit in visits for pair in visit.samples]
    line = fit(samples)
    points = rising(
        [(size, median(s for known, s in samples if known == size)) for size in visits[0].seconds]
    )
    return Collective(
        collective=kind,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        alpha_s=line.alpha_s,
        beta_s_per_byte=max(line.beta_s_per_byte, 1e-15),
        spread=from_visit_to_visit([visit.medians for visit in visits]),
        points=points,
        cpu_s_per_byte=median(visit.cpu_s_per_byte for visit in visits),
    )


def link_of(visits: Sequence[Visit]) -> Link:
    """Return the line of two ranks that swap while the other ranks wait."""
    line = fit([pair for visit in visits for pair in visit.samples])
    return Link(
        alpha_s=line.alpha_s,
        beta_s_per_byte=max(line.beta_s_per_byte, 1e-15),
        spread=from_visit_to_visit([visit.medians for visit in visits]),
    )


def from_visit_to_visit(visits: Sequence[Mapping[int, float]]) -> float:
    """Return how far a later visit will be from the mean of these: standard deviation over mean.

    A training runs at another time than its plan's measurement: what a network does from call to
    call is averaged out, what it does from minute to minute is not. So it is the deviation of
    visits from their mean, for the middle one of the largest sizes that all of them timed (a single
    call that was disturbed is no drift), and once more for the mean itself, which is no surer than
    its visits are many. Sizes vary together, so that few visits know little of their own deviation:
    it is widened as Student's distribution is over the normal one at 90 %.
    """
    common = sorted(set.intersection(*(set(visit) for visit in visits)))[-_LARGEST:]
    squares = [variance([math.log(visit[size]) for visit in visits]) for size in common]
    widened = float(student_t.ppf(_QUANTILE, len(visits) - 1) / norm.ppf(_QUANTILE))
    return min(10.0, widened * math.sqrt(median(squares) * (1 + 1 / len(visits))))


def rising(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Return points that never fall: neighbours that do are averaged (isotonic regression)."""
    sizes, seconds = zip(*points, strict=True)
    rising_s = IsotonicRegression().fit_transform(range(len(sizes)), seconds)
    return tuple(zip(sizes, map(float, rising_s), strict=True))


SIZES_BYTES = tuple(1 << power for power in (10, 13, 16, 18, 20, 22, 23, 24, 25))
VISITS = 4
"""How often each collective is timed, some time apart."""
REPEATS = (3, 2)
"""Calls of a small and of a large size in a visit; before the first visit there is one more, which
opens connections."""
_TOGETHER = 5
"""Times that several are sent at once."""
_SLOW_S = 0.6
"""A size that takes so long is the last one: beyond it time grows with the bytes."""
_LARGE_BYTES = 1 << 20
_BOTH_BYTES = 1 << 20
"""Size at which several are sent at once."""
_SMALL_BYTES = 1 << 14
"""And another one, whose time is nearly all latency."""


@dataclass(frozen=True)
class MeasuredLinks:
    """Measurements of a rank; the same on every rank."""

    collectives: tuple[Collective, ...]
    between: Link | None
    inside: Link | None
    at_once: int


def measure_links(
    fabric: Fabric, nodes: int, per_node: int, budget_s: float = 40.0
) -> MeasuredLinks:
    """Measure; ranks of a node are neighbours. Every rank calls this."""
    meter = _Meter(fabric, nodes, per_node, budget_s)
    calls = meter.calls()
    visits: dict[Kind, list[Visit]] = {kind: [] for kind in calls}
    for _ in range(VISITS):  # all of them, and all of them once more: a while lies in between
        for kind, call in calls.items():
            visits[kind].append(meter.visit(kind, call, visits[kind]))
    collectives = [
        collective_of(kind, nodes, per_node, kind_visits) for kind, kind_visits in visits.items()
    ]
    at_once = meter.share(collectives)
    first_remote_rank = per_node if nodes > 1 else None
    return MeasuredLinks(
        tuple(collectives),
        meter.link(first_remote_rank),
        meter.link(1 if per_node > 1 else None),
        at_once,
    )


class _Meter:
    def __init__(self, fabric: Fabric, nodes: int, per_node: int, budget_s: float) -> None:
        self.fabric, self.nodes, self.per_node = fabric, nodes, per_node
        self.parts_s = budget_s / 6 / VISITS
        self.buffer = torch.zeros(SIZES_BYTES[-1] // 4, device=fabric.device)
        self.gradients = GradientBuffer(
            [("all", nn.Parameter(torch.zeros(1, device=fabric.device)))]
        )

    def calls(self) -> dict[Kind, Callable[[int], None]]:
        """Return what sends so many elements, for each collective that a training may use."""
        fabric, world = self.fabric, self.fabric.world
        result: dict[Kind, Callable[[int], None]] = {
            "all_reduce": lambda count: _drop(fabric.all_reduce(self.buffer[:count]).wait()),
            "all_gather": lambda count: _drop(fabric.all_gather(self.buffer[:count])),
        }
        if world & (world - 1) == 0:
            result["exchange"] = self._butterfly
        for settings in EXCHANGES.loaded().values():
            if probed := settings.probed(self.nodes, self.per_node):
                exchange = build_exchange(probed)
                assert isinstance(exchange, BucketedExchange)
                exchange.attach(fabric, self.gradients, 1)
                result[settings.collective] = partial(self._sum, exchange)
        return result

    def _sum(self, exchange: BucketedExchange, count: int) -> None:
        exchange.sum(self.buffer[:count])

    def _butterfly(self, count: int) -> None:
        """Swap with one partner a round."""
        rank, received = self.fabric.rank, torch.empty_like(self.buffer[:count])
        for bit in range(self.fabric.world.bit_length() - 1):
            peer = rank ^ (1 << bit)
            self.fabric.swap([Transfer(self.buffer[:count], peer)], [Transfer(received, peer)])

    def visit(self, kind: Kind, call: Callable[[int], None], earlier: Sequence[Visit]) -> Visit:
        """Time sizes from small to large, as far as the time allows; later visits stop there too.

        Seconds are those of one round.
        """
        rounds = max(1, self.fabric.world.bit_length() - 1) if kind == "exchange" else 1
        most = 1 << 22 if kind in ("all_gather", "exchange") else SIZES_BYTES[-1]
        sizes = list(earlier[0].seconds) if earlier else [n for n in SIZES_BYTES if n <= most]
        result, cpu = {}, 0.0
        began = time.monotonic()
        for size in sizes:
            before = time.process_time()
            first, repeats = int(not earlier), REPEATS[size >= _LARGE_BYTES]
            times = self._times(lambda size=size: call(size // 4), repeats, first)  # type: ignore[misc]
            cpu = (time.process_time() - before) / (repeats + first) / rounds / size
            result[size] = [seconds / rounds for seconds in times]
            if not earlier and self._enough(size, median(times), began):
                break
        return Visit(result, self._slowest([cpu])[0])

    def share(self, collectives: list[Collective]) -> int:
        """Send several at once: how many go at once, and what of a link one leaves free."""
        one = next(result for result in collectives if result.collective == "all_reduce")
        large = min(_BOTH_BYTES, one.points[-1][0])
        times = {(count, large): self._several(count, large) for count in (1, 2, 4)}
        times[8, _SMALL_BYTES] = self._several(8, _SMALL_BYTES)
        alone_s, two_s = times.pop((1, large)), times[2, large]
        alpha_s = min(one.alpha_s, alone_s)
        wire_s = min(max(0.0, two_s - alone_s), alone_s - alpha_s)
        idle_share = 1 - wire_s / (alone_s - alpha_s) if alone_s > alpha_s else 0.0
        result = {
            slots: one.model_copy(update={"own_share": idle_share if slots > 1 else 0.0})
            for slots in (1, 2, 4)
        }
        unlike = {slots: _unlike(result[slots], slots, times) for slots in result}
        best = min(unlike, key=unlike.__getitem__)
        collectives[collectives.index(one)] = result[best].model_copy(
            update={"together_spread": min(10.0, unlike[best] / len(times))}
        )
        return best

    def _several(self, count: int, size: int) -> float:
        """Return the seconds of so many all-reduces that are begun together."""
        spans = torch.split(self.buffer[: count * (size // 4)], size // 4)

        def send() -> None:
            for work in [self.fabric.all_reduce(span) for span in spans]:
                work.wait()

        return median(self._times(send, _TOGETHER))

    def link(self, peer: int | None) -> Link | None:
        """Time the first rank and `peer`, which swap while the other ranks wait."""
        if peer is None:
            return None
        rank = self.fabric.rank
        other = {0: peer, peer: 0}.get(rank)
        received = torch.empty_like(self.buffer)
        visits: list[Visit] = []
        for _ in range(VISITS):
            result, began = {}, time.monotonic()
            for size in visits[0].seconds if visits else SIZES_BYTES[:-2]:

                def swap(count: int = size // 4) -> None:
                    if other is not None:
                        self.fabric.swap(
                            [Transfer(self.buffer[:count], other)],
                            [Transfer(received[:count], other)],
                        )

                repeats = REPEATS[size >= _LARGE_BYTES]
                result[size] = self._times(swap, repeats, int(not visits))
                if not visits and self._enough(size, median(result[size]), began):
                    break
            visits.append(Visit(result, 0.0))
        return link_of(visits)

    def _times(self, call: Callable[[], None], repeats: int, first: int = 1) -> list[float]:
        """Return the seconds of the slowest rank, time by time.

        `first` calls come before and do not count: they open connections.
        """
        times = []
        for _ in range(first + repeats):
            self.fabric.all_reduce(self.buffer[:1]).wait()  # begin together
            self._settle()
            started = time.perf_counter()
            call()
            self._settle()
            times.append(time.perf_counter() - started)
        return self._slowest(times[first:])

    def _slowest(self, times: Sequence[float]) -> list[float]:
        slowest = torch.tensor(times, dtype=torch.float64, device=self.fabric.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return list(map(float, slowest))

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
        idle_s = known.own_share * (known.curve(size) - alpha_s)
        work_s = known.curve(size) - alpha_s - idle_s
        tasks = [StepTask("message", "link", work_s, latency_s=alpha_s + idle_s)] * count
        total += abs(math.log(max(span.end_s for span in run(tasks, link)) / seconds))
    return total


def _drop(gathered: object) -> None:
    """Gathered tensors are not looked at."""


GRACE_S = 5.0

BUDGET_S = 40.0
"""For all collectives; a slow network takes longer, since its bandwidth must be seen."""


def write_cluster(
    out: Path, config: Path | None, sets: list[str], ranks_per_node: int | None, seconds: float
) -> None:
    """Measure, write the file, and print what is in it, on the first rank."""
    if not network(TrainSettings.load(config, sets).engine, out, ranks_per_node, seconds):
        return
    cluster = Cluster.read(out)
    print(f"{cluster.nodes} nodes of {cluster.ranks_per_node} ranks, {cluster.backend}: {out}")
    for known in cluster.collectives:
        print(
            f"{known.collective}: {1000 * known.alpha_s:.3g} ms + "
            f"{1e9 * known.beta_s_per_byte:.3g} ms/MB, spread {known.spread:.0%}"
        )


def network(
    engine: EngineSettings,
    out: Path,
    ranks_per_node: int | None = None,
    seconds: float = BUDGET_S,
) -> bool:
    """Measure and write `out`, in about so many `seconds`.

    False on a rank that another launcher started and that does not write.
    Starts the ranks itself, on this machine or on the hosts of the engine's hostfile; a process
    that torchrun or Slurm started (RANK is set) is one of them.
    """
    settle_place()
    if "RANK" in os.environ:
        return rank(engine, out, ranks_per_node, seconds)
    with tempfile.TemporaryDirectory(prefix="skindx-plan-", dir=_shared(engine, out)) as folder:
        settings = Path(folder) / "engine.yaml"
        engine.save(settings)
        launch(
            engine,
            resolve_accelerator(engine.accelerator),
            "skindx_bench.cluster.network_probe",
            [str(settings), str(out.resolve()), str(ranks_per_node or 0), str(seconds)],
            notes=Path(folder) / RANKS,
            grace_s=GRACE_S,
        )
    return True


def _shared(engine: EngineSettings, out: Path) -> Path | None:
    """Return a folder that all hosts see: that of the output where there are several."""
    if not engine.hostfile:
        return None
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.resolve().parent


def rank(
    engine: EngineSettings, out: Path, ranks_per_node: int | None, seconds: float = BUDGET_S
) -> bool:
    """Be one of the ranks; the first one writes. Raises UserError on all ranks alike."""
    mesh = join(engine)
    try:
        cluster = cluster_of(mesh, ranks_per_node, seconds)
        if mesh.is_main:
            cluster.write(out)
    finally:
        leave()
    return mesh.is_main


def cluster_of(
    mesh: Mesh, ranks_per_node: int | None = None, budget_s: float = BUDGET_S
) -> Cluster:
    """Return what the ranks of a mesh measured; every rank calls this. Raises UserError."""
    world = mesh.data.size
    nodes, per_node = layout(mesh, ranks_per_node)
    fabric = Fabric(mesh.device, timedelta(seconds=mesh.settings.timeout_s))
    host = measurement.cpu_model()
    memory_bytes = psutil.virtual_memory().total
    if mesh.device.type == "cuda":
        import torch

        host = torch.cuda.get_device_name(mesh.device)
        memory_bytes = torch.cuda.get_device_properties(mesh.device).total_memory
    backend = "nccl" if mesh.device.type == "cuda" else "gloo"
    name = f"{nodes}x{per_node}-{socket.gethostname()}"
    common = {"name": name, "source": "measured", "nodes": nodes, "ranks_per_node": per_node}
    plain = {**common, "backend": backend, "host": host, "memory_gb": round(memory_bytes / 1e9, 1)}
    if world == 1:
        return Cluster.model_validate(plain)
    result = measure_links(fabric, nodes, per_node, budget_s)
    links = [link for link in (result.between, result.inside) if link]
    return Cluster.model_validate(
        {
            **plain,
            "at_once": result.at_once,
            "links": Links(between=result.between, inside=result.inside),
            "collectives": result.collectives,
            "fastest_beta_s_per_byte": min(link.beta_s_per_byte for link in links),
        }
    )


def layout(mesh: Mesh, ranks_per_node: int | None) -> tuple[int, int]:
    """Return nodes and ranks a node, as host names tell. Raises UserError where nodes differ."""
    world = mesh.data.size
    if ranks_per_node:
        if world % ranks_per_node:
            raise UserError(
                f"{world} ranks are no whole nodes of {ranks_per_node}; give another "
                "--ranks-per-node."
            )
        return world // ranks_per_node, ranks_per_node
    groups = nodes_of(mesh.gather(socket.gethostname()), world)
    sizes = {len(ranks) for ranks in groups}
    if len(sizes) > 1 or any(ranks != list(range(ranks[0], ranks[-1] + 1)) for ranks in groups):
        raise UserError(
            f"the nodes have {sorted(sizes)} ranks; start as many on each, with neighbouring ranks "
            "on one node."
        )
    return len(groups), sizes.pop()


def main(arguments: list[str]) -> int:
    """Run one rank: ENGINE OUT RANKS_PER_NODE SECONDS; return the exit code."""
    end_with_parent()
    settings, out = Path(arguments[0]), Path(arguments[1])
    write_note(settings.parent / RANKS, "at work")
    try:
        rank(EngineSettings.load(settings), out, int(arguments[2]) or None, float(arguments[3]))
    except UserError as error:
        write_note(settings.parent / RANKS, "refused")
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_note(settings.parent / RANKS, "finished")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
