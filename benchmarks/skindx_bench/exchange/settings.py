"""Settings of the exchange bench."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from skindx.core.settings_base import Settings
from skindx_bench.exchange.fusion import Pair


class Config(Settings):
    """Each part can be left out; with a small model all of it takes seconds."""

    parts: tuple[Literal["full", "alone", "hierarchical", "fusion"], ...] = (
        "full",
        "alone",
        "hierarchical",
        "fusion",
    )
    model: str = "resnet50"
    """A timm model, whose parameters' shapes are taken."""
    density: float = Field(0.001, gt=0, le=1)
    rounds: int = Field(7, ge=2)
    ranks: int = Field(4, ge=2, le=32)
    """Of the full exchange and of fusion, one in each namespace."""
    rate_mbit: float = Field(1000, gt=0)
    """Of the full and of the hierarchical exchange."""
    alone_ranks: tuple[Annotated[int, Field(ge=2, le=32)], ...] = Field((4, 8), min_length=1)
    """Setting in which top-k and gTop-k are compared by communication alone."""
    alone_mbit: float = Field(100, gt=0)
    """Slow: here a burst lets messages of some kB beat a fast wire."""
    pairs: tuple[Pair, ...] = (
        Pair(rate_mbit=1000, backward_s=0.5),
        Pair(rate_mbit=1000, backward_s=1.5),
        Pair(rate_mbit=500, backward_s=2.0),
    )
    """Networks and backward passes that a fused plan is made for."""
    trials: int = Field(5, ge=2)
    """Rounds in which a fused plan is chosen, as many as training takes."""
    out: Path = Path("runs/exchange")
