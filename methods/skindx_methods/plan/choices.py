"""A way to train (ranks, exchange, pieces), and the members that are to be trained."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.cost.pricing import Load, Network, StepSchedule, Strategy
from skindx.core.cost.profile import Profile
from skindx_methods.plan.events import step_s

_ALIKE = 0.005
"""Relative difference below which the times of two steps count as equal."""


class Exchanging(Strategy):
    """An exchange of whole gradients, as its settings price it."""

    def __init__(self, settings: ExchangeSettings, name: str = "") -> None:
        """`name`: one of the further strategies that the kind is known by."""
        self.settings = settings
        self.name = name or settings.kind  # type: ignore[misc]
        super().__init__(settings.model_dump(mode="json", exclude_defaults=True, exclude={"kind"}))

    @property
    def lossy(self) -> bool:  # type: ignore[override]
        """Whether the settings say that the exchange changes the gradient."""
        return self.settings.lossy

    def schedule(self, load: Load, network: Network) -> StepSchedule:
        """Ask the kind; of those as fast as the fastest, take the one with the fewest messages."""
        choices = self.settings.schedules(load, network, self.settings.also.get(self.name, ""))
        if len(choices) == 1:
            return choices[0]
        times = [step_s(load.trace, choice, network) for choice in choices]
        best_s = min(times) * (1 + _ALIKE)
        as_fast = [one for one, seconds in zip(choices, times, strict=True) if seconds <= best_s]
        return min(as_fast, key=lambda choice: len(choice.messages))

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
        """Number of ranks on all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def piece(self) -> int:
        """Images of a rank that go through the network at once; the largest of its pieces."""
        together = self.ranks // self.side_by_side if self.side_by_side > 1 else self.ranks
        rank_batch = -(-self.batch // max(1, together))
        return -(-rank_batch // self.accumulate)

    @property
    def label(self) -> str:
        """Name of the choice in messages."""
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
    """Whether it has a `recipe.preconditioner`, which has no price."""
    whole_layers: bool = False
    """Whether its settings need whole layers on each rank."""
    layer_norms: bool = False
    """Whether its optimizer uses the norms of layers, which ZeRO's flat pieces lack."""
    matrices: bool = False
    """Whether its optimizer multiplies the gradient of each whole layer."""
    lockstep: str = ""
    """The setting for which ranks need each other in each step, if there is one."""


@dataclass(frozen=True)
class Workload:
    """All members, in the order in which they are trained."""

    members: tuple[PlannedMember, ...]
    weak: bool = False
    """Whether each rank has `batch` images, whatever the number of ranks; else all share them."""
    unpriced: tuple[str, ...] = ()
    """Work of a training that has no price, in sentences."""
