"""Gradient exchanges on an emulated cluster: what each takes of network, processor and bytes."""

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from skindx.bench.exchange.fusion import Pair
from skindx.bench.harness.netlab import require
from skindx.bench.harness.result import Result
from skindx.config import Settings
from skindx.files import write_text

_WIDTH = 150
"""Characters of a line that holds the table."""

SMALLEST = (
    "model=test_resnet",
    "ranks=2",
    "alone_ranks=[2]",
    "rounds=2",
    "trials=2",
    "rate_mbit=1000",
    "pairs=[{rate_mbit: 1000, backward_s: 0.01}]",
)


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
    """Where top-k and gTop-k are compared by their communication alone."""
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


def run(settings: Config) -> Result:
    """Measure, and write OUT/exchange.md, which to take when on top, and OUT/exchange.png."""
    require()
    from rich.console import Console

    from skindx.bench.exchange.choice import choice
    from skindx.bench.exchange.load import load_of
    from skindx.bench.exchange.parts import measure
    from skindx.bench.exchange.plot import plot
    from skindx.bench.exchange.rows import markdown, tables

    load = load_of(settings.model)
    settings.out.mkdir(parents=True, exist_ok=True)  # better refused now than after the rounds
    found = measure(settings, load)
    write_text(settings.out / "exchange.md", f"{choice(found.rows)}\n{markdown(found.rows)}")
    plot(settings.out / "exchange.png", found.rows)
    console = Console()
    console.width = max(console.width, _WIDTH)
    console.print(*tables(found.rows), sep="\n")
    return Result(
        "exchange",
        found.figures,
        notes=(*_notes(settings, load.elements), *found.notes),
        models={f"{row.part}: {row.name}": row.to_dict() for row in found.rows},
    )


def _notes(settings: Config, elements: int) -> tuple[str, ...]:
    k = math.ceil(settings.density * elements)
    return (
        f"{settings.model}'s {elements:,} gradients (fp32, synthetic: cubes of normal numbers), "
        f"density {settings.density:g} ({k:,} elements of 8 bytes); one rank a network namespace, "
        "gloo over TCP, each link limited both ways by tc tbf (burst about 1 ms of the rate). "
        "Times are those of the slowest rank after a barrier, in ms: median [25 %, 75 %] of "
        "interleaved rounds.",
        "Total: the whole exchange, selection and error feedback included. Local: the same work of "
        "all ranks at once, with what came over the wires played back from memory. Network: the "
        "difference, round by round. local_ms: selection and the merges of 4 ranks, alone on one "
        "core. select_over_memory_limit: an addition in place by torch over the same memory / the "
        "pass that adds the residual and finds the largest elements. Wire floor: counted bytes / "
        "rate. On a link: by the interfaces' own counters, "
        "headers and acknowledgements included; a rank's own count also has what stays inside its "
        "node.",
        "All ranks share this machine's cores: local times are longer than on a core of their own, "
        "at 8 ranks and more the times of small messages are the processor's rather than the "
        "network's, and 10 Gbit/s is out of reach of two cores. Links have no latency of their own "
        "(no netem).",
    )
