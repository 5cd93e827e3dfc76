"""The command line: one file a verb; each heavy import stands inside its verb."""

from typing import Annotated

import typer

from skindx import __version__
from skindx.cli import boxes, bundle, casebook, scan
from skindx.cli.added_verbs import VerbGroup
from skindx.cli.audit import audit
from skindx.cli.bench import bench
from skindx.cli.build import build
from skindx.cli.compare import compare, leak
from skindx.cli.dedup import dedup
from skindx.cli.demo import demo
from skindx.cli.diagnose import diagnose
from skindx.cli.doctor import doctor
from skindx.cli.evaluate import adapt, evaluate, features, recompute
from skindx.cli.export import export
from skindx.cli.failures import guard_terminal, one_sentence, print_deprecations
from skindx.cli.gallery import gallery
from skindx.cli.options import lay_out
from skindx.cli.plan import plan
from skindx.cli.publish import publish
from skindx.cli.remove import remove
from skindx.cli.review import annotate, review
from skindx.cli.screen import screen
from skindx.cli.serve import monitor, serve, user
from skindx.cli.special_files import refuse_special_files
from skindx.cli.train import train
from skindx.core.machine import go_offline
from skindx.core.startup import collect_rarely, heed_interrupts

app = typer.Typer(
    name="skindx",
    cls=VerbGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Build skin image datasets, train ensembles on them, and serve a diagnosis page."
        "\n\n"
        "The steps: skindx build SOURCE --out DATA, then skindx train DATA --out RUN, "
        "then skindx evaluate RUN/bundle DATA, then skindx serve RUN/bundle.\n\n"
        "To run all steps on synthetic images: skindx demo."
    ),
)


def _version(wanted: bool) -> None:
    if wanted:
        from skindx.core.measurement import commit

        known = commit()
        print(f"skindx {__version__}" + (f" (commit {known})" if known else ""))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for verb in (
    build,
    screen,
    review,
    annotate,
    gallery,
    audit,
    publish,
    remove,
    train,
    evaluate,
    recompute,
    compare,
    adapt,
    leak,
    export,
    diagnose,
    serve,
    monitor,
    bench,
    doctor,
    demo,
):
    app.command()(verb)
for group, name in (
    (boxes.app, "boxes"),
    (bundle.app, "bundle"),
    (casebook.app, "casebook"),
    (features, "features"),
    (user, "user"),
    (dedup, "dedup"),
    (plan, "plan"),
    (scan.app, "scan"),
):
    app.add_typer(group, name=name)
lay_out(app)
refuse_special_files(app)


def main() -> None:
    """Run the command line."""
    run_app(app)


def run_app(commands: typer.Typer) -> None:
    """Run commands as skindx runs its own: offline, on a guarded terminal, errors in a sentence."""
    heed_interrupts()
    go_offline()
    collect_rarely()
    guard_terminal()
    print_deprecations()
    with one_sentence():
        commands()


if __name__ == "__main__":
    main()
