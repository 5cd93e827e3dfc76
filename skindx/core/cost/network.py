"""Time of a message or a collective on a cluster: as measured there, else from its links."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from skindx.core.cost import collectives
from skindx.core.cost.cluster import Cluster, Collective, Kind
from skindx.core.cost.collectives import Cost, Curve
from skindx.core.errors import UserError

UNMEASURED = 0.10
"""Standard deviation, over the mean, of a collective that is derived from its links."""


@dataclass(frozen=True)
class Timed:
    """A message on its way: seconds that pass, seconds of the link, seconds of a rank's cores."""

    latency_s: float
    wire_s: float
    cpu_s: float = 0.0

    def scaled(self, factor: float) -> "Timed":
        """Return a message that takes `factor` times as long."""
        return Timed(self.latency_s * factor, self.wire_s * factor, self.cpu_s)

    @property
    def alone_s(self) -> float:
        """With the link to itself."""
        return self.latency_s + self.wire_s


@dataclass(frozen=True)
class Price:
    """Time of a collective for a number of bytes, with its uncertainty."""

    curve: Curve
    idle_share: float
    cpu_s_per_byte: float
    spread: float
    measured: bool
    together_spread: float = 0.0

    def spread_of(self, messages: int) -> float:
        """Return how sure so many of them are, which may be under way at once."""
        return math.hypot(self.spread, self.together_spread if messages > 1 else 0.0)

    @property
    def line(self) -> Cost:
        """As alpha + beta x bytes, for plans."""
        return self.curve.line

    def __call__(self, size_bytes: float) -> Timed:
        """Return what so many bytes take."""
        seconds = self.curve(size_bytes)
        alpha_s = min(seconds, self.line.alpha_s)
        idle_s = self.idle_share * (seconds - alpha_s)
        return Timed(alpha_s + idle_s, seconds - alpha_s - idle_s, self.cpu_s_per_byte * size_bytes)


class Network:
    """The collectives of some nodes of a cluster, as they are within a training."""

    def __init__(self, cluster: Cluster, nodes: int | None = None, per_node: int | None = None):
        self.cluster = cluster
        self.nodes, self.per_node = nodes or cluster.nodes, per_node or cluster.ranks_per_node
        self._prices: dict[tuple[str, str], Price] = {}

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    def price(
        self, collective: Kind, line: Callable[["Network"], Cost] | None = None, variant: str = ""
    ) -> Price:
        """Return what a collective takes among all ranks.

        Where it was not measured it is derived from the links; a collective of an exchange's own
        brings its `line`, and a `variant` that names all that the line depends on.
        """
        key = (collective, variant)
        if key not in self._prices:
            result = self._measured(collective)
            self._prices[key] = self._in_training(
                _as_measured(result) if result else self._derived(line or _LINES[collective])
            )
        return self._prices[key]

    def _in_training(self, price: Price) -> Price:
        """Add what a training adds to the collective alone."""
        more = self.cluster.overhead
        if self.ranks == 1 or more is None:
            return price
        curve = price.curve.plus(more.cost)
        return replace(price, curve=curve, spread=max(price.spread, more.spread))

    def _measured(self, collective: Kind) -> Collective | None:
        for result in self.cluster.collectives:
            same = (result.nodes, result.ranks_per_node) == (self.nodes, self.per_node)
            if result.collective == collective and same:
                return result
        return None

    @property
    def step(self) -> Cost:
        """The link that a message between two ranks takes: between nodes where there are several.

        Raises UserError where nothing is known of it.
        """
        return self.between if self.nodes > 1 else self.inside

    def _derived(self, line_of: Callable[["Network"], Cost]) -> Price:
        if self.ranks == 1:
            return Price(Curve(Cost(0, 0)), 0, 0, 0, measured=True)
        _ = self.between, self.inside  # each of them must be known
        line = line_of(self)
        known = self._known
        spread = max(self.cluster_spread, UNMEASURED)
        if known is None:
            return Price(Curve(line), 0.0, 0.0, spread, measured=False)
        return Price(
            Curve(line),
            known.own_share,
            known.cpu_s_per_byte,
            spread,
            measured=False,
            together_spread=known.together_spread,
        )

    @cached_property
    def _known(self) -> Collective | None:
        """The measured all-reduce whose number of ranks is next to this one."""
        result = [
            measured
            for measured in self.cluster.collectives
            if measured.collective == "all_reduce"
            and measured.ranks > 1
            and (measured.nodes > 1 or self.nodes == 1)
        ]
        return min(result, key=lambda measured: abs(measured.ranks - self.ranks), default=None)

    @cached_property
    def between(self) -> Cost:
        """The link between two nodes. Raises UserError where nothing is known of it."""
        given = self.cluster.links.between
        if given:
            return given.cost
        if self.nodes == 1:
            return Cost(0.0, 0.0)
        if not self._known:
            raise UserError(
                f"{self.cluster.name} says nothing of the link between nodes; add links.between, "
                "or an all_reduce among its collectives."
            )
        return _one_step(self._known)

    @cached_property
    def inside(self) -> Cost:
        """The link between two ranks of a node. Raises UserError where nothing is known of it."""
        given = self.cluster.links.inside
        if given:
            return given.cost
        if self.per_node == 1:
            return Cost(0.0, 0.0)
        if self.nodes > 1 or not self._known:
            raise UserError(
                f"{self.cluster.name} says nothing of ranks that share a node; add links.inside."
            )
        return _one_step(self._known)

    @property
    def cluster_spread(self) -> float:
        """How sure the links are."""
        links = self.cluster.links
        used = [links.between] if self.nodes > 1 else []
        used += [links.inside] if self.per_node > 1 else []
        return max((link.spread for link in used if link), default=0.0)


def _all_reduce(network: Network) -> Cost:
    step = network.step
    if network.nodes > 1 and network.per_node > 1:
        step = _slower(step, network.inside)
    return collectives.ring(step, network.ranks)


def _exchange(network: Network) -> Cost:
    """All ranks of a node swap at once over its link."""
    step, at_once = network.step, network.per_node if network.nodes > 1 else 1
    return Cost(step.alpha_s, step.beta_s_per_byte * at_once)


_LINES: dict[Kind, Callable[[Network], Cost]] = {
    "all_reduce": _all_reduce,
    "all_gather": lambda network: collectives.all_gather(network.step, network.ranks),
    "exchange": _exchange,
}
"""Collectives that many exchanges are made of -> what they take by their links."""


def _as_measured(result: Collective) -> Price:
    return Price(
        result.curve,
        result.own_share,
        result.cpu_s_per_byte,
        result.spread,
        measured=True,
        together_spread=result.together_spread,
    )


def _one_step(known: Collective) -> Cost:
    """Return the link that an all-reduce along a ring would have had."""
    steps = 2 * (known.ranks - 1)
    return Cost(known.alpha_s / steps, known.beta_s_per_byte * known.ranks / steps)


def _slower(first: Cost, second: Cost) -> Cost:
    return Cost(
        max(first.alpha_s, second.alpha_s), max(first.beta_s_per_byte, second.beta_s_per_byte)
    )
