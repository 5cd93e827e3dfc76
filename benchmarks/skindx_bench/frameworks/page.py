"""Tables and notes of the bench of frameworks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import write_text
from skindx_bench.frameworks.model import ARMS, BUCKET_MB
from skindx_bench.frameworks.rank import COMPILED, STAGES
from skindx_bench.frameworks.turns import Config, FrameworkTurns, equal
from skindx_bench.harness.result import Result, markdown_table

Rows = list[list[str]]

STAGES_APART = 0.03
"""Of the iteration, how far the sum of its stages may be away."""

STAGE_HEADINGS = ("network, framework", "iteration, ms", *STAGES, COMPILED, "sum")
MORE_HEADINGS = (
    "network, framework",
    "weak speed-up",
    "strong speed-up",
    "first step, s",
    "memory, MB",
    "losses differ by",
    "model's error",
)


def tables(parts: Mapping[str, Mapping[str, Any]]) -> tuple[Rows, Rows]:
    """Return the rows under `STAGE_HEADINGS`, in ms, and those under `MORE_HEADINGS`."""
    stages, more = [], []
    for name, part in parts.items():
        if "stages" not in part:
            continue
        found = part["stages"]
        stages.append(
            [
                name,
                f"{1000 * part['seconds']:.1f}",
                *(f"{1000 * found[key]:.1f}" if key in found else "" for key in STAGES),
                f"{1000 * found[COMPILED]:.1f}" if COMPILED in found else "",
                f"{100 * part['stages_over_step']:.1f} %",
            ]
        )
        apart, model = part["loss_difference"], part["model"]
        more.append(
            [
                name,
                *(_speed(part["speed_ups"][scaling]) for scaling in ("weak", "strong")),
                "" if part["first_step_s"] is None else f"{part['first_step_s']:.1f}",
                "" if part["memory_mb"] is None else f"{part['memory_mb']:.0f}",
                "" if apart is None else f"{apart:.0e}",
                "" if model is None else f"{100 * model['error']:+.0f} %",
            ]
        )
    return stages, more


def _speed(speed_ups: Mapping[str, float]) -> str:
    return ", ".join(f"{ranks}: {value:.2f}" for ranks, value in speed_ups.items() if ranks != "1")


def markdown(result: Result) -> str:
    """Return all tables as Markdown."""
    stages, more = tables(result.parts)
    return "\n".join((markdown_table(STAGE_HEADINGS, stages), markdown_table(MORE_HEADINGS, more)))


def write_page(file: Path, result: Result) -> None:
    """Write one HTML file."""
    from skindx_bench.harness.compare import pages

    stages, more = tables(result.parts)
    page = (
        pages()
        .get_template("frameworks.html.jinja")
        .render(result=result, tables=[(STAGE_HEADINGS, stages), (MORE_HEADINGS, more)])
    )
    write_text(file, page)


def notes(
    settings: Config,
    found: FrameworkTurns,
    load: float | None,
    marks: Sequence[str],
    parts: int = 1,
) -> tuple[str, ...]:
    """Return sentences on what was measured, and on what was not."""
    s = settings
    weights = ", ".join(f"{name} {found.parameters(name):,}" for name in found.layers)
    unequal = sorted(
        {
            f"{case.network}, {case.arm}"
            for case in found.turns
            if ARMS[case.arm].lossless and case.ranks == s.ranks and not equal(s, found, case)
        }
    )
    return (
        f"{', '.join(s.networks)} ({weights} weights), {s.side} px, {s.classes} classes, fp32, "
        f"batch {s.batch} a rank, {s.ranks} ranks of one thread, each in a network namespace whose "
        f"link carries {s.rate_mbit:g} Mbit/s both ways (tc tbf). The same first weights, images "
        "from a seed, mean cross entropy and SGD with momentum; no dropout, no clipping, norms by "
        "the statistics of a rank's own batch without running averages, GoogLeNet with norms and "
        "without side outputs, AlexNet's last map as it comes. Versions: "
        f"{'; '.join(f'{name}: {text}' for name, text in found.versions.items())}.",
        f"Seconds are those of the slowest rank, the mean of {s.steps} steps after one that is not "
        f"timed; frameworks take turns, {s.rounds} rounds, and set the network up again in each. "
        "plain is one rank that takes the batches of all ranks one after the other. Read: from a "
        "memory-mapped file; copy: into the framework's tensors, normalised; backward ends with "
        "the last gradient that a rank has made, and communicate is what it waits for after that: "
        "of ddp, fabric, skindx fused and factored what backward does not hide. fsdp2's gathers "
        "lie in its forward and backward. jax and tensorflow compile forward, backward, "
        "communication and update into one. sum: all stages over the iteration, which has a clock "
        "of its own, of the rank where they are furthest apart, the median of the turns.",
        *_preempted(found),
        "skindx_over_best: the fastest other framework whose losses are equal / our fastest of "
        "dense, fused and factored, round by round; the least of all networks. Losses are equal "
        f"where all of {s.loss_steps} steps differ from plain's by less than {s.tolerance:g} of "
        "the loss. gtopk is lossy and stands apart. First step: from the start of processes of its "
        "own, imports and compilation included, on the first network; memory: largest resident "
        "size of a rank until then, libraries included. In the timed rounds the arms of one "
        "environment share processes.",
        "Model (arXiv 1805.03812): the stages of one rank alone, times ranks over cores, and "
        "rounds of messages whose latency and time a byte are fitted to all networks but the one "
        "that is predicted; no byte is faster than the link. ddp, fabric and fused send buckets of "
        f"{BUCKET_MB} MB, factored does so with what is left beside the factors of wide linear "
        "layers, jax and tensorflow each tensor by itself, fsdp2 shards; where gradients are sent "
        "during backward, what backward hides does not count, but for the last bucket. All ranks "
        "share this machine's cores: speed-ups are those of the cores' number at most.",
        *(
            (f"Measured in {parts} parts, one after the other; arms took turns within a part.",)
            if parts > 1
            else ()
        ),
        *(f"Losses not equal, so not in skindx_over_best: {name}." for name in unequal),
        *(f"Left out: {name} ({why})." for name, why in found.missing.items()),
        *((f"Load before the run: {load:.2f} runnable processes a core.",) if load else ()),
        *(f"Noisy run: {mark}." for mark in marks),
    )


def _preempted(found: FrameworkTurns) -> tuple[str, ...]:
    """Say in how many turns the stages do not sum up, by how much at most, if there are any."""
    apart = [abs(turn.stages_share - 1) for turns in found.turns.values() for turn in turns]
    many = sum(share > STAGES_APART for share in apart)
    if not many:
        return ()
    return (
        f"In {many} of {len(apart)} turns the stages of some rank are more than "
        f"{100 * STAGES_APART:g} % away from its iteration, {100 * max(apart):.0f} % at most: it "
        "waited for a core between two stages.",
    )
