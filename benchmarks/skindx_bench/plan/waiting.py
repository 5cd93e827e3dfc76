"""Ranks that wait as long as their layers would compute: many of them measure the network alone."""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from skindx.core.cost.cluster import Cluster
from skindx.core.cost.profile import LocalWork, Profile, ProfiledLayer, Profiles
from skindx.plan.choice import Choice
from skindx.plan.estimate import Estimate, Machine, estimate
from skindx.plan.strategies import strategy_of
from skindx_bench.exchange.cluster import Cluster as Ranks
from skindx_bench.exchange.load import load_of
from skindx_bench.harness.netlab import Link, NetLab
from skindx_bench.plan.scoring import Row
from skindx_bench.plan.settings import Config, Kind, Layout

_WORKER = "skindx_bench.plan.worker"

_FC_HEAVY: dict[str, tuple[tuple[int, ...], float]] = {
    "conv1": ((32, 3, 3, 3), 0.25),
    "conv2": ((64, 32, 3, 3), 0.45),
    "fc1": ((1024, 3136), 0.2),
    "fc2": ((512, 1024), 0.08),
    "head": ((10, 512), 0.02),
}
"""Parameters to shape and share of the work; nearly all bytes are in the first fully connected."""


def rows(settings: Config) -> Iterator[Row]:
    """Yield each configuration: predicted from what was measured before, and measured."""
    for layout in settings.layouts:
        for rate in settings.rates_mbit:
            with (
                NetLab(layout.nodes, Link(rate)) as lab,
                Ranks(lab, layout.ranks, {"per_node": layout.ranks_per_node}, _WORKER) as ranks,
            ):
                known = Cluster.model_validate(ranks.ask("links", budget_s=settings.links_s)[0])
                for model in settings.models:
                    yield from _of_model(settings, layout, rate, model, (ranks, known))


def _of_model(
    settings: Config, layout: Layout, rate: float, model: str, where: tuple[Ranks, Cluster]
) -> Iterator[Row]:
    ranks, cluster = where
    shapes, work = load(model)
    answers = ranks.ask("load", shapes=shapes)
    profile = profile_of(settings, model, shapes, work, answers)
    machine = Machine(Profiles(networks=(profile,), device="cuda"), cluster)
    planned = {
        kind: estimate(profile, _choice(kind, layout), machine) for kind in kinds(settings, layout)
    }
    ready_s = profile.trace().ready_s
    times: dict[Kind, list[float]] = {kind: [] for kind in planned}
    for turn in range(settings.rounds + 1):
        for kind, found in planned.items():
            seconds = ranks.slowest(
                "step", exchange=_exchange(found), groups=_groups(found), ready_s=ready_s
            )
            if turn:  # the first one compiles and opens connections
                times[kind].append(seconds)
    group = f"{model}, {layout.nodes} x {layout.ranks_per_node}, {rate:g} Mbit/s"
    for kind, found in planned.items():
        yield Row("waiting", group, kind, found.step_s, found.half_width, median(times[kind]))


def kinds(settings: Config, layout: Layout) -> list[Kind]:
    """Return the kinds that a layout can run."""
    levels = layout.nodes > 1 and layout.ranks_per_node > 1
    return [kind for kind in settings.kinds if kind != "hierarchical" or levels]


def strategy_and_options(kind: Kind) -> tuple[str, dict[str, Any]]:
    """Return the strategy of a kind."""
    name, _, wire = kind.partition("+")
    return name, {"wire": wire} if wire else {}


def _choice(kind: Kind, layout: Layout) -> Choice:
    options = {"ranks_per_node": layout.ranks_per_node} if kind == "hierarchical" else {}
    name, given = strategy_and_options(kind)
    strategy = strategy_of(name, {**given, **options})
    return Choice(strategy, layout.nodes, layout.ranks_per_node, layout.ranks)


def _exchange(found: Estimate) -> dict[str, Any]:
    """Return the settings of the exchange, with nothing that changes from step to step."""
    raw: dict[str, Any] = dict(found.choice.strategy.fragment()["exchange"])
    if raw["kind"] == "fused":
        raw["tune"] = False
    if raw["kind"] in ("topk", "gtopk"):
        raw["warmup"] = []
    return raw


def _groups(found: Estimate) -> list[int]:
    """Return how many tensors each message of the prediction has."""
    ends = [message.tensors for message in found.schedule.messages]
    return [end - before for before, end in zip([0, *ends[:-1]], ends, strict=True)]


def load(model: str) -> tuple[dict[str, tuple[int, ...]], dict[str, float]]:
    """Return shapes and shares of the work by parameter, in the order in which they are made."""
    if model == "fc-heavy":
        return (
            {name: shape for name, (shape, _) in _FC_HEAVY.items()},
            {name: share for name, (_, share) in _FC_HEAVY.items()},
        )
    found = load_of(model)
    return dict(found.shapes), dict(found.work)


def profile_of(
    settings: Config,
    model: str,
    shapes: Mapping[str, tuple[int, ...]],
    work: Mapping[str, float],
    answers: list[dict[str, Any]],
) -> Profile:
    """Return the trace of a network that waits: its shares of forward and backward."""
    local = {
        kind: LocalWork.model_validate(
            {
                **answers[0]["local"][kind],
                "base_s": max(answer["local"][kind]["base_s"] for answer in answers),
                "merge_s": max(answer["local"][kind]["merge_s"] for answer in answers),
            }
        )
        for kind in answers[0]["local"]
    }
    layers = tuple(
        ProfiledLayer(
            name=name,
            forward_s=settings.forward_s * work[name],
            backward_s=settings.backward_s * work[name],
            shapes=(tuple(shape),),
            parameter_bytes=4 * _elements(shape),
        )
        for name, shape in shapes.items()
    )
    norm_s = max(answer["norm_s"] for answer in answers)
    return Profile(name=model, batch=1, layers=layers, update_s=norm_s, local=local)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count
