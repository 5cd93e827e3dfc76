"""`skindx plan`: measure a minute, know the weeks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skindx.cli.options import Sets

if TYPE_CHECKING:
    from skindx.planning.plan import Plan

plan = typer.Typer(
    name="plan",
    no_args_is_help=True,
    help="How long a training will take, on what, and what holds it back; before it begins.",
)

Config = Annotated[
    Path | None, typer.Argument(help="Training settings (YAML), as `skindx train` takes them.")
]
Data = Annotated[Path | None, typer.Argument(help="A folder that `skindx build` wrote.")]


@plan.command()
def make(
    config: Config = None,
    dataset: Data = None,
    *,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="What `skindx plan measure` wrote, a graph of PipeDream or a log of B-Caffe; "
            "default: measure CONFIG now."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="What `skindx plan network` wrote, or a preset: 10gbe:8x4+nvlink is 8 nodes of 4 "
            "ranks; default: this machine alone."
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Use so many nodes; default: all of the cluster.")
    ] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option(min=1, help="Use so many ranks a node; default: all.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, help="Images a rank in a step of the trace, where no CONFIG is given."
        ),
    ] = None,
    one_rank_s: Annotated[
        float | None,
        typer.Option(help="Measured seconds of one step on one rank; the trace is scaled to it."),
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="The cheapest choice that is done in so many hours.")
    ] = None,
    money: Annotated[
        float | None, typer.Option(help="The fastest choice that costs at most so much.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="Price this one alone: dense, fused (fused+bf16), per-tensor, one-buffer, "
            "hierarchical, multicolor, topk, gtopk, powersgd, zero-1, zero-2, zero-3, hop."
        ),
    ] = None,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Also choose exchanges that change the gradient.")
    ] = False,
    extrapolate: Annotated[
        bool,
        typer.Option("--extrapolate", help="Give figures beyond what was measured, with the band."),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every candidate to this file.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots.")] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Write one step as a Chrome trace, for ui.perfetto.dev.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the plan for `skindx train --plan`.")
    ] = None,
    sets: Sets = None,
) -> None:
    """Say how long a training takes, on how many ranks, with which exchange, and what it costs.

    Every figure has a 90 % interval. What lies outside what was measured is refused, unless
    --extrapolate is given. Without CONFIG and DATA a trace and a cluster alone are priced.

    Example: skindx plan make configs/skin10.yaml DATA --trace trace.json --cluster cluster.yaml

    A trace alone: skindx plan make --trace resnet50.graph.txt --cluster 10gbe:8 --json plan.json
    """
    from skindx.cli.options import console
    from skindx.planning.report.chrome import write_chrome
    from skindx.planning.report.page import write_page
    from skindx.planning.report.plain import plan_values
    from skindx.planning.report.text import told
    from skindx.files import write_json
    from skindx.planning.search import Limits

    limits = Limits(hours, money, lossy=lossy, strategy=strategy, extrapolate=extrapolate)
    if config or dataset:
        made = _of_config(config, dataset, trace, cluster, nodes, ranks_per_node, one_rank_s, limits, sets)
    else:
        made = _of_trace(trace, cluster, nodes, ranks_per_node, batch, one_rank_s, limits)
    if json_file:
        write_json(json_file, plan_values(made))
    if html:
        write_page(html, made)
    if timeline:
        write_chrome(timeline, made.chosen.first.step)
    if write:
        from skindx.planning.fragment import write_fragment

        write_fragment(write, made)
    console().print(told(made))


def _of_trace(
    trace: Path | None,
    cluster: str | None,
    nodes: int | None,
    ranks_per_node: int | None,
    batch: int | None,
    one_rank_s: float | None,
    limits: "object",
) -> "Plan":
    from skindx.errors import UserError
    from skindx.planning.alone import plan_of_trace
    from skindx.planning.search import Limits

    assert isinstance(limits, Limits)
    if trace is None or cluster is None:
        raise UserError(
            "give CONFIG and DATA, or --trace and --cluster; `skindx plan measure` writes the "
            "first, `skindx plan network` the second."
        )
    return plan_of_trace(trace, cluster, nodes, ranks_per_node, batch, one_rank_s, limits)


def _of_config(
    config: Path | None,
    dataset: Path | None,
    trace: Path | None,
    cluster: str | None,
    nodes: int | None,
    ranks_per_node: int | None,
    one_rank_s: float | None,
    limits: "object",
    sets: list[str] | None,
) -> "Plan":
    from skindx.errors import UserError
    from skindx.planning.search import Limits
    from skindx.training.config.run import TrainSettings
    from skindx.training.profiling.planning import plan_of_config

    assert isinstance(limits, Limits)
    if config is None or dataset is None:
        raise UserError("a plan of a training needs both, CONFIG and DATA.")
    settings = TrainSettings.load(config, sets or [])
    return plan_of_config(
        settings, dataset, trace, cluster, nodes, ranks_per_node, one_rank_s, limits
    )


@plan.command()
def measure(
    config: Annotated[Path, typer.Argument(help="Training settings (YAML).")],
    dataset: Annotated[Path, typer.Argument(help="A folder that `skindx build` wrote.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON file to write.")],
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks that this node will have; default: engine.ranks."),
    ] = None,
    sets: Sets = None,
) -> None:
    """Time each network of CONFIG on this node: layers, update, images, memory; about a minute.

    Run it on a node of the kind that will train. All ranks of the node measure at once, since they
    share its memory. The file is plain; --trace of `skindx plan make` takes it.

    Example: skindx plan measure configs/skin10.yaml DATA --out trace.json
    """
    from skindx.training.config.run import TrainSettings
    from skindx.training.profiling.measure import measure as measure_networks

    profiles = measure_networks(TrainSettings.load(config, sets or []), dataset, ranks=ranks)
    profiles.write(out)
    for network in profiles.networks:
        at = network.at[-1]
        print(
            f"{network.name} at {network.size} px: {at.batch} images in "
            f"{1000 * (at.compute_s + network.update_s):.0f} ms, reading "
            f"{1000 * network.read_s:.1f} ms an image and core, {at.peak_bytes / 1e9:.2f} GB"
        )
    print(f"measured on {profiles.host}, {profiles.ranks} ranks at once: {out}")
