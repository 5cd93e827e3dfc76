"""All ways of training that a cluster and a memory allow, the fastest first."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from skindx.core.cost.pricing import Strategy
from skindx.core.errors import UserError
from skindx.data.loader.batches import steps_of
from skindx_methods.plan.choices import Choice, Exchanging, Workload
from skindx_methods.plan.estimate import Estimate, Machine, PlanOutcome, estimate, outcome
from skindx_methods.plan.interval import is_surely_slower
from skindx_methods.plan.strategy_kinds import Hopping, SideBySide, searched, strategy_of

PAPER = (
    "Search over parallel forms | Jia, Zaharia and Aiken, Beyond Data and Model Parallelism "
    "for Deep Neural Networks (FlexFlow), arXiv 1807.05358, 2018 | "
    "methods/tests/test_search.py | docs/measured/parallel.json"
)

VARIANTS = tuple(searched(parallel=False))
"""Strategy and options of each row that a search looks at."""

PARALLEL = tuple(searched(parallel=True))
"""Strategies that split layers too; what a network or a number of ranks cannot do is left out."""

_MOST_PIECES = 64
_MOST_HOPS = 1024
"""Most visits of members to ranks in an epoch, since each is compared with all others."""
_MOST = 1e12
"""Largest limit, in hours or in money."""


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """Result of a search."""

    chosen: PlanOutcome
    fastest: PlanOutcome
    """Fastest eligible choice; with a limit of hours, the cheapest one within it."""
    given: PlanOutcome | None
    """Outcome of the settings as they were given."""
    every: tuple[PlanOutcome, ...]
    """All choices that were evaluated and fit, the best first."""
    refused: int
    """Number of choices that do not fit the memory, even in smaller pieces."""


@dataclasses.dataclass(frozen=True)
class PlanLimits:
    """A request for a search."""

    hours: float | None = None
    money: float | None = None
    lossy: bool = False
    """Whether exchanges that change the gradient may be chosen."""
    strategy: str | None = None
    """Name of the only strategy to evaluate; None: all."""
    extrapolate: bool = False
    side_by_side: bool = False
    """Whether `skindx train` can train a member on each rank."""

    def __post_init__(self) -> None:
        """Raise UserError for hours or money that are no sum."""
        for name, value in (("hours", self.hours), ("money", self.money)):
            if value is not None and not 0 < value <= _MOST:
                raise UserError(
                    f"--{name} is {value}, but must be a number above 0 and at most {_MOST:g}."
                )


def search(
    workload: Workload, machine: Machine, limits: PlanLimits, given: Choice | None = None
) -> SearchResult:
    """Price every choice and return the best; never one that is slower than `given`.

    Of those that are not surely slower than the best one, it is the one with the fewest settings
    that differ from the defaults.

    Raises UserError where nothing fits, or all lies outside the calibration and it is not asked to
    extrapolate.
    """
    as_given = _as_given(given, workload, machine) if given else None
    result: list[PlanOutcome] = []
    refused = 0
    for choice in _choices(workload, machine, limits):
        try:
            priced = _fitting(choice, workload, machine)
        except UserError:
            if limits.strategy or not choice.strategy.parallel:
                raise
            continue  # no layer is wide enough, or the ranks are no cube
        if priced is None:
            refused += 1
        elif limits.strategy or not _only_data(priced):
            result.append(priced)
    if as_given and as_given.fits and not limits.strategy:
        result = [outcome for outcome in result if not _alike(outcome.choice, as_given.choice)]
        result.append(as_given)
    if not result:
        raise UserError(_nothing_fits(workload, machine))
    beyond = sorted({word for outcome in result for word in outcome.beyond})
    if not limits.extrapolate:
        result = [outcome for outcome in result if not outcome.beyond]
        if not result:
            raise UserError(
                f"the plan needs values that were not measured: {'; '.join(beyond)}. Measure them "
                "with `skindx plan measure`, or add --extrapolate for an estimate with a wider "
                "interval."
            )
    result.sort(key=_seconds)
    chosen, fastest = _best(result, limits, as_given)
    return SearchResult(chosen, fastest, as_given, tuple(result), refused)


def _as_given(given: Choice, workload: Workload, machine: Machine) -> PlanOutcome | None:
    try:
        return _price(given, workload, machine, as_given=True)
    except UserError:
        if not given.strategy.parallel:
            raise
        return None  # nothing is wide enough: it is plain data parallelism


def _only_data(priced: PlanOutcome) -> bool:
    """Tell whether nothing is shared out but images: there are other strategies for that."""
    flow = priced.first.schedule.flow
    return flow is not None and not flow.border_bytes


def _alike(first: Choice, second: Choice) -> bool:
    """Tell whether two choices are the same settings on the same ranks."""
    return (first.label, first.nodes, first.ranks_per_node) == (
        second.label,
        second.nodes,
        second.ranks_per_node,
    )


def _best(
    result: Sequence[PlanOutcome], limits: PlanLimits, given: PlanOutcome | None
) -> tuple[PlanOutcome, PlanOutcome]:
    """Return the plan within the limits, and the fastest; within some hours the cheapest."""
    exact = [
        outcome
        for outcome in result
        if limits.lossy or limits.strategy or not outcome.choice.strategy.lossy or outcome.as_given
    ]
    # ZeRO is derived from the links and never measured: it is for what would not fit without it.
    whole = [
        outcome
        for outcome in exact
        if limits.strategy or not outcome.choice.strategy.zero or outcome.as_given
    ]
    allowed = whole or exact or list(result)
    if limits.money is not None:
        within = [one for one in allowed if one.money is not None and one.money <= limits.money]
        if not within:
            cheapest = min(allowed, key=lambda one: one.money or one.score_s)
            return cheapest, cheapest
        return _simplest(within, _seconds, given), within[0]
    if limits.hours is not None:
        within = [one for one in allowed if 0 < one.seconds <= limits.hours * 3600]
        if not within:
            return allowed[0], allowed[0]
        cheapest = min(within, key=_node_seconds)
        return _simplest(within, _node_seconds, None), cheapest
    return _simplest(allowed, _seconds, given), allowed[0]


def _seconds(priced: PlanOutcome) -> float:
    return priced.score_s * (1 + 1e-9 * priced.choice.ranks)


def _node_seconds(priced: PlanOutcome) -> float:
    return priced.nodes * priced.seconds


def _simplest(
    allowed: Sequence[PlanOutcome],
    cost_of: Callable[[PlanOutcome], float],
    given: PlanOutcome | None,
) -> PlanOutcome:
    """Return the choice with the fewest changed settings that may be as good as the best.

    It may be where the 90 % interval of their ratio holds 1: then nothing says that the other
    settings help. One that leaves the gradient as it is goes first. None is slower than the
    settings as they were given, or than the best with the defaults.
    """
    best = min(allowed, key=cost_of)
    known = [given] if given in allowed else []
    known += [one for one in allowed if not one.changed]
    most = min((cost_of(one) for one in known if one), default=math.inf)

    def simpler(one: PlanOutcome) -> tuple[bool, int, float, bool]:
        return one.choice.strategy.lossy, one.changed, cost_of(one), not one.as_given

    for one in sorted(allowed, key=simpler):
        ratio = cost_of(one) / max(cost_of(best), 1e-12)
        if cost_of(one) <= most * (1 + 1e-9) and not is_surely_slower(one, best, ratio):
            return one
    return best


def _choices(workload: Workload, machine: Machine, limits: PlanLimits) -> Iterator[Choice]:
    first = workload.members[0]
    layouts = list(_layouts(machine, everything=workload.weak or limits.strategy is not None))
    for name, options in _variants(limits):
        strategy = strategy_of(name, options)
        if reason := _refusal(strategy, workload):
            if limits.strategy:
                advice = "" if "; " in reason else "; leave one of them out"
                raise UserError(f"{reason}{advice}.")
            continue
        for nodes, per_node in layouts:
            ranks = nodes * per_node
            if not (limits.strategy or _differs(strategy, nodes, per_node, workload)):
                continue
            batch = first.batch * ranks if workload.weak else first.batch
            if workload.weak or batch >= 2 * ranks * first.accumulate or ranks == 1:
                yield Choice(strategy, nodes, per_node, batch, first.accumulate)
    if limits.side_by_side and len(workload.members) > 1 and not workload.weak:
        for kind in (SideBySide, Hopping):
            if limits.strategy not in (None, kind.name) or _refusal(kind(), workload):
                continue
            for nodes, per_node in layouts:
                ranks = nodes * per_node
                many = kind is Hopping and ranks * len(workload.members) > _MOST_HOPS
                if ranks > 1 and not many:
                    yield Choice(
                        kind(), nodes, per_node, first.batch, first.accumulate, side_by_side=ranks
                    )


def _differs(strategy: Strategy, nodes: int, per_node: int, workload: Workload) -> bool:
    """Tell whether a strategy is anything else than a simpler one on these ranks."""
    if not isinstance(strategy, Exchanging):
        return nodes * per_node > 1
    share = 1 if workload.weak else nodes * per_node
    networks = [(member.profile, member.batch // share) for member in workload.members]
    return strategy.settings.differs(nodes, per_node, networks)


def _refusal(strategy: Strategy, workload: Workload) -> str | None:
    """Return why the members' settings cannot go with a strategy; None where they can."""
    preconditioned = any(member.preconditioned for member in workload.members)
    matrices = "muon" if any(member.matrices for member in workload.members) else ""
    if (what := "recipe.preconditioner" if preconditioned else matrices) and (
        strategy.zero or strategy.parallel
    ):
        return f"{what} works on whole layers, which {strategy.name} shares out"
    if preconditioned and isinstance(strategy, Hopping):
        return "recipe.preconditioner would make hopping members several times larger"
    if (strategy.zero or strategy.parallel) and any(m.layer_norms for m in workload.members):
        does = "mixes" if strategy.zero else "shares out"
        return f"lars and lamb go by the norms of layers, which {strategy.name} {does}"
    whole_layers = any(member.whole_layers for member in workload.members)
    if isinstance(strategy, Exchanging):
        reason = _no_training(strategy, whole_layers=whole_layers, preconditioned=preconditioned)
        if reason := reason or _unfit(strategy, workload):
            return reason
    if strategy.parallel and whole_layers:
        return f"fp16 and compiled networks need whole layers, which {strategy.name} shares out"
    return None


def _no_training(strategy: Exchanging, *, whole_layers: bool, preconditioned: bool) -> str:
    """Return why an exchange does not go with a training; empty where it does."""
    settings = strategy.settings
    try:
        settings.check_training(whole_layers=whole_layers, preconditioned=preconditioned)
    except ValueError as error:
        return settings.needs or str(error)
    return ""


def _unfit(strategy: Exchanging, workload: Workload) -> str:
    """Return why a member's settings or epochs do not go with an exchange; empty where they do."""
    for member in workload.members:
        if not strategy.settings.together and member.lockstep:
            return f"{strategy.name} lets ranks train apart, and {member.lockstep} needs them all"
        if not member.images:
            continue
        try:
            strategy.settings.check_epoch(
                f"member {member.name}", steps_of(member.images, member.batch)
            )
        except UserError as error:
            return str(error).rstrip(".")
    return ""


def _variants(limits: PlanLimits) -> Sequence[tuple[str, dict[str, Any]]]:
    if limits.strategy is None:
        return (*VARIANTS, *PARALLEL)
    if limits.side_by_side and limits.strategy in (SideBySide.name, Hopping.name):
        return ()
    name, _, wire = limits.strategy.partition("+")
    return ((name, {"wire": wire} if wire else {}),)


def _layouts(machine: Machine, *, everything: bool) -> Iterator[tuple[int, int]]:
    """Yield (nodes, ranks a node): all, or also halves of it."""
    cluster = machine.cluster
    if everything:
        yield cluster.nodes, cluster.ranks_per_node
        return
    nodes, per_node = cluster.nodes, cluster.ranks_per_node
    while nodes >= 1:
        yield nodes, cluster.ranks_per_node
        nodes = nodes // 2 if nodes > 1 else 0
    while per_node > 1:
        per_node //= 2
        yield 1, per_node


def _fitting(choice: Choice, workload: Workload, machine: Machine) -> PlanOutcome | None:
    """Price a choice with the fewest pieces that fit, activations computed again if need be."""
    options = [False]
    known = all(
        member.profile.checkpointing and not member.preconditioned for member in workload.members
    )
    if known and not choice.strategy.parallel:
        options.append(True)
    for checkpointing in options:
        pieces = choice.accumulate
        while pieces <= _MOST_PIECES:
            rank_batch = choice.batch // max(1, choice.ranks // choice.side_by_side)
            if pieces > choice.accumulate and rank_batch < 2 * pieces:
                break
            tried = dataclasses.replace(choice, accumulate=pieces, checkpointing=checkpointing)
            priced = _price(tried, workload, machine)
            if priced.fits:
                return priced
            pieces *= 2
    return None


def _price(
    choice: Choice, workload: Workload, machine: Machine, *, as_given: bool = False
) -> PlanOutcome:
    by_network: dict[tuple[Any, ...], Estimate] = {}
    estimates = {}
    for member in workload.members:
        # Members of one network have one profile; two of a name need not be the same network.
        key = (id(member.profile), member.batch, member.accumulate)
        if key not in by_network:
            batch = member.batch * choice.ranks if workload.weak else member.batch
            member_choice = dataclasses.replace(
                choice,
                batch=batch,
                accumulate=max(choice.accumulate, member.accumulate),
            )
            by_network[key] = estimate(member.profile, member_choice, machine)
        estimates[member.name] = by_network[key]
    cluster, whole_s = machine.cluster, None
    if isinstance(choice.strategy, SideBySide):
        add_up = choice.strategy.whole_s
        whole_s = partial(add_up, workload=workload, choice=choice, cluster=cluster)
    return outcome(
        choice,
        estimates,
        workload,
        machine.profiles,
        cluster,
        as_given=as_given,
        whole_s=whole_s,
    )


def _nothing_fits(workload: Workload, machine: Machine) -> str:
    least = _price(Choice(strategy_of("dense"), 1, 1, 1), workload, machine)
    return (
        f"nothing fits {machine.cluster.memory_gb} GB: one image of a rank already takes "
        f"{least.memory_bytes / 1e9:.2f} GB; take a smaller model, or nodes with more memory."
        if machine.cluster.memory_gb and least.memory_bytes > machine.cluster.memory_gb * 1e9
        else "no choice fits: the batch has fewer than two images for each rank; raise "
        "recipe.batch, or ask for fewer ranks."
    )
