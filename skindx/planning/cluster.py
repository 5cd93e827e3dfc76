"""cluster.yaml: nodes, their links, and what each collective took where it was measured."""

from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from skindx.config import Settings
from skindx.errors import UserError
from skindx.files import write_text
from skindx.planning.cost import Cost, Curve

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Spread = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Kind = Literal["all_reduce", "all_gather", "exchange", "hierarchical", "multicolor"]

FORMAT: Literal[1] = 1
HEAD = """\
# What `skindx plan` knows of a cluster. Edit it freely: seconds, bytes, and `spread` as the
# standard deviation over the mean. Prices are those of one node for an hour.
"""


class Link(Settings):
    """One message from one rank to another: alpha + beta x bytes."""

    alpha_s: Seconds
    beta_s_per_byte: Positive
    spread: Spread = 0.0

    @property
    def cost(self) -> Cost:
        """As a line over bytes."""
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
    nodes: PositiveInt
    ranks_per_node: PositiveInt = 1
    alpha_s: Seconds
    beta_s_per_byte: Positive
    spread: Spread = 0.0
    points: tuple[tuple[PositiveInt, Positive], ...] = ()
    """(bytes, seconds), by bytes; between them a line is taken, beyond them alpha and beta."""
    own_share: float = Field(0.0, ge=0, le=1)
    """Share of beta in which the link is idle: ranks add and copy. Others may use it then."""
    together_spread: Spread = 0.0
    """And how much less sure several at once are, whose sharing of the link is a model's."""
    cpu_s_per_byte: Seconds = 0.0
    """Time of a rank's own cores that a byte takes."""

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.nodes * self.ranks_per_node

    @property
    def curve(self) -> Curve:
        """As seconds of bytes."""
        return Curve(Cost(self.alpha_s, self.beta_s_per_byte), tuple(sorted(self.points)))


class Correction(Settings):
    """Measured over predicted time, as `skindx plan check --learn` found it."""

    factor: Positive
    """Of the part's time."""
    runs: PositiveInt = 1
    spread: Spread = 0.05


class Cluster(Settings):
    """Machines of one kind and their network."""

    format: Literal[1] = FORMAT
    name: str = "cluster"
    source: Literal["measured", "given", "preset"] = "given"
    """Origin of its times: this very cluster, another one, or a data sheet."""
    nodes: PositiveInt
    ranks_per_node: PositiveInt = 1
    backend: Literal["gloo", "nccl", "mpi"] = "gloo"
    at_once: PositiveInt | None = None
    """Collectives of a rank that are under way at once; none: 2 of gloo, 1 of the others."""
    links: Links = Links()
    collectives: tuple[Collective, ...] = ()
    host: str = ""
    """Processor or GPU of a node."""
    memory_gb: Positive | None = None
    """Of a node; of its GPU where a rank has one."""
    price_per_node_hour: NonNegativeInt | Positive | None = None
    currency: str = "USD"
    watts_per_node: Positive | None = None
    one_rank_s: Positive | None = None
    """Measured seconds of one step on one rank: times of a trace are scaled to it."""
    overhead: Link | None = None
    """What a training adds to each collective: copies between device and host, and the wait for
    the slowest rank."""
    corrections: dict[str, Correction] = Field(default_factory=dict)
    """Part of a step (compute, communicate) to what was learnt from runs."""
    fastest_beta_s_per_byte: Positive | None = None
    """The fastest link that was measured: what is ten times as fast is not believed."""

    @model_validator(mode="after")
    def _something_known(self) -> Self:
        if self.nodes * self.ranks_per_node > 1 and not self.collectives:
            wanted = self.links.between if self.nodes > 1 else self.links.inside
            if wanted is None:
                missing = "links.between" if self.nodes > 1 else "links.inside"
                raise ValueError(
                    f"nothing says what its network takes; give {missing} (alpha_s, "
                    "beta_s_per_byte) or collectives, or run `skindx plan network`"
                )
        return self

    @property
    def ranks(self) -> int:
        """Of all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def slots(self) -> int:
        """Collectives of a rank that are under way at once."""
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


def only_ranks(cluster: Cluster, nodes: int, ranks_per_node: int) -> Cluster:
    """Return a part of a cluster. Raises UserError for more than there is."""
    if nodes > cluster.nodes or ranks_per_node > cluster.ranks_per_node:
        raise UserError(
            f"a plan for {nodes} nodes of {ranks_per_node} ranks asks for more than {cluster.name} "
            f"has ({cluster.nodes} nodes of {cluster.ranks_per_node}); lower --nodes or "
            "--ranks-per-node, or change the cluster file."
        )
    return cluster.model_copy(update={"nodes": nodes, "ranks_per_node": ranks_per_node})
