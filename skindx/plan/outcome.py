"""Totals of a choice for epochs, members and the whole ensemble; time, money and energy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skindx.core.cost.cluster import Cluster
from skindx.core.cost.profile import Profiles, compute_scale
from skindx.plan.estimate import Estimate
from skindx.plan.strategies import Choice, PlannedMember, Workload


@dataclass(frozen=True)
class MemberTime:
    """One member."""

    name: str
    estimate: Estimate
    epoch_s: float
    validation_s: float
    epochs: int

    @property
    def seconds(self) -> float:
        """All its epochs."""
        return self.epochs * (self.epoch_s + self.validation_s)


@dataclass(frozen=True)
class PlanOutcome:
    """A choice for all members."""

    choice: Choice
    members: tuple[MemberTime, ...]
    seconds: float
    """Until the last member is trained; 0 where images are not known."""
    nodes: int
    price_per_node_hour: float | None
    watts_per_node: float | None
    fits: bool
    memory_bytes: float
    as_given: bool = False

    @property
    def first(self) -> Estimate:
        """Of the first member."""
        return self.members[0].estimate

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of `skindx train` for it."""
        return self.choice.fragment()

    @property
    def changed(self) -> int:
        """How many of these settings differ from the defaults; the number of ranks is none."""
        return self.choice.changed()

    @property
    def score_s(self) -> float:
        """The quantity that the search minimises: the whole, or the time of an image."""
        return self.seconds or sum(
            member.estimate.step_s / member.estimate.choice.batch for member in self.members
        )

    @property
    def money(self) -> float | None:
        """Price of the nodes for the whole."""
        price = self.price_per_node_hour
        return None if price is None else price * self.nodes * self.seconds / 3600

    @property
    def energy_kwh(self) -> float | None:
        """Of the nodes, by their given watts: estimated."""
        watts = self.watts_per_node
        return None if watts is None else watts * self.nodes * self.seconds / 3.6e6

    @property
    def beyond(self) -> tuple[str, ...]:
        """Inputs outside the calibration."""
        return tuple(
            dict.fromkeys(word for member in self.members for word in member.estimate.beyond)
        )


def outcome(
    choice: Choice,
    estimates: Mapping[str, Estimate],
    workload: Workload,
    profiles: Profiles,
    cluster: Cluster,
    *,
    as_given: bool = False,
    whole_s: Callable[[Sequence[MemberTime]], float] | None = None,
) -> PlanOutcome:
    """Add up the members; `estimates` by member's name.

    `whole_s` returns when the last one is trained, where they are not trained one after the other.
    """
    members = tuple(
        _member(member, estimates[member.name], profiles) for member in workload.members
    )
    total = whole_s(members) if whole_s else sum(member.seconds for member in members)
    memory = max(estimate.memory.peak_bytes for estimate in estimates.values())
    limit = cluster.memory_gb
    ranks = choice.ranks_per_node if profiles.device == "cpu" else 1
    fits = limit is None or memory * ranks <= limit * 1e9
    return PlanOutcome(
        choice,
        members,
        total,
        choice.nodes,
        cluster.price_per_node_hour,
        cluster.watts_per_node,
        fits,
        memory,
        as_given,
    )


def _member(member: PlannedMember, estimate: Estimate, profiles: Profiles) -> MemberTime:
    choice = estimate.choice
    steps = max(1, round(member.images / choice.batch)) if member.images else 0
    rank_images = member.validation / (1 if choice.side_by_side > 1 else choice.ranks)
    profile = member.profile
    forward_s = sum(layer.forward_s or 0.0 for layer in profile.layers) / profile.batch
    forward_s *= compute_scale(profile, profile.batch)
    read_s = profile.read_s / profiles.cores
    seconds = forward_s + read_s if profiles.device == "cpu" else max(forward_s, read_s)
    return MemberTime(
        member.name, estimate, steps * estimate.step_s, rank_images * seconds, member.epochs
    )
