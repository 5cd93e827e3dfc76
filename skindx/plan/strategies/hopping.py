"""Members that hop between ranks: data stay where they are, and models move."""

from dataclasses import dataclass
from typing import Any, ClassVar

from skindx.core.cost.network import Network
from skindx.core.cost.pricing import Load, Strategy
from skindx.core.cost.step import Schedule


class Hopping(Strategy):
    """`engine.schedule: hop`: a member visits one partition of the data after the other.

    Each (member, partition) pair once an epoch; a member is on one rank at a time, and takes its
    weights and its optimizer with it (Cerebro: Kumar et al. 2021). Within a unit nothing is sent.
    """

    name: ClassVar[str] = "hop"

    def schedule(self, load: Load, network: Network) -> Schedule:
        """Send nothing in a step."""
        return Schedule()

    def fragment(self) -> dict[str, Any]:
        """Name the schedule."""
        return {"exchange": {"kind": "dense"}, "engine": {"zero": 0, "schedule": self.name}}


@dataclass(frozen=True)
class Hops:
    """An epoch of all members."""

    seconds: float
    """Until the last unit is done."""
    bound_s: float
    """No schedule is shorter: the open-shop bound."""
    sent_bytes: float


def hops(
    unit_s: list[list[float]], state_bytes: list[float], seconds_per_byte: float, latency_s: float
) -> Hops:
    """Return what an epoch takes: greedy lists, as the trainer schedules.

    `unit_s[m][p]` is what member m takes on partition p, which is one rank's; `state_bytes[m]` what
    it takes along (weights and optimizer). An idle rank takes the free member with the most work
    left; to hop takes as long as its state takes over the link, before the unit begins.
    """
    members, ranks = len(unit_s), len(unit_s[0])
    hop_s = [latency_s + seconds_per_byte * size for size in state_bytes]
    left = [set(range(ranks)) for _ in range(members)]
    left_s = [sum(own) for own in unit_s]
    free_member_s, free_rank_s = [0.0] * members, [0.0] * ranks
    at: list[int | None] = [None] * members
    for _ in range(members * ranks):
        # The pair that can begin first; of those the member with the most work left.
        _, _, member, rank = min(
            (
                max(free_member_s[member], free_rank_s[rank]),
                -left_s[member],
                member,
                rank,
            )
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
    by_rank = max(sum(own[rank] for own in unit_s) for rank in range(ranks))
    by_member = max(map(sum, unit_s))
    sent = sum((ranks - 1) * size for size in state_bytes)
    return Hops(max(free_rank_s), max(by_rank, by_member), sent)
