"""`skindx demo`."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to work in.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the synthetic images.")] = 0,
) -> None:
    """Run the pipeline on synthetic images: scrape, build, train, evaluate, diagnose."""
    from skindx.demo.demo_run import run_demo

    run_demo(out, seed)
