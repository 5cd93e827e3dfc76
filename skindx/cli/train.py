"""`skindx train`."""

import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skindx.cli.options import Sets
from skindx.core.errors import UserError
from skindx.core.machine import require_extra

if TYPE_CHECKING:
    from skindx.training.config.run import TrainSettings
    from skindx.training.launching.supervise import StoppedError

NEEDS = ("albumentations", "deepspeed", "matplotlib", "psutil", "sklearn", "sqlalchemy")


def train(
    dataset: Annotated[Path, typer.Argument(help="A folder that `skindx build` wrote.")],
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run folder to write.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "--ensemble", "-c", help="Training settings (YAML).")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="Weights for members that name none: safetensors or a checkpoint."),
    ] = None,
    hop: Annotated[
        bool,
        typer.Option(
            "--hop",
            help="Let members hop between workers with their own partitions of the images; needs "
            "skindx-methods.",
        ),
    ] = False,
    join: Annotated[
        bool,
        typer.Option(
            "--join",
            help="Be one more worker of the training by hop or members in OUT; needs "
            "skindx-methods.",
        ),
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="Follow a plan that `skindx plan make --write` wrote; `skindx plan check OUT` "
            "then compares it with the run."
        ),
    ] = None,
    random_weights: Annotated[
        bool,
        typer.Option("--random-weights", help="Without CONFIG: a ResNet-18 from random weights."),
    ] = False,
    sets: Sets = None,
) -> None:
    """Train the ensemble and the detector, calibrate them, and pack OUT/bundle.

    It starts its ranks itself. To resume an interrupted training, run the same command again:
    finished members are kept, and an unfinished one resumes from its last checkpoint. Members that
    are reused from other runs are finished there first. SIGTERM saves and ends with exit code 143,
    Ctrl-C with 130. OUT/ensemble.json has weights and temperatures of the members.

    Without CONFIG it trains one network whose pretrained weights are on this machine: in the folder
    SKINDX_WEIGHTS, or fetched before. It fetches none, and refuses to start where there are none.

    Example: skindx train runs/mine/data --config my.yaml --out runs/mine

    Many members: skindx train DATA --config configs/ensemble-skin10.yaml --out runs/ensemble

    All at once, one worker for each core: skindx train DATA -c my.yaml --hop --out runs/mine
    """
    require_extra("train", *NEEDS, purpose="training")
    from skindx.energy import energy_reported
    from skindx.models.bundle.model_card import missing_parts, not_useful_yet
    from skindx.training.config.run import TrainSettings
    from skindx.training.launching.place import settle_place
    from skindx.training.launching.supervise import StoppedError
    from skindx.training.registry import follow_plan
    from skindx.training.run import train as train_run

    settle_place()
    if join:
        _join(dataset, out, [config, weights, plan, sets, hop, random_weights])
        return
    chosen = ["engine.schedule=hop"] if hop else []
    chosen += sets or []
    settings, keep = (
        follow_plan(plan, config, chosen, dataset)
        if plan
        else (TrainSettings.load(config, chosen), _nothing)
    )
    settings = settings.starting_from(weights) if weights else settings
    if config is None or random_weights:
        settings = _without_config(
            settings, dataset, config or weights, random_weights=random_weights
        )
    if out is None:
        raise UserError(
            "--out is missing; add --out with the run folder to write, such as --out runs/mine."
        )
    try:
        with energy_reported("train", out):
            bundle = train_run(dataset, settings, out, partial(keep, out))
    except StoppedError as stopped:
        if not str(stopped):
            # One rank of several that another launcher started: the first rank reports for all, and
            # a launcher that saw this one fail would end the first before it has spoken.
            return
        print(_stopped(stopped), file=sys.stderr, flush=True)
        raise typer.Exit(stopped.code) from None
    if bundle:
        for line in missing_parts(bundle.spec, bundle.taxonomy.classes):
            print(f"not fitted: {line}")
        if reasons := not_useful_yet(bundle.spec, bundle.taxonomy.classes):
            print(f"This bundle is not useful yet. {' '.join(reasons)}")
        if bundle.warning:
            print(bundle.warning)
        print(f"packed {bundle.path}: {', '.join(member.name for member in bundle.spec.members)}")
        print(f"digest {bundle.digest}; --expect DIGEST checks it in diagnose, serve and evaluate")
        print(f"next: {shlex.join(['skindx', 'evaluate', str(bundle.path), str(dataset)])}")


def _without_config(
    settings: "TrainSettings", dataset: Path, given: Path | None, *, random_weights: bool
) -> "TrainSettings":
    """Return settings whose network starts from weights at hand, and say which; or refuse."""
    from skindx.data.layout import MANIFEST
    from skindx.training.member_networks import names_no_network, with_default_network

    if random_weights and (given or not names_no_network(settings)):
        raise UserError(
            "--random-weights works only without --config and --weights; remove it (a member of "
            "--config without `weights` starts from random weights anyway)."
        )
    if given or not (dataset / MANIFEST).is_file():  # else that is what is wrong
        return settings
    completed = with_default_network(settings, random_weights=random_weights)
    if completed is not settings and os.environ.get("RANK", "0") == "0":
        [member] = completed.members
        print(f"no --config: {member.model} starts from {member.weights}")
    return completed


def _join(dataset: Path, run: Path | None, others: list[object]) -> None:
    if run is None or any(others):
        raise UserError(
            "--join accepts only DATASET and --out, because the other settings come from the "
            "run; remove the other options."
        )
    from skindx.training.launching.supervise import StoppedError
    from skindx.training.run import join_training

    try:
        join_training(dataset, run)
    except StoppedError as stopped:
        print(_stopped(stopped), file=sys.stderr, flush=True)
        raise typer.Exit(stopped.code) from None


def _nothing(run: Path) -> None: ...


def _stopped(stopped: "StoppedError") -> str:
    """Say that the training did not reach its end, why, and which command goes on."""
    by = f" by {stopped.why}" if stopped.why else ""
    again = "run the same command again to go on"
    if "RANK" not in os.environ:  # else the command is another launcher's
        again = f"to go on: {shlex.join(['skindx', *sys.argv[1:]])}"
    return f"stopped{by} before the training was finished ({stopped}); {again}"
