"""Dense: the engine's own reduction, one buffer after backward."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.cost.pricing import Load, Network, StepSchedule, after_backward
from skindx.core.cost.profile import Profile


class DenseSettings(ExchangeSettings):
    """DeepSpeed's own reduction of one buffer, after backward."""

    kind: Literal["dense"] = "dense"

    local_s_per_element: ClassVar[float] = 1.2e-9
    shrinks: ClassVar[bool] = True
    local_code: ClassVar[str] = "skindx.comm.fabric:flat_and_back"
    beside_parts: ClassVar[bool] = True

    def schedule(self, load: Load, network: Network, rule: str = "") -> StepSchedule:
        """Copy into one buffer, sum it, copy back."""
        if network.ranks == 1:
            return StepSchedule()
        price, local = network.price("all_reduce"), self.local(load)
        message = after_backward(
            load,
            load.size_bytes,
            price(load.size_bytes),
            before_s=local.base_s / 2,
            after_s=local.base_s / 2,
        )
        return StepSchedule(
            (message,), spread=price.spread, local_spread=local.spread, measured=price.measured
        )

    def memory_bytes(self, load: Load, network: Network) -> int:
        return load.size_bytes if network.ranks > 1 else 0

    def differs(self, nodes: int, per_node: int, networks: Sequence[tuple[Profile, int]]) -> bool:
        """Return True, as no kind is simpler."""
        return True
