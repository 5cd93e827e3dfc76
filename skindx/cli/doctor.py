"""Verbs about this machine: `skindx demo`, `doctor` and `completion`; those of kit and lab."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from skindx.core.errors import deprecated
from skindx.core.text import printable, without_password


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
    from skindx.upgrade import upgrade

    failed = False
    for one in upgrade(where):
        line = f"{one.state}: {without_password(one.path)} ({one.what}): {one.words}"
        print(printable(line), flush=True)
        failed |= one.state == "failed"
    if failed:
        raise typer.Exit(1)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to work in.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the synthetic images.")] = 0,
) -> None:
    """Run the pipeline on synthetic images: scrape, build, train, evaluate, diagnose.

    Example: skindx demo --out runs/demo
    """
    from skindx.demo import run_demo

    run_demo(out, seed)


def bench() -> None:
    """Measure skindx and comparable tools; needs the distribution skindx-bench."""
    raise AssertionError("the verb of skindx-bench takes the place of this one")


def plan() -> None:
    """Estimate time, cost and bottleneck of a training; needs the distribution skindx-methods."""
    raise AssertionError("the verb of skindx-methods takes the place of this one")


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell to set up.")],
) -> None:
    """Print the script by which a shell completes verbs, options and their values.

    Put its line into the shell's startup file: `eval "$(skindx completion bash)"` into ~/.bashrc
    (zsh: ~/.zshrc, after compinit), `skindx completion fish | source` into config.fish.

    Example: skindx completion bash
    """
    from typer import completion as scripts

    script = scripts.get_completion_script  # type: ignore[attr-defined]
    print(script(prog_name="skindx", complete_var="_SKINDX_COMPLETE", shell=shell))
