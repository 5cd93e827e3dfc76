"""`skindx doctor`."""

from typing import Annotated

import typer


def doctor(
    prebuild: Annotated[
        bool, typer.Option(help="Compile DeepSpeed's operator now instead of at the first start.")
    ] = True,
) -> None:
    """Check compiler, headers, accelerator, extras and disk; advise how to fix each problem."""
    from skindx.doctor import examine, render

    findings = examine(build=prebuild)
    print(render(findings))
    if any(finding.required and not finding.ok for finding in findings):
        raise typer.Exit(1)
