"""What a bench says of energy: joules with the label of their source, never a bare number."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Source = Literal["measured", "modelled", "unavailable"]
"""measured: a counter of the hardware; modelled: computed from utilisation; else no figure."""


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules of one run, or why there are none.

    `interval` holds the true value in 90 % of networks where the source is a model; a counter has
    none. `sensors` are the counters that were read, `why` says what is missing or assumed.
    """

    source: Source
    joules: float | None = None
    interval: tuple[float, float] | None = None
    sensors: tuple[str, ...] = ()
    why: str = ""

    def __post_init__(self) -> None:
        """Check that joules and label belong together: no figure without a source."""
        assert (self.joules is None) == (self.source == "unavailable"), self

    def as_dict(self) -> Mapping[str, Any]:
        """Return plain values for a JSON file."""
        return {
            "source": self.source,
            "joules": self.joules,
            "interval": None if self.interval is None else list(self.interval),
            "sensors": list(self.sensors),
            "why": self.why,
        }
