"""The networks of a run before anything is written: the default one, and a trial of each.

Without a config the weights are looked for in the folder that SKINDX_WEIGHTS names, and among those
that an earlier training with `pretrained: true` has fetched; nothing is fetched. Every member is
tried in a process of its own.
"""

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from skindx.core.errors import UserError
from skindx.core.machine import cache_folder, spawn_context
from skindx.core.startup import light_imports
from skindx.models.classifier.classifier import ClassifierSettings, TrialError, try_network
from skindx.models.classifier.head_kinds import LinearHead
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.classifier.pretrained import kept_weights
from skindx.training.config.run import MemberSettings, TrainSettings

VARIABLE = "SKINDX_WEIGHTS"

DEFAULT_NETWORKS = (
    "mobilenetv2_100",
    "tf_efficientnet_lite0",
    "resnet50",
    "efficientnet_b0",
    "resnet18",
)
"""Networks of timm; the first with available weights is used. Small ones for CPUs come first."""

_ENDINGS = (".safetensors", ".fp16.safetensors", ".pth", ".pt", ".bin")


def with_default_network(settings: TrainSettings, *, random_weights: bool) -> TrainSettings:
    """Return settings that name no member with a network whose weights are at hand.

    With `random_weights` they stay as they are: a ResNet-18 that starts from nothing. Raises
    UserError where no weights are at hand.
    """
    if random_weights or not names_no_network(settings):
        return settings
    for name, file in _at_hand():
        member = _member(name, file)
        return settings.model_copy(update={"members": (member,)})
    folder = os.environ.get(VARIABLE)
    raise UserError(
        f"a training without --config needs pretrained weights, but {cache_folder() / 'weights'} "
        f"and the folder in {VARIABLE} ({folder or 'not set'}) have none; give --config, "
        f"--weights or --random-weights, or put {DEFAULT_NETWORKS[0]}.safetensors into the first "
        "folder."
    )


def names_no_network(settings: TrainSettings) -> bool:
    """Tell whether the members are those that stand in no config, without weights."""
    return bool(settings.members == TrainSettings.model_fields["members"].default)


def _at_hand() -> Iterator[tuple[str, Path]]:
    folder = os.environ.get(VARIABLE)
    if folder and not Path(folder).is_dir():
        raise UserError(
            f"the environment variable {VARIABLE} is {folder}, which is not a folder; set it to a "
            "folder with weights."
        )
    for name in DEFAULT_NETWORKS:
        if folder:
            files = (Path(folder) / f"{name}{ending}" for ending in _ENDINGS)
            yield from ((name, file.resolve()) for file in files if file.is_file())
        if (kept := kept_weights(with_statistics(name))).is_file():
            yield name, kept


def with_statistics(name: str) -> MemberSettings:
    """Return a member with the statistics and the side that timm's weights were trained with."""
    with light_imports():
        import timm

    known = timm.get_pretrained_cfg(name)
    assert known is not None
    preprocess = Preprocess(size=known.input_size[-1], mean=known.mean, std=known.std)
    return MemberSettings(name=name.replace("_", "-"), model=name, preprocess=preprocess)


def _member(name: str, file: Path) -> MemberSettings:
    return with_statistics(name).model_copy(update={"weights": file})


LIMIT_S = 300.0
"""Seconds of computing after which a network passes: only a failure is refused."""

_tried: set[str] = set()
"""Networks that passed in this process, as JSON."""


def probe_members(settings: TrainSettings, classes: int) -> None:
    """Raise UserError for a member whose network cannot be trained or cannot diagnose.

    A kernel that ends its process ends the trial's alone.
    """
    waiting: dict[str, tuple[MemberSettings, int | None]] = {}
    for member in settings.members:
        resize = settings.recipe_of(member).resize
        smaller = resize.start if resize else None
        key = f"{classes} {smaller} {_tried_as(member).model_dump_json()}"
        if key not in _tried:
            waiting.setdefault(key, (member, smaller))
    if not waiting:
        return
    tasks = [(_tried_as(member), smaller) for member, smaller in waiting.values()]
    done, problem = _run_apart(tasks, classes)
    if problem:
        member = list(waiting.values())[done][0]
        if problem in _FROM_OUTSIDE:
            raise UserError(
                f"the test of the network of member {member.name} was killed by {problem}, most "
                "often because memory ran out; free some memory and run the same command again."
            )
        raise UserError(
            f"member {member.name}: {member.model} {problem.rstrip('.')}; set another `model` or "
            "another `preprocess.size`."
        )
    _tried.update(list(waiting)[:done])


def _tried_as(member: MemberSettings) -> ClassifierSettings:
    """Return the network to try: on a frozen trunk every head is like the plain one."""
    frozen = {"head": LinearHead()} if member.trunk == "frozen" else {}
    return member.network().model_copy(update=frozen)


def _run_apart(tasks: list[tuple[ClassifierSettings, int | None]], classes: int) -> tuple[int, str]:
    """Try networks one after the other; return how many passed, and what failed if one did."""
    if multiprocessing.current_process().daemon:  # it may have no children
        return _run_here(tasks, classes)
    # A fork is ready at once, and computes on one thread as torch's own loader processes do.
    linux = sys.platform == "linux"
    context: Any = multiprocessing.get_context("fork") if linux else spawn_context()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_try_all, args=(tasks, classes, theirs), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside other threads
        process.start()
    theirs.close()
    done = 0
    try:
        while done < len(tasks):
            if not ours.poll(LIMIT_S):
                return len(tasks), ""
            if problem := ours.recv_bytes():
                return done, problem.decode()
            done += 1
    except EOFError:
        process.join()
        ending = _ending(process.exitcode)
        if ending in _FROM_OUTSIDE:
            return done, ending
        return done, f"ends its process by {ending} when it is trained on a CPU"
    finally:
        process.kill()
        process.join()
        ours.close()
    return done, ""


def _run_here(tasks: list[tuple[ClassifierSettings, int | None]], classes: int) -> tuple[int, str]:
    for done, (network, smaller) in enumerate(tasks):
        try:
            try_network(network, classes, smaller)
        except TrialError as error:
            return done, str(error)
    return len(tasks), ""


def _try_all(
    tasks: list[tuple[ClassifierSettings, int | None]], classes: int, answers: Connection
) -> None:
    # Our own sentence says what a dying kernel prints.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    for network, smaller in tasks:
        try:
            try_network(network, classes, smaller)
        except TrialError as error:
            answers.send_bytes(str(error).encode())
            return
        answers.send_bytes(b"")


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


_FROM_OUTSIDE = tuple(f"signal {name}" for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"))
"""How a process ends that somebody else ends: a network's kernels fail by other signals."""
