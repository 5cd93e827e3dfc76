"""Members side by side: each rank trains a whole member, and reads all images."""

from typing import Any, ClassVar

from skindx.core.cost.network import Network
from skindx.core.cost.pricing import Load, Strategy
from skindx.core.cost.step import Schedule


class Members(Strategy):
    """`engine.schedule: members`: nothing is exchanged."""

    name: ClassVar[str] = "members"

    def schedule(self, load: Load, network: Network) -> Schedule:
        """Send nothing."""
        return Schedule()

    def fragment(self) -> dict[str, Any]:
        """Name the schedule."""
        return {"exchange": {"kind": "dense"}, "engine": {"zero": 0, "schedule": self.name}}
