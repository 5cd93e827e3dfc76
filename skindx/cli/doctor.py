"""`skindx doctor`."""

from typing import Annotated

import typer


def doctor(
    prebuild: Annotated[
        bool, typer.Option(hidden=True, help="No effect: nothing is compiled in advance any more.")
    ] = True,
) -> None:
    """Check compiler, headers, accelerator, extras and disk; advise how to fix each problem."""
    from skindx.doctor import examine, render

    del prebuild  # scripts of earlier versions give it
    findings = examine()
    print(render(findings))
    if any(finding.required and not finding.ok for finding in findings):
        raise typer.Exit(1)
