"""`skindx demo`, `bench` as `skindx --help` lists it, and `completion`."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to work in.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the synthetic images.")] = 0,
) -> None:
    """Run the pipeline on synthetic images: scrape, build, train, evaluate, diagnose.

    Example: skindx demo --out runs/demo
    """
    from skindx.demo.demo_run import run_demo

    run_demo(out, seed)


def bench() -> None:
    """Measure skindx and comparable tools; needs the distribution skindx-bench."""
    raise AssertionError("the verb of skindx-bench takes the place of this one")


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
