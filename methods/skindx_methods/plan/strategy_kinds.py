"""Ways of training by name, as `--strategy` takes them, and those that a search looks at."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from skindx.comm.dense import DenseSettings
from skindx.comm.exchange_kinds import EXCHANGES
from skindx.core.cost.pricing import Load, Message, Network, StepSchedule, Strategy, after_backward
from skindx.core.errors import UserError
from skindx.training.config.parallel_form import PARALLEL_FORMS
from skindx_methods.plan.choices import Choice, Exchanging, Workload
from skindx_methods.plan.cluster import UNMEASURED, Cluster, ClusterNetwork
from skindx_methods.plan.estimate import MemberTime


class Zero(Strategy):
    """`engine.zero` (Rajbhandari et al. 2019, arXiv 1910.02054), with DeepSpeed's own reduction.

    Reduce, update a P-th, and gather the weights again: as many bytes as an all-reduce. Stage 3
    gathers them before forward and once more in backward: half as many again.
    """

    def schedule(self, load: Load, network: Network) -> StepSchedule:
        """Return its collectives; a gather of all weights is one of a P-th from each rank."""
        if network.ranks == 1:
            return StepSchedule()
        reduce, gather = network.price("all_reduce"), network.price("all_gather")
        local = DenseSettings().local(load)
        size, part = load.size_bytes, load.size_bytes // network.ranks
        # gloo has no reduce-scatter: DeepSpeed sums the whole buffer there.
        whole = reduce(size) if network.backend == "gloo" else gather(part)
        summed = after_backward(
            load, size, whole, before_s=local.base_s / 2, after_s=local.base_s / 2
        )
        gathered = Message(0, part, gather(part))
        last = self.zero == 3
        return StepSchedule(
            (summed,),
            gathers=(gathered, gathered) if last else (),
            spreads=() if last else (gathered,),
            update_share=1 / network.ranks,
            spread=max(reduce.spread, gather.spread, UNMEASURED),
            local_spread=local.spread,
            measured=reduce.measured and gather.measured,
        )

    def fragment(self) -> dict[str, Any]:
        """Name the stage."""
        return {"exchange": {"kind": "dense"}, "engine": {"zero": self.zero}}

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Count what a rank no longer holds, and DeepSpeed's flat copies."""
        rest = 1 - 1 / network.ranks
        optimizer = load.profile.optimizer_bytes
        saved = optimizer * rest
        saved += load.size_bytes * rest if self.zero >= 2 else 0
        saved += load.size_bytes * rest if self.zero == 3 else 0
        return round(2 * load.size_bytes - saved)


class Zero1(Zero):
    """ZeRO stage 1 shares out the optimizer's state over ranks."""

    name: ClassVar[str] = "zero-1"
    zero: ClassVar[int] = 1


class Zero2(Zero):
    """ZeRO stage 2 also shares out the gradients."""

    name: ClassVar[str] = "zero-2"
    zero: ClassVar[int] = 2


class Zero3(Zero):
    """ZeRO stage 3 also shares out the weights."""

    name: ClassVar[str] = "zero-3"
    zero: ClassVar[int] = 3


class SideBySide(Strategy):
    """`engine.schedule: members`: each rank trains a whole member, and reads all images."""

    name: ClassVar[str] = "members"

    def schedule(self, load: Load, network: Network) -> StepSchedule:
        """Send nothing in a step."""
        return StepSchedule()

    def fragment(self) -> dict[str, Any]:
        """Name the schedule."""
        return {"exchange": {"kind": "dense"}, "engine": {"zero": 0, "schedule": self.name}}

    def whole_s(
        self, members: Sequence[MemberTime], workload: Workload, choice: Choice, cluster: Cluster
    ) -> float:
        """Return when the last rank is done, each of which takes the next member that waits."""
        busy = [0.0] * choice.side_by_side
        for member in members:
            busy[busy.index(min(busy))] += member.seconds
        return max(busy)


class Hopping(SideBySide):
    """`engine.schedule: hop`: a member visits one partition of the data after the other.

    Each (member, partition) pair once an epoch; a member is on one rank at a time, and takes its
    weights and its optimizer with it (Cerebro: Kumar et al. 2021). Within a unit nothing is sent.
    """

    name: ClassVar[str] = "hop"

    def whole_s(
        self, members: Sequence[MemberTime], workload: Workload, choice: Choice, cluster: Cluster
    ) -> float:
        """Return when the last member has hopped through its last epoch."""
        network = ClusterNetwork(cluster, choice.nodes, choice.ranks_per_node)
        link = network.between if choice.nodes > 1 else network.inside
        state = {
            member.name: member.profile.parameter_bytes + member.profile.optimizer_bytes
            for member in workload.members
        }
        total, done = 0.0, 0
        for epochs in sorted({member.epochs for member in members}):
            active = [member for member in members if member.epochs >= epochs]
            units = [
                [(member.epoch_s + member.validation_s) / choice.ranks] * choice.ranks
                for member in active
            ]
            sizes = [float(state[member.name]) for member in active]
            epoch_s = hops(units, sizes, link.beta_s_per_byte, link.alpha_s)
            total, done = total + (epochs - done) * epoch_s, epochs
        return total


def hops(
    unit_s: list[list[float]], state_bytes: list[float], seconds_per_byte: float, latency_s: float
) -> float:
    """Return the seconds of an epoch of all members: greedy lists, as the trainer schedules.

    `unit_s[m][p]` is what member m takes on partition p, which is one rank's; `state_bytes[m]` what
    it takes along (weights and optimizer). An idle rank takes the free member with the most work
    left; to hop takes as long as its state takes over the link, before the unit begins.
    """
    members, ranks = len(unit_s), len(unit_s[0])
    hop_s = [latency_s + seconds_per_byte * size for size in state_bytes]
    left = [set(range(ranks)) for _ in range(members)]
    left_s = [sum(member_s) for member_s in unit_s]
    free_member_s, free_rank_s = [0.0] * members, [0.0] * ranks
    at: list[int | None] = [None] * members
    for _ in range(members * ranks):
        # The pair that can begin first; of those the member with the most work left.
        _, _, member, rank = min(
            (max(free_member_s[member], free_rank_s[rank]), -left_s[member], member, rank)
            for member in range(members)
            for rank in left[member]
        )
        begin_s = max(free_member_s[member], free_rank_s[rank])
        moved_s = 0.0 if at[member] in (None, rank) else hop_s[member]
        end_s = begin_s + moved_s + unit_s[member][rank]
        free_member_s[member] = free_rank_s[rank] = end_s
        at[member] = rank
        left[member].remove(rank)
        left_s[member] = sum(unit_s[member][part] for part in left[member])
    return max(free_rank_s)


@cache
def _named_strategies() -> dict[str, type[Strategy]]:
    """Return name -> strategy of all that are no exchange of whole gradients."""
    prices = [form.price for form in PARALLEL_FORMS.loaded().values() if form.price]
    return {strategy.name: strategy for strategy in (Zero1, Zero2, Zero3, *prices)}


def strategy_names() -> list[str]:
    """Return all names of strategies."""
    kinds = EXCHANGES.loaded()
    return [*(name for kind in kinds for name in (kind, *kinds[kind].also)), *_named_strategies()]


def strategy_of(name: str, options: Mapping[str, Any] | None = None) -> Strategy:
    """Return a strategy by its name. Raises UserError for one that there is not."""
    if name in _named_strategies():
        return _named_strategies()[name](options)
    for kind, settings in EXCHANGES.loaded().items():
        if name == kind or name in settings.also:
            given = settings.parse(dict(options or {}), f"strategy {name}", expand=False)
            return Exchanging(given, name)
    raise UserError(f"there is no strategy {name!r}; choose one of {', '.join(strategy_names())}.")


def searched(*, parallel: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and options of what a search looks at: of whole layers, or of split ones."""
    kinds = {} if parallel else EXCHANGES.loaded()
    strategies = {
        name: strategy
        for name, strategy in _named_strategies().items()
        if strategy.parallel is parallel
    }
    for name, kind in (kinds | strategies).items():
        yield from ((name, options) for options in kind.searched)
