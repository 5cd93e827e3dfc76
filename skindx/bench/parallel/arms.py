"""The forms that the bench compares: what is split, and how gradients are exchanged."""

from dataclasses import dataclass
from typing import Any

from skindx.bench.parallel.settings import Config


@dataclass(frozen=True)
class Arm:
    """One form of parallelism."""

    name: str
    exchange: dict[str, Any]
    split: bool = False
    """Wide layers are split (`engine.parallel.kind=owt`)."""
    exact: bool = True
    """The steps are those of one process, but for rounding."""


def arms_of(settings: Config) -> list[Arm]:
    """Return all forms."""
    fused = {"kind": "fused", "tune": False}
    gtopk = {"kind": "gtopk", "density": settings.density}
    return [
        Arm("dense", {"kind": "dense"}),
        Arm("fused", fused),
        Arm("bf16", {**fused, "wire": "bf16"}),
        Arm("gtopk", gtopk, exact=False),
        Arm("powersgd", {"kind": "powersgd", "rank": settings.rank}, exact=False),
        Arm("owt", fused, split=True),
        Arm("owt_gtopk", gtopk, split=True, exact=False),
    ]
