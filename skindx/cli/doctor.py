"""`skindx doctor`."""

from typing import Annotated

import typer


def doctor(
    prebuild: Annotated[
        bool | None, typer.Option("--prebuild/--no-prebuild", hidden=True, help="No effect.")
    ] = None,
    upgrade: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Instead: convert what older versions wrote (dataset, run, bundle, case book, "
            "scan, ..., or a folder with some). A file that is written anew stays as FILE.old.",
        ),
    ] = None,
) -> None:
    """Check compiler, headers, accelerator, extras and disk; advise how to fix each problem.

    Example: skindx doctor --upgrade runs/mine
    """
    from skindx.core.errors import deprecated
    from skindx.doctor import examine, render

    if prebuild is not None:  # scripts of earlier versions give it
        deprecated("skindx doctor --no-prebuild")
    if upgrade is not None:
        _upgrade(upgrade)
        return
    findings = examine()
    print(render(findings))
    if any(finding.required and not finding.ok for finding in findings):
        raise typer.Exit(1)


def _upgrade(where: str) -> None:
    from skindx.core.text import printable, without_password
    from skindx.upgrade import upgrade

    failed = False
    for one in upgrade(where):
        line = f"{one.state}: {without_password(one.path)} ({one.what}): {one.words}"
        print(printable(line), flush=True)
        failed |= one.state == "failed"
    if failed:
        raise typer.Exit(1)
