"""Ways of training by name, as `--strategy` takes them, and those that a search looks at."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from skindx.comm.dense import DenseSettings
from skindx.comm.exchange_kinds import EXCHANGES
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.cost.network import UNMEASURED
from skindx.core.cost.pricing import Load, Network, StepSchedule, Strategy, after_backward
from skindx.core.cost.profile import Profile
from skindx.core.cost.step import Message
from skindx.core.errors import UserError
from skindx.training.forms.form_kinds import PARALLEL_FORMS


class Exchanging(Strategy):
    """An exchange of whole gradients, as its settings price it."""

    def __init__(self, settings: ExchangeSettings, name: str = "") -> None:
        """`name`: one of the further strategies that the kind is known by."""
        self.settings = settings
        self.name = name or settings.kind  # type: ignore[misc]
        super().__init__(settings.model_dump(mode="json", exclude_defaults=True, exclude={"kind"}))

    @property
    def lossy(self) -> bool:  # type: ignore[override]
        """As its settings say."""
        return self.settings.lossy

    def schedule(self, load: Load, network: Network) -> StepSchedule:
        """Ask the kind."""
        return self.settings.schedule(load, network, self.settings.also.get(self.name, ""))

    def fragment(self) -> dict[str, Any]:
        """Name the kind, and what it asks of the engine."""
        exchange = {"kind": self.settings.kind, **self.options}
        return {"exchange": exchange, "engine": dict(self.settings.engine)}

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Ask the kind."""
        return self.settings.memory_bytes(load, network)

    def saved_bytes(self, load: Load, network: Network) -> int:
        """Ask the kind."""
        return self.settings.saved_bytes(load, network)

    def refusal(self, *, whole_layers: bool, preconditioned: bool) -> str:
        """Return why it does not go with a training; empty where it does."""
        try:
            self.settings.check_training(whole_layers=whole_layers, preconditioned=preconditioned)
        except ValueError as error:
            return self.settings.needs or str(error)
        return ""


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
        whole = reduce(size) if network.cluster.backend == "gloo" else gather(part)
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
    """The optimizer's state."""

    name: ClassVar[str] = "zero-1"
    zero: ClassVar[int] = 1


class Zero2(Zero):
    """And the gradients."""

    name: ClassVar[str] = "zero-2"
    zero: ClassVar[int] = 2


class Zero3(Zero):
    """And the weights."""

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


class Hopping(SideBySide):
    """`engine.schedule: hop`: a member visits one partition of the data after the other.

    Each (member, partition) pair once an epoch; a member is on one rank at a time, and takes its
    weights and its optimizer with it (Cerebro: Kumar et al. 2021). Within a unit nothing is sent.
    """

    name: ClassVar[str] = "hop"


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
    raise UserError(f"there is no strategy {name!r}; valid: {', '.join(strategy_names())}.")


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


# One way to train (ranks, exchange, pieces), and the members that are to be trained.

DEFAULTS: Mapping[str, Any] = {
    "exchange.kind": "dense",
    "engine.zero": 0,
    "engine.schedule": "data",
    "engine.parallel.kind": "data",
    "engine.activation_checkpointing": False,
    "recipe.accumulate": 1,
}
"""Settings of a training that nobody changed, as far as a choice writes them."""


@dataclass(frozen=True)
class Choice:
    """A point of the search."""

    strategy: Strategy
    nodes: int
    ranks_per_node: int
    batch: int
    """Images of a step over all ranks."""
    accumulate: int = 1
    checkpointing: bool = False
    side_by_side: int = 1
    """Members that are trained at the same time, each on one rank."""

    @property
    def ranks(self) -> int:
        """Of all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def piece(self) -> int:
        """Images of a rank that go through the network at once; the largest of its pieces."""
        together = self.ranks // self.side_by_side if self.side_by_side > 1 else self.ranks
        rank_batch = -(-self.batch // max(1, together))
        return -(-rank_batch // self.accumulate)

    @property
    def label(self) -> str:
        """Its name in messages."""
        parts = [self.strategy.label]
        if self.accumulate > 1:
            parts.append(f"{self.accumulate} pieces")
        if self.checkpointing:
            parts.append("activations computed again")
        return ", ".join(parts)

    def fragment(self) -> dict[str, Any]:
        """Return the settings with which `skindx train` does so on one node of the cluster."""
        raw = self.strategy.fragment()
        engine = {**raw.get("engine", {}), "activation_checkpointing": self.checkpointing}
        if not self.strategy.parallel:
            engine["parallel"] = {"kind": "data"}
        if self.nodes == 1:
            engine["ranks"] = self.ranks_per_node
        return {**raw, "engine": engine, "recipe": {"accumulate": self.accumulate}}

    def changed(self) -> int:
        """Count the settings that differ from the defaults; how many ranks there are is none."""
        return sum(
            key != "engine.ranks" and value != DEFAULTS.get(key)
            for key, value in _settings(self.fragment())
        )


def _settings(fragment: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each setting under its dotted name; `engine.parallel` is several."""
    for section, values in fragment.items():
        for key, value in values.items():
            if (section, key) == ("engine", "parallel"):
                yield from _settings({f"{section}.{key}": value})
            else:
                yield f"{section}.{key}", value


@dataclass(frozen=True)
class PlannedMember:
    """One member of the ensemble."""

    name: str
    profile: Profile
    batch: int
    """Images of a step over all ranks."""
    accumulate: int = 1
    epochs: int = 1
    images: int = 0
    """Training images; 0: not known, and only steps are priced."""
    validation: int = 0
    preconditioned: bool = False
    """It has a `recipe.preconditioner`, which has no price."""
    whole_layers: bool = False
    """Its settings need all of a layer on each rank."""
    layer_norms: bool = False
    """Its optimizer goes by the norms of layers, which ZeRO's flat pieces do not have."""
    matrices: bool = False
    """Its optimizer multiplies the gradient of each whole layer."""
    lockstep: str = ""
    """The setting for which ranks need each other in each step, if there is one."""


@dataclass(frozen=True)
class Workload:
    """All members, in the order in which they are trained."""

    members: tuple[PlannedMember, ...]
    weak: bool = False
    """Each rank has `batch` images, however many ranks there are; else all ranks share them."""
    unpriced: tuple[str, ...] = ()
    """Further work of a training, in sentences."""
