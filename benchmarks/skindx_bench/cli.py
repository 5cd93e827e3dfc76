"""`skindx bench`: the verb that this distribution adds to the command line of skindx."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from skindx.cli.options import PlainGroup, Sets
from skindx.cli.train import NEEDS
from skindx.core.machine import require_extra
from skindx_bench.subjects import (
    ALIASES,
    ALL,
    BENCHES,
    COMPARE,
    GROUPS,
    compare_results,
    known,
    run_bench,
)

_ABOUT = {
    "data": "Images on their way into a dataset and a training",
    "train": "Trainings: accuracy, time to it, overhead",
    "cluster": "Several ranks on an emulated cluster; root on Linux",
    "serve": "Answers: runtimes, server, container, command line",
    "scan": "Photos of whole bodies, and their detector",
    "devices": "This machine's processor or accelerator",
    "honesty": "Whether figures, intervals and warnings say the truth",
}
_HELP = {"help_option_names": ["-h", "--help"]}


class Subjects(PlainGroup):
    """The subjects of a group; one with the group's own name is meant where none is named."""

    subjects = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the group's subject first, where options begin at once."""
        own = self.name in self.commands
        if own and (not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)):
            args = [str(self.name), *args]
        return super().parse_args(ctx, args)


class Groups(PlainGroup):
    """All groups; every subject is also a command of its own, by all names it ever had."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that `args` name. Raises UserError for one that does not exist."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            args = [known(args[0]), *args[1:]]
        return super().resolve_command(ctx, args)


def _measuring(name: str) -> Callable[..., None]:
    """Return the command of a benchmark."""

    def measure(  # noqa: PLR0917
        files: Annotated[
            list[Path] | None,
            typer.Argument(help="JSON files of two machines or more.", hidden=name != COMPARE),
        ] = None,
        json_file: Annotated[
            Path | None, typer.Option("--json", help="Also write the figures to this file.")
        ] = None,
        html: Annotated[
            Path | None,
            typer.Option("--html", help="Also write a page: all, devices, frameworks, compare."),
        ] = None,
        quick: Annotated[
            bool, typer.Option("--quick", help="For all: at most ten minutes on two cores.")
        ] = False,
        smallest: Annotated[
            bool,
            typer.Option("--smallest", help="Only check that it runs; its figures mean nothing."),
        ] = False,
        sets: Sets = None,
    ) -> None:
        if name == COMPARE:
            others = bool(json_file or quick or smallest or sets)
            compare_results(files or [], html, others=others)
            return
        run_bench(
            name,
            json_file,
            sets or [],
            smallest=smallest,
            quick=quick,
            html=html,
            files=files or [],
        )

    return measure


app = typer.Typer(
    cls=Groups,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
    help=(
        "Measure, and print a table with hardware, versions, n and spread.\n\n"
        "To list the keys of --set, give a wrong one: skindx bench data dedup --set help=1\n\n"
        "Example: skindx bench data dedup --json dedup.json"
    ),
)
of_groups: dict[str, typer.Typer] = {}
for group, subjects in GROUPS.items():
    of_group = typer.Typer(
        cls=Subjects,
        no_args_is_help=group not in subjects,
        context_settings=_HELP,
        help=f"{_ABOUT[group]} ({', '.join(subjects)}).\n\n"
        f"Each is also a command without its group: skindx bench {next(iter(subjects))}",
    )
    for name, subject in subjects.items():
        example = f"Example: skindx bench {group} {name} --json {name}.json"
        of_group.command(name, help=f"{subject.about}\n\n{example}")(_measuring(name))
    of_groups[group] = of_group
    app.add_typer(of_group, name=group)
app.command("all", help=f"{ALL.about}\n\nExample: skindx bench all --quick --html bench.html")(
    _measuring("all")
)
app.command(
    COMPARE,
    help="Lay JSON files of benchmarks side by side: which differences are real?\n\n"
    "Example: skindx bench compare desk.json server.json --html compare.html",
)(_measuring(COMPARE))


@of_groups["train"].command()
def keep(
    run: Annotated[Path, typer.Argument(help="Run whose finished members are kept.")],
    *,
    to: Annotated[Path, typer.Option("--to", help="Folder for them: TO/MEMBER is a run each.")],
    members: Annotated[
        list[str] | None, typer.Option("--member", help="Only this one; again for more.")
    ] = None,
) -> None:
    """Keep finished members small, in half precision, so that a training goes on elsewhere.

    Where they are, `reused` takes them; copied into RUN/members, they are finished there too.

    Example: skindx bench train keep runs/ham10000 --to models/ham10000/training
    """
    require_extra("train", *NEEDS, purpose="keeping trained members")
    from skindx_bench.train.kept_members import keep_members

    kept = keep_members(run, to, members or [])
    for folder in kept:
        typer.echo(f"kept {folder}")
    if not kept:
        typer.echo(f"{to} has all finished members of {run} already")


@app.command()
def network(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="YAML file to write.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Training settings; only `engine` is used."),
    ] = None,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="Neighbouring ranks that share a node; default: by host name."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="About so long; a slow network takes longer.")
    ] = 40,
    sets: Sets = None,
) -> None:
    """Measure the network between ranks for `skindx plan make`, by the trainer's collectives.

    Start it like a training: directly (`--set engine.ranks=4`, or engine.hostfile), by torchrun or
    by Slurm. You may edit the file: add price_per_node_hour, watts_per_node, and more nodes.

    Example: skindx bench network --out cluster.yaml --set engine.hostfile=hosts
    """
    require_extra("train", *NEEDS, purpose="measuring the network between ranks")
    from skindx_bench.cluster.network_probe import write_cluster

    write_cluster(out, config, sets or [], ranks_per_node, seconds)


for name in [*BENCHES, *ALIASES]:
    if name != "all" and name not in GROUPS:
        app.command(name, hidden=True, help=f"As in its group: {ALIASES.get(name, name)}.")(
            _measuring(ALIASES.get(name, name))
        )


def main() -> None:
    """Run the lab alone: `python -m skindx_bench`, also from a path where it is not installed."""
    from skindx.cli import run_app
    from skindx.cli.options import lay_out, refuse_special_files

    lay_out(app)
    refuse_special_files(app)
    run_app(app, "skindx_bench")
