"""PowerSGD: each matrix of the gradient as a product of two thin ones, with error feedback."""

import math
from typing import ClassVar, Literal, Self

from pydantic import Field

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.cost.pricing import Load, Message, Network, StepSchedule
from skindx.core.cost.profile import Profile

PAPER = (
    "PowerSGD | Vogels et al., PowerSGD: Practical Low-Rank Gradient Compression for "
    "Distributed Optimization, arXiv 1905.13727, 2019 | tests/comm/test_exchanges.py | "
    "docs/measured/exchange.json"
)


class PowerSGDSettings(ExchangeSettings):
    """Sends each matrix as a product of two thin ones, with error feedback.

    PowerSGD (Vogels et al. 2019, arXiv 1905.13727), the strong peer of the sparse exchanges.
    """

    kind: Literal["powersgd"] = "powersgd"
    rank: int = Field(4, ge=1, le=4096)
    """Columns of the thin matrices."""

    code: ClassVar[str] = "skindx.comm.powersgd_exchange:PowerSGD"
    local_s_per_element: ClassVar[float] = 6e-9

    @property
    def lossy(self) -> bool:
        """Return True: what the projection loses is sent in a later step."""
        return True

    @classmethod
    def timed(cls) -> Self:
        return cls()

    def schedule(self, load: Load, network: Network, rule: str = "") -> StepSchedule:
        """Send the left ones with what is too small to gain, then the right ones."""
        local = self.local(load)
        if network.ranks == 1:
            return StepSchedule(finish_s=local.base_s)
        price, third = network.price("all_reduce"), local.base_s / 3
        left, right = _thin_bytes(load.profile, self.rank)
        messages = (
            Message(load.count, left, price(left), before_s=third, after_s=third),
            Message(load.count, right, price(right), after_s=third),
        )
        return StepSchedule(
            messages,
            serial=True,
            spread=price.spread,
            local_spread=local.spread,
            measured=price.measured,
        )

    def memory_bytes(self, load: Load, network: Network) -> int:
        """Count the residual, and the sum that becomes the next one."""
        return 2 * load.size_bytes

    def saved_bytes(self, load: Load, network: Network) -> int:
        """Count the residual, and the right matrices."""
        return load.size_bytes + _thin_bytes(load.profile, self.rank)[1]


def _thin_bytes(profile: Profile, rank: int) -> tuple[int, int]:
    """Return the bytes of the left matrices with all that is sent whole, and of the right ones.

    A layer whose shapes are not known counts as a square matrix.
    """
    left = right = 0
    for layer in profile.layers:
        side = math.isqrt(layer.parameter_bytes // 4)
        for shape in layer.shapes or ((side, side),):
            elements = math.prod(shape)
            rows, columns = shape[0], elements // max(1, shape[0])
            thin = min(rank, rows, columns)
            if len(shape) > 1 and thin * (rows + columns) < elements:
                left, right = left + 4 * rows * thin, right + 4 * columns * thin
            else:
                left += 4 * elements
    return left, right
