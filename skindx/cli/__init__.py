"""The command line: one file a verb; each heavy import stands inside its verb."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from skindx import __version__
from skindx.cli import boxes, casebook, scan
from skindx.cli.audit import audit, dedup
from skindx.cli.boxes import review
from skindx.cli.build import build
from skindx.cli.diagnose import diagnose
from skindx.cli.doctor import bench, completion, demo, doctor, plan
from skindx.cli.evaluate import adapt, compare, evaluate, features, leak, recompute
from skindx.cli.export import bundle, export
from skindx.cli.failures import guard_terminal, one_sentence, print_deprecations
from skindx.cli.new import new
from skindx.cli.options import VerbGroup, lay_out, refuse_special_files
from skindx.cli.remove import publish, remove
from skindx.cli.serve import monitor, serve, user
from skindx.cli.train import train
from skindx.core.child_python import keep_folder_out
from skindx.core.machine import go_offline
from skindx.core.startup import collect_rarely, heed_interrupts

app = typer.Typer(
    name="skindx",
    cls=VerbGroup,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Build skin image datasets, train ensembles on them, and serve a diagnosis page."
        "\n\n"
        "The steps: skindx build SOURCE --out DATA, then skindx train DATA --out RUN, "
        "then skindx evaluate RUN/bundle DATA, then skindx serve RUN/bundle. "
        "skindx new FOLDER prepares them for a folder of your images."
        "\n\n"
        "To run all steps on synthetic images: skindx demo. "
        "Without a verb, skindx says where a run stands and what comes next."
    ),
)


def _version(wanted: bool) -> None:
    if wanted:
        from skindx.core.measurement import commit

        known = commit()
        print(f"skindx {__version__}" + (f" (commit {known})" if known else ""))
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        from skindx.start.standing import where_it_stands

        print("\n".join(where_it_stands(Path.cwd())))


JOBS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "First": {
        "new": new,
        "build": build,
        "train": train,
        "evaluate": evaluate,
        "diagnose": diagnose,
        "serve": serve,
    },
    "Build: images and labels": {
        "audit": audit,
        "review": review,
        "publish": publish,
        "remove": remove,
        "leak": leak,
        "boxes": boxes.app,
        "dedup": dedup,
    },
    "Train: bundles and their figures": {
        "compare": compare,
        "recompute": recompute,
        "adapt": adapt,
        "export": export,
        "plan": plan,
        "features": features,
        "bundle": bundle,
    },
    "Diagnose: photos and cases": {
        "monitor": monitor,
        "scan": scan.app,
        "casebook": casebook.app,
        "user": user,
    },
    "This machine": {"demo": demo, "doctor": doctor, "bench": bench, "completion": completion},
}
"""Panel of `skindx --help` -> its verbs and groups of verbs, the most used ones first."""

for panel, verbs in JOBS.items():
    for name, verb in verbs.items():
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(verb)
lay_out(app)
refuse_special_files(app)


def main() -> None:
    """Run the command line."""
    run_app(app, "skindx")


def run_app(commands: typer.Typer, package: str) -> None:
    """Run the commands of a package: offline, on a guarded terminal, errors in a sentence."""
    heed_interrupts()
    keep_folder_out(package)
    go_offline()
    collect_rarely()
    guard_terminal()
    print_deprecations()
    with one_sentence():
        commands()


if __name__ == "__main__":
    main()
