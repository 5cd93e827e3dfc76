"""cluster.yaml: nodes, their links, and what each collective took where it was measured."""

from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, model_validator

from skindx.core.atomic_files import write_text
from skindx.core.cost.collectives import Cost, Curve
from skindx.core.cost.profile import MOST_BYTES, Name, Seconds
from skindx.core.settings_base import Settings

MOST_RANKS = 100_000
"""Of a cluster."""

Spread = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=1e-9, le=1e9, allow_inf_nan=False)]
PerByte = Annotated[float, Field(ge=1e-18, le=1, allow_inf_nan=False)]
"""Seconds a byte."""
Size = Annotated[int, Field(ge=1, le=MOST_BYTES)]
Nodes = Annotated[int, Field(ge=1, le=MOST_RANKS)]
PerNode = Annotated[int, Field(ge=1, le=1024)]
Kind = Literal["all_reduce", "all_gather", "exchange", "hierarchical", "multicolor"]
"""Collectives, as a cluster file names them; the last two are those of one exchange each."""

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
    """And how much less sure several at once are, whose sharing of the link is a model's."""
    cpu_s_per_byte: float = Field(0.0, ge=0, le=1)
    """Time of a rank's own cores that a byte takes."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def curve(self) -> Curve:
        """As seconds of bytes."""
        return Curve(Cost(self.alpha_s, self.beta_s_per_byte), tuple(sorted(self.points)))


class Correction(Settings):
    """Measured over predicted time, as `skindx plan check --learn` found it."""

    factor: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
    """Of the part's time."""
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
    """Of a node; of its GPU where a rank has one."""
    price_per_node_hour: float | None = Field(None, ge=0, le=1e9)
    currency: str = Field("USD", max_length=20)
    watts_per_node: Positive | None = None
    overhead: Link | None = None
    """What a training adds to each collective: copies between device and host, and the wait for
    the slowest rank."""
    corrections: dict[Name, Correction] = Field(default_factory=dict, max_length=64)
    """Part of a step (compute, communicate) to what was learnt from runs."""
    fastest_beta_s_per_byte: PerByte | None = None
    """The fastest link that was measured: what is ten times as fast is not believed."""

    @model_validator(mode="after")
    def _something_known(self) -> Self:
        if self.ranks > MOST_RANKS:
            raise ValueError(f"{self.ranks} ranks are more than the {MOST_RANKS} of a plan")
        if self.nodes * self.ranks_per_node > 1 and not self.collectives:
            wanted = self.links.between if self.nodes > 1 else self.links.inside
            if wanted is None:
                missing = "links.between" if self.nodes > 1 else "links.inside"
                raise ValueError(
                    f"nothing says what its network takes; give {missing} (alpha_s, "
                    "beta_s_per_byte) or collectives, or run `skindx bench network`"
                )
        return self

    @property
    def ranks(self) -> int:
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
