"""`skindx bundle`: pack a bundle without its trunk, and complete it again."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Detach a trunk that you may not pass on from a bundle, and attach it elsewhere.\n\n"
        "A trunk is the frozen network that heads share (trunk: frozen). The model card states its "
        "licence."
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
    """Write an archive of a bundle without its trunk; only `skindx bundle attach` reads it.

    Example: skindx bundle detach runs/mine/bundle --out mine.zip
    """
    from skindx.models.bundle.detach import detach

    names = detach(bundle, out, expect)
    print(f"wrote {out} without {', '.join(names)}")
    print(f"to complete it: skindx bundle attach {out.name} --out BUNDLE")


@app.command("attach")
def attach_verb(
    archive: Annotated[Path, typer.Argument(help="Archive that `skindx bundle detach` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Bundle to write.")],
    tower: Annotated[
        str | None, typer.Option(help="Where the trunk is: local-dir:FOLDER or hf-hub:ORG/NAME.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="A file with the trunk's weights.")] = None,
) -> None:
    """Restore a bundle, byte by byte, from an archive and its trunk, which is checked by hash.

    Without --tower and --weights, the trunk is downloaded from the address in the archive.

    Example: skindx bundle attach mine.zip --tower local-dir:towers/vit --out bundle
    """
    from skindx.models.bundle.detach import attach

    done = attach(archive, out, tower=tower, weights=weights)
    print(f"wrote {done.path}, digest {done.digest}")
