"""Memory of one rank: from two measured batches, or from the layers of a trace."""

from dataclasses import dataclass

from skindx.planning.network import Network
from skindx.planning.profile import AtBatch, Profile
from skindx.planning.strategies.strategy import Load, Strategy

FARTHEST = 4.0
"""Beyond so many times the largest batch that was measured, memory is not believed."""


@dataclass(frozen=True)
class Memory:
    """Of one rank."""

    peak_bytes: float
    spread: float
    """Standard deviation over the mean."""
    measured: bool
    extrapolated: float
    """How many times the largest batch that was measured."""


def memory_of(
    strategy: Strategy,
    load: Load,
    network: Network,
    batch: int,
    base_bytes: int,
    *,
    checkpointing: bool,
    more_bytes: float = 0.0,
) -> Memory:
    """Return the memory of a rank whose pieces have `batch` images.

    `more_bytes` is what something beside the strategy needs.
    """
    profile = load.profile
    points = sorted((point for point in profile.at if point.peak_bytes), key=_batch)
    extra = more_bytes + strategy.memory_bytes(load, network, batch)
    if not points:
        computed = base_bytes + 3 * profile.parameter_bytes + _features(profile, batch)
        return Memory(computed + extra, 0.3, measured=False, extrapolated=batch / profile.batch)
    if checkpointing and profile.checkpointing:
        points = [*(point for point in points[:1]), profile.checkpointing]
        points.sort(key=_batch)
    if len(points) == 1:
        slope = _features(profile, 1)
        peak = points[0].peak_bytes + slope * (batch - points[0].batch)
        spread = 0.2
    else:
        first, last = points[0], points[-1]
        slope = max(0.0, (last.peak_bytes - first.peak_bytes) / max(1, last.batch - first.batch))
        peak = last.peak_bytes + slope * (batch - last.batch)
        spread = 0.05
    far = max(batch / points[-1].batch, 1.0)
    return Memory(max(0.0, peak + extra), spread * far**0.5, measured=True, extrapolated=far)


def largest_batch(
    strategy: Strategy, load: Load, network: Network, base_bytes: int, limit_bytes: float
) -> int:
    """Return the most images of one rank that fit; 0: not even one."""

    def fits(batch: int) -> bool:
        found = memory_of(strategy, load, network, batch, base_bytes, checkpointing=False)
        return found.peak_bytes <= limit_bytes

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high) and high < 1 << 20:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _batch(point: AtBatch) -> int:
    return point.batch


def _features(profile: Profile, batch: int) -> float:
    """Activations that backward needs, and their gradients while it goes through them."""
    activations = [layer.activation_bytes for layer in profile.layers]
    return (sum(activations) + max(activations, default=0)) * batch / profile.batch
