"""PowerSGD: two thin matrices for each weight matrix, summed one after the other."""

import math
from typing import Any, ClassVar

from skindx.core.cost.network import Network
from skindx.core.cost.step import Message, Schedule
from skindx.plan.strategies.strategy import Load, Strategy


class PowerSGD(Strategy):
    """`exchange.kind: powersgd` (Vogels et al. 2019, arXiv 1905.13727)."""

    name = "powersgd"
    lossy: ClassVar[bool] = True

    def schedule(self, load: Load, network: Network) -> Schedule:
        """Send the left ones with what is too small to gain, then the right ones."""
        local = load.local(self.name)
        if network.ranks == 1:
            return Schedule(finish_s=local.base_s)
        price = network.price("all_reduce")
        left, right = thin_bytes(load, int(self.options.get("rank", 4)))
        third = local.base_s / 3
        messages = (
            Message(load.count, left, price(left), before_s=third, after_s=third),
            Message(load.count, right, price(right), after_s=third),
        )
        return Schedule(
            messages,
            serial=True,
            spread=price.spread,
            local_spread=local.spread,
            measured=price.measured,
        )

    def fragment(self) -> dict[str, Any]:
        """Name the kind."""
        return {"exchange": {"kind": self.name, **self.options}, "engine": {"zero": 0}}

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Count the residual, and the sum that becomes the next one."""
        return 2 * load.size_bytes


def thin_bytes(load: Load, rank: int) -> tuple[int, int]:
    """Return the bytes of the left matrices with all that is sent whole, and of the right ones.

    A layer whose shapes are not known counts as a square matrix.
    """
    left = right = 0
    for layer in load.profile.layers:
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
