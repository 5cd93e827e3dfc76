"""Gradient exchanges on an emulated cluster: what each takes of network, processor and bytes."""

import math

from skindx.core.atomic_files import write_text
from skindx_bench.exchange.settings import Config
from skindx_bench.harness.netlab import require
from skindx_bench.harness.result import Result
from skindx_bench.harness.stopping import kept_when_stopped

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


def run(settings: Config) -> Result:
    """Measure, and write OUT/exchange.md, which to take when on top, and OUT/exchange.png.

    After Ctrl-C the whole parts so far are returned, marked as partial.
    """
    require()
    from rich.console import Console

    from skindx_bench.exchange.choice import choice
    from skindx_bench.exchange.load import load_of
    from skindx_bench.exchange.parts import Found, measure
    from skindx_bench.exchange.plot import plot
    from skindx_bench.exchange.rows import markdown, tables

    load = load_of(settings.model)
    settings.out.mkdir(parents=True, exist_ok=True)  # better refused now than after the rounds
    found = Found()
    with kept_when_stopped("exchanges were timed") as stopped:
        measure(settings, load, found)
    if found.rows:
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
        partial=stopped.partial,
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
