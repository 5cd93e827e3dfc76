"""cluster.yaml: nodes, their links, what each collective took where it was measured, and prices."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, model_validator

from skindx.core.atomic_files import write_text
from skindx.core.cost import collectives
from skindx.core.cost.collectives import Cost, Curve
from skindx.core.cost.pricing import Kind, Network, Price
from skindx.core.cost.profile import MOST_BYTES, Name, Seconds
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings

MOST_RANKS = 100_000
"""Most ranks of a cluster."""

Spread = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=1e-9, le=1e9, allow_inf_nan=False)]
PerByte = Annotated[float, Field(ge=1e-18, le=1, allow_inf_nan=False)]
"""Seconds a byte."""
Size = Annotated[int, Field(ge=1, le=MOST_BYTES)]
Nodes = Annotated[int, Field(ge=1, le=MOST_RANKS)]
PerNode = Annotated[int, Field(ge=1, le=1024)]

FORMAT: Literal[1] = 1
HEAD = """\
# What `skindx plan` knows of a cluster. Edit it freely: seconds, bytes, and `spread` as the
# standard deviation over the mean. Prices are those of one node for an hour.
"""


class Link(Settings):
    """One message from one rank to another: alpha + beta x bytes."""

    alpha_s: Seconds
    beta_s_per_byte: PerByte
    spread: Spread = 0.0

    @property
    def cost(self) -> Cost:
        """Time of a message as a line over its bytes."""
        return Cost(self.alpha_s, self.beta_s_per_byte)


class Links(Settings):
    """The links of a node: to the others, and between its own ranks."""

    between: Link | None = None
    inside: Link | None = None


class Collective(Settings):
    """What a collective takes: alpha + beta x bytes, or the points that were measured.

    Bytes are those of the whole buffer of `all_reduce`, `hierarchical` and `multicolor`; of one
    rank's message in `all_gather`, and in `exchange`: one round in which ranks swap in pairs.
    """

    collective: Kind
    nodes: Nodes
    ranks_per_node: PerNode = 1
    alpha_s: Seconds
    beta_s_per_byte: PerByte
    spread: Spread = 0.0
    points: tuple[tuple[Size, Positive], ...] = Field((), max_length=4096)
    """(bytes, seconds), by bytes; between them a line is taken, beyond them alpha and beta."""
    own_share: float = Field(0.0, ge=0, le=1)
    """Share of beta in which the link is idle: ranks add and copy. Others may use it then."""
    together_spread: Spread = 0.0
    """Added relative deviation where several run at once, as their sharing is a model's."""
    cpu_s_per_byte: float = Field(0.0, ge=0, le=1)
    """Seconds of a rank's own cores for each byte."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def curve(self) -> Curve:
        """Time in seconds as a function of bytes."""
        return Curve(Cost(self.alpha_s, self.beta_s_per_byte), tuple(sorted(self.points)))


class Correction(Settings):
    """Measured over predicted time, as `skindx plan check --learn` found it."""

    factor: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
    """Factor of the predicted time of one part of a step."""
    runs: int = Field(1, ge=1, le=10**9)
    spread: Spread = 0.05


class Cluster(Settings):
    """Machines of one kind and their network."""

    format: Literal[1] = FORMAT
    name: Name = "cluster"
    source: Literal["measured", "given", "preset"] = "given"
    """Origin of its times: this very cluster, another one, or a data sheet."""
    nodes: Nodes
    ranks_per_node: PerNode = 1
    backend: Literal["gloo", "nccl", "mpi"] = "gloo"
    at_once: PerNode | None = None
    """Collectives of a rank that are under way at once; none: 2 of gloo, 1 of the others."""
    links: Links = Links()
    collectives: tuple[Collective, ...] = Field((), max_length=4096)
    host: Name = ""
    """Processor or GPU of a node."""
    memory_gb: Positive | None = None
    """Memory of a node, or of its GPU where a rank has one."""
    price_per_node_hour: float | None = Field(None, ge=0, le=1e9)
    currency: str = Field("USD", max_length=20)
    watts_per_node: Positive | None = None
    overhead: Link | None = None
    """What a training adds to each collective: copies between device and host, and the wait for
    the slowest rank."""
    corrections: dict[Name, Correction] = Field(default_factory=dict, max_length=64)
    """Correction learnt from runs for each part of a step (compute, communicate)."""
    fastest_beta_s_per_byte: PerByte | None = None
    """Fastest measured link; a link that is ten times as fast is not believed."""

    @model_validator(mode="after")
    def _something_known(self) -> Self:
        if self.ranks > MOST_RANKS:
            raise ValueError(
                f"{self.ranks} ranks are more than the limit of {MOST_RANKS} ranks of a plan"
            )
        if self.nodes * self.ranks_per_node > 1 and not self.collectives:
            wanted = self.links.between if self.nodes > 1 else self.links.inside
            if wanted is None:
                missing = "links.between" if self.nodes > 1 else "links.inside"
                raise ValueError(
                    f"the cluster file has no measured network; add {missing} (alpha_s, "
                    "beta_s_per_byte) or collectives, or run `skindx bench network`"
                )
        return self

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def slots(self) -> int:
        """Number of collectives that one rank can run at the same time."""
        return self.at_once or (2 if self.backend == "gloo" else 1)

    def write(self, path: Path) -> None:
        """Write YAML with a comment on top, atomically."""
        plain = self.model_dump(mode="json", exclude_defaults=True)
        plain = {"format": FORMAT, **plain}
        text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=100)
        write_text(path, HEAD + text)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read YAML. Raises UserError for what is no cluster."""
        return cls.load(path)


UNMEASURED = 0.10
"""Standard deviation, over the mean, of a collective that is derived from its links."""


class ClusterNetwork:
    """The collectives of some nodes of a cluster, as they are within a training."""

    def __init__(self, cluster: Cluster, nodes: int | None = None, per_node: int | None = None):
        self.cluster = cluster
        self.nodes, self.per_node = nodes or cluster.nodes, per_node or cluster.ranks_per_node
        self._prices: dict[tuple[str, str], Price] = {}

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    @property
    def backend(self) -> str:
        return self.cluster.backend

    @property
    def slots(self) -> int:
        return self.cluster.slots

    def price(
        self, collective: Kind, line: Callable[[Network], Cost] | None = None, variant: str = ""
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
        line = price.line
        line = Cost(line.alpha_s + more.alpha_s, line.beta_s_per_byte + more.beta_s_per_byte)
        points = ((size, seconds + more.cost(size)) for size, seconds in price.curve.points)
        curve = Curve(line, tuple(points))
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

    def _derived(self, line_of: Callable[[Network], Cost]) -> Price:
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
                f"the cluster file {self.cluster.name} has no link between nodes; add "
                "links.between, or an all_reduce in collectives."
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
                f"the cluster file {self.cluster.name} has no link between the ranks of one node; "
                "add links.inside."
            )
        return _one_step(self._known)

    @property
    def cluster_spread(self) -> float:
        """Standard deviation of the links' times over their mean."""
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
