"""A plan's prices of the parallel forms, from a rank's own times and the measured links."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from skindx.core.cost.cluster import Cluster
from skindx.core.cost.profile import Profile, Profiles
from skindx.metrics.share_intervals import share_interval
from skindx.plan.choice import Choice
from skindx.plan.estimate import Estimate, Machine, estimate
from skindx.plan.strategies import strategy_of
from skindx_bench.harness.clock import Figure
from skindx_bench.parallel.arms import Arm


class Predictions:
    """Prices forms for one network on one cluster."""

    def __init__(
        self, profiles: Sequence[dict[str, Any]], cluster: dict[str, Any], batch: int
    ) -> None:
        """Take the answers of all ranks; `batch` are the images of all of them in a step."""
        found = sorted(
            (Profile.model_validate(raw) for raw in profiles),
            key=lambda profile: profile.at[-1].compute_s,
        )
        self._profile, self._batch = found[len(found) // 2], batch
        self._machine = Machine(
            Profiles(device="cpu", networks=(self._profile,)), Cluster.model_validate(cluster)
        )

    def of(self, name: str, options: Mapping[str, Any] | None = None) -> Estimate:
        """Return the price of a strategy among all ranks."""
        cluster = self._machine.cluster
        choice = Choice(
            strategy_of(name, options), cluster.nodes, cluster.ranks_per_node, self._batch
        )
        return estimate(self._profile, choice, self._machine)

    def degrees(self) -> dict[str, int]:
        """Return the layers that the search of placements splits, and over how many ranks."""
        flow = self.of("operators").schedule.flow
        assert flow is not None
        found = strategy_of("operators").found([flow])  # type: ignore[attr-defined]
        degrees: dict[str, int] = found.get("degrees", {})
        return degrees

    def arms(self, arms: Sequence[Arm]) -> dict[str, float]:
        """Return the seconds of a step of all forms that have a price."""
        return {arm.name: self.of(*arm.priced).step_s for arm in arms if arm.priced}


def agreement(
    predicted: Mapping[str, float], measured: Mapping[str, Sequence[float]]
) -> list[bool]:
    """Return, for each pair of forms with a clear order, whether the plan has that order.

    The order is clear where one form's fastest round is slower than the other's slowest.
    """
    right = []
    for one, other in combinations(predicted, 2):
        faster, slower = sorted((one, other), key=lambda name: min(measured[name]))
        if max(measured[faster]) < min(measured[slower]):
            right.append(predicted[faster] < predicted[slower])
    return right


def agreement_figure(right: Sequence[bool]) -> Figure:
    """Return the share of pairs in the plan's order, with a 95 % interval as of single pairs."""
    interval = share_interval(right, range(len(right)))
    return Figure(interval.value, "of the pairs", len(right), (interval.low, interval.high))
