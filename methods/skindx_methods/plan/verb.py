"""`skindx plan`: how long a training will take, and what it costs."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperOption

from skindx.cli.options import PlainCommand, Sets
from skindx.cli.train import NEEDS
from skindx.core.machine import require_extra

plan = typer.Typer(
    name="plan",
    no_args_is_help=True,
    add_completion=False,
    help="Estimate time, cost and bottleneck of a training before it starts.",
)


class _StrategiesNamed(PlainCommand):
    """A command whose help ends the text of `--strategy` with all names, known when it is read."""

    def complete(self) -> None:
        """Name the strategies."""
        from skindx_methods.plan.strategy_kinds import strategy_names

        for option in self.params:
            if option.name == "strategy" and isinstance(option, TyperOption):
                lead, colon, _ = str(option.help).rpartition(": ")
                option.help = f"{lead}{colon}{', '.join(strategy_names())}."

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        self.complete()
        super().format_help(ctx, formatter)


Config = Annotated[Path | None, typer.Argument(help="Training settings (YAML) of `skindx train`.")]
Data = Annotated[Path | None, typer.Argument(help="A folder that `skindx build` wrote.")]


@plan.command(cls=_StrategiesNamed)
def make(
    config: Config = None,
    dataset: Data = None,
    *,
    trace: Annotated[
        Path | None,
        typer.Option(help="File that `skindx plan measure` wrote; default: measure CONFIG now."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="File of `skindx bench network`, or a preset: 10gbe:8x4+nvlink."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes to use; default: all.")
    ] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option(min=1, help="Number of ranks to use on each node; default: all.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, max=10**6, help="Images of a rank in a step of the trace, without CONFIG."
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(help="Find the cheapest choice that finishes within so many hours."),
    ] = None,
    money: Annotated[
        float | None, typer.Option(help="Find the fastest choice that costs at most so much.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(help="Consider only this one; NAME+bf16 sends gradients in 16 bits: "),
    ] = None,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Allow exchanges that change the gradient.")
    ] = False,
    extrapolate: Annotated[
        bool,
        typer.Option("--extrapolate", help="Go beyond what was measured, with wider intervals."),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every candidate to this file.")
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Write one step as a Chrome trace, for ui.perfetto.dev.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the plan for `skindx train --plan`.")
    ] = None,
    sets: Sets = None,
) -> None:
    """Estimate how long a training takes, with how many ranks and which exchange, and its cost.

    Every figure has a 90 % interval. Figures far outside what was measured need --extrapolate.
    Without CONFIG and DATA, the plan is for the trace alone.

    Example: skindx plan make configs/skin10.yaml DATA --trace trace.json --cluster cluster.yaml

    A trace alone: skindx plan make --trace trace.json --cluster 10gbe:8 --json plan.json
    """
    from skindx.cli.options import console
    from skindx.core.atomic_files import write_json
    from skindx.core.errors import UserError
    from skindx_methods.plan.plan import PlanRequest, plan_of_trace
    from skindx_methods.plan.plan_text import plan_values, render
    from skindx_methods.plan.search import PlanLimits
    from skindx_methods.plan.timeline import write_chrome

    limits = PlanLimits(hours, money, lossy=lossy, strategy=strategy, extrapolate=extrapolate)
    request = PlanRequest(limits, trace, cluster, nodes, ranks_per_node, batch)
    if config is None and dataset is None:
        made = plan_of_trace(request)
    elif config is None or dataset is None:
        raise UserError(
            "the plan of a training needs both CONFIG and DATA; run `skindx plan make CONFIG DATA`."
        )
    else:
        from skindx.training.config.run import TrainSettings
        from skindx_methods.plan.training_plan import plan_of_config

        made = plan_of_config(TrainSettings.load(config, sets or []), dataset, request)
    if write:
        from skindx_methods.plan.saved_plan import write_fragment

        write_fragment(write, made)
    if json_file:
        write_json(json_file, plan_values(made))
    if timeline:
        write_chrome(timeline, made.chosen.first.step)
    console().print(render(made))


@plan.command()
def measure(
    config: Annotated[Path, typer.Argument(help="Training settings (YAML).")],
    dataset: Annotated[Path, typer.Argument(help="A folder that `skindx build` wrote.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON file to write.")],
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Ranks on this node; default: engine.ranks.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="For the timed steps; starting and reading come on top.")
    ] = 20,
    sets: Sets = None,
) -> None:
    """Measure each network of CONFIG on this node: layers, update, reading of images, memory.

    It takes about a minute. Run it on a node of the kind that will train. All ranks of the node
    measure at the same time, because they share its memory. `skindx plan make --trace` reads the
    file.

    Example: skindx plan measure configs/skin10.yaml DATA --out trace.json
    """
    require_extra("train", *NEEDS, purpose="measuring networks")
    from skindx.training.config.run import TrainSettings
    from skindx_methods.plan.measure import measure as measure_networks

    profiles = measure_networks(
        TrainSettings.load(config, sets or []), dataset, ranks=ranks, seconds=seconds
    )
    profiles.write(out)
    for network in profiles.networks:
        at, given = network.at[-1], f" with {network.variant}" if network.variant else ""
        print(
            f"{network.name} at {network.size} px{given}: {at.batch} images in "
            f"{1000 * (at.compute_s + network.update_s):.0f} ms, reading "
            f"{1000 * network.read_s:.1f} ms an image and core, {at.peak_bytes / 1e9:.2f} GB"
        )
    print(f"measured on {profiles.host}, {profiles.ranks} ranks at once: {out}")


@plan.command()
def check(
    run: Annotated[Path, typer.Argument(help="A run that followed a plan.")],
    dataset: Annotated[Path, typer.Argument(help="The dataset that the run was trained on.")],
    *,
    learn: Annotated[
        Path | None, typer.Option(help="Cluster file to correct by this run, for later plans.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the comparison to this file.")
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Lay the steps beside this timeline of `plan make`.")
    ] = None,
) -> None:
    """Compare the prediction for RUN with what happened, part by part.

    With --learn, the cluster file gets a correction, which later plans use and name.

    Example: skindx plan check runs/mine DATA --learn cluster.yaml
    """
    from rich.table import Table

    from skindx.cli.options import console
    from skindx.core.atomic_files import write_json
    from skindx.core.text import seconds, size
    from skindx_methods.plan.cluster import Cluster
    from skindx_methods.plan.saved_plan import compare, learnt
    from skindx_methods.plan.timeline import lay_beside
    from skindx_methods.plan.training_plan import happened, read_kept, recorded_steps

    pairs = compare(read_kept(run), happened(run, dataset))
    if timeline:
        lay_beside(timeline, recorded_steps(run))
    before = Cluster.read(learn) if learn else None
    table = Table("member", "part", "predicted", "happened", "error", title="Plan and run")
    for pair in pairs:
        for part, (planned, took) in pair.by_part().items():
            error = f"{took / planned - 1:+.1%}" if planned > 0 else ""
            table.add_row(pair.predicted.name, part, seconds(planned), seconds(took), error)
        planned, took = pair.predicted.memory_bytes, pair.happened.memory_bytes
        error = f"{took / planned - 1:+.1%}" if planned else ""
        table.add_row(pair.predicted.name, "memory", size(planned), size(took), error)
    console().print(table)
    for pair in pairs:
        inside = "inside" if pair.within else "outside"
        print(f"{pair.predicted.name}: a step is {inside} its 90 % interval")
    if json_file:
        write_json(
            json_file,
            {
                pair.predicted.name: {
                    "error": pair.error,
                    "within": pair.within,
                    "parts": {
                        part: {"predicted_s": planned, "happened_s": took}
                        for part, (planned, took) in pair.by_part().items()
                    },
                }
                for pair in pairs
            },
        )
    if learn and before:
        cluster = learnt(before, pairs)
        cluster.write(learn)
        for part, known in cluster.corrections.items():
            print(f"{learn}: {part} takes {known.factor:.3f} times as long ({known.runs} runs)")
