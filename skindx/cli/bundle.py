"""`skindx bundle`: pack a bundle without its trunk, and complete it again."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Bundles whose trunk is not yours to pass on: detach it, and attach it elsewhere.\n\n"
        "A trunk is what several heads share (trunk: frozen); its licence stands on the model card."
    ),
)


@app.command("detach")
def detach_verb(
    bundle: Annotated[Path, typer.Argument(help="A bundle that `skindx train` packed.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Archive to write (.zip).")],
    expect: Annotated[
        str | None, typer.Option(help="Digest that the bundle must have, or its first digits.")
    ] = None,
) -> None:
    """Write an archive of a bundle without its trunk; no verb loads it until it is attached.

    Example: skindx bundle detach runs/mine/bundle --out mine.zip
    """
    from skindx.models.detach import detach

    names = detach(bundle, out, expect)
    print(f"wrote {out} without {', '.join(names)}")
    print(f"who has it runs: skindx bundle attach {out.name} --out BUNDLE")


@app.command("attach")
def attach_verb(
    archive: Annotated[Path, typer.Argument(help="What `skindx bundle detach` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Bundle to write.")],
    tower: Annotated[
        str | None,
        typer.Option(help="Where the trunk is: local-dir:FOLDER or hf-hub:ORG/NAME."),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="A file with the trunk's weights.")] = None,
) -> None:
    """Complete an archive with its trunk, checked by hash: the bundle is the same to the byte.

    Without --tower and --weights the trunk is fetched from where the bundle says it was taken.

    Example: skindx bundle attach mine.zip --tower local-dir:towers/vit --out bundle
    """
    from skindx.models.detach import attach

    done = attach(archive, out, tower=tower, weights=weights)
    print(f"wrote {done.path}, digest {done.digest}")
