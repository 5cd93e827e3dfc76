"""Expected time and memory of build, training and evaluation, before there is a dataset.

The network is timed for some seconds on random images, in a process of its own; a training's time
and memory on one rank follow from that. Starting, packing and evaluating are added at the rates
that `skindx bench serve first-hour` measured, which also lays each estimate beside what its command
took. `skindx plan make` measures on the dataset itself.
"""

import json
import os
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count, spawn_context
from skindx.core.text import seconds, size
from skindx.start.first_files import VIEWS
from skindx.start.image_folder import ImageFolder

BUDGET_S = 6.0
"""Seconds for the timed steps; importing torch takes more."""
_STEPS, _LIMIT_S = 3, 600.0
_DECODING = 0.5
"""Share of a screening's time that a training needs to decode and crop an image."""

BUILD = (13.0, 0.05)
"""Seconds of a build's start, and of one core for an image beside screening: hashes, copies."""
TRAIN = (20.0, 3.0)
"""Seconds in which ranks start and a bundle is packed, and forward passes of each image for it."""
EVALUATE = (7.0, 2.0)
"""Seconds of an evaluation's start, and forward passes of each test image."""
BUILD_BYTES, RANKS_BYTES, EVALUATE_BYTES = 0.4e9, 0.7e9, 0.65e9
"""Memory of a build, of what starts the ranks of a training, and of an evaluation, before their
images and networks."""


@dataclass(frozen=True)
class Estimated:
    """One command."""

    seconds: float
    memory_bytes: float

    @property
    def words(self) -> str:
        return f"about {seconds(self.seconds)} and {size(self.memory_bytes)} of memory"


@dataclass(frozen=True)
class TimedSteps:
    """Training steps of a network, as they were timed on this machine."""

    device: str
    points: tuple[tuple[int, float, int], ...]
    """(images of a step, seconds of forward and backward, peak bytes or 0), by images."""
    forward_s: float
    """Forward alone, of as many images as the last point has."""
    update_s: float
    parameter_bytes: int
    optimizer_bytes: int
    base_bytes: int = 0
    """Memory of a process before it has a network."""

    @property
    def forward_image_s(self) -> float:
        return self.forward_s / self.points[-1][0]

    def together_s(self, compute_s: float, read_s: float) -> float:
        """Return what computing takes beside reading: a GPU's node reads on cores of its own."""
        return compute_s + read_s if self.device == "cpu" else max(compute_s, read_s)

    def step_s(self, images: int, read_s: float) -> float:
        """Return the seconds of a step of one rank whose images take `read_s` to read.

        Forward and backward follow a line through the points, or the number of images.
        """
        (few, few_s, _), (many, many_s, _) = self.points[0], self.points[-1]
        if many_s > few_s:
            line_s = few_s + (many_s - few_s) / (many - few) * (images - few)
            compute_s = max(line_s, 0.2 * few_s * images / few)
        else:
            compute_s = many_s * images / many
        return self.together_s(compute_s + self.update_s, read_s)

    def memory_bytes(self, images: int) -> float:
        """Return a rank's peak; on a CPU with the copy of its state that waits for the disk."""
        known = [(number, peak) for number, _, peak in self.points if peak]
        if known:
            (few, first), (many, last) = known[0], known[-1]
            bytes_ = last + max(0.0, (last - first) / max(1, many - few)) * (images - many)
        else:
            bytes_ = self.base_bytes + 3 * self.parameter_bytes
        if self.device == "cpu":
            bytes_ += 2 * self.parameter_bytes + self.optimizer_bytes
        return max(0.0, bytes_)


@dataclass(frozen=True)
class TimedNetwork:
    """A network as it was timed."""

    steps: TimedSteps
    member: dict[str, Any]
    """Settings of a member whose network it is: name, model, preprocess, weights."""
    pretrained: bool
    no_hub: str = ""
    """Why the weights that the training would fetch cannot be fetched now."""


def machine_is_busy() -> bool:
    """Tell whether more wants to run on this machine than it has cores."""
    return os.getloadavg()[0] > cpu_count()


def time_network(
    network: str | None, side: int, batch: int, classes: int, fetch: bool = False
) -> TimedNetwork:
    """Choose the network whose weights are at hand, or take `network`, and time its steps.

    With `fetch` the training will fetch the weights of `network`, or of the usual one. Raises
    UserError for a name that timm does not have, and for a network that cannot be trained.
    """
    context = spawn_context()
    ours, theirs = context.Pipe()
    task = (network, side, batch, classes, fetch, BUDGET_S)
    process = context.Process(target=_time, args=(theirs, *task), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_LIMIT_S + BUDGET_S):
            raise UserError(
                f"the timing of a network took more than {_LIMIT_S:.0f} s; run the same command "
                "again when this machine is less busy, or choose a smaller network with "
                "--network."
            )
        worked, answer = json.loads(ours.recv_bytes())
    except EOFError:
        raise UserError(
            "the process that times a network was killed, most often for lack of memory; close "
            "other programs, or choose a smaller network with --network."
        ) from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if not worked:
        raise UserError(answer)
    steps, *rest = answer
    points = tuple(tuple(point) for point in steps.pop("points"))
    return TimedNetwork(TimedSteps(points=points, **steps), *rest)


def _time(answers: Connection, network: str | None, *task: Any) -> None:
    try:
        _send(answers, True, _timed(network, *task))
    except UserError as error:
        _send(answers, False, str(error))
    except RuntimeError as error:  # of torch: sizes that do not fit, memory
        reason = " ".join(str(error).split())[:200]
        why = f"{network} cannot be trained here: {reason}; give another network."
        _send(answers, False, why)


def _send(answers: Connection, *answer: Any) -> None:
    answers.send_bytes(json.dumps(answer).encode())  # `send` would pickle it


def _timed(  # noqa: PLR0917
    network: str | None, side: int, batch: int, classes: int, fetch: bool, budget_s: float
) -> tuple[dict[str, Any], dict[str, Any], bool, str]:
    import torch

    from skindx.core.machine import keep_freed_memory
    from skindx.models.classifier.classifier import build_classifier
    from skindx.models.classifier.pretrained import hub_problem, kept_weights
    from skindx.training.config.run import MemberSettings, TrainSettings
    from skindx.training.member_networks import (
        DEFAULT_NETWORKS,
        with_default_network,
        with_statistics,
    )
    from skindx.training.parallel.mesh import peak_memory, resolve_accelerator

    member, pretrained, no_hub = MemberSettings(name="resnet18", model="resnet18"), False, ""
    if fetch:
        name = network or DEFAULT_NETWORKS[0]
        kept = kept_weights(MemberSettings(name="fetched", model=name))  # refuses what has none
        no_hub = "" if kept.is_file() else hub_problem()
        member, pretrained = with_statistics(name).model_copy(update={"pretrained": True}), True
    elif network:
        name = network.replace(".", "-").replace("_", "-")[:64]
        member = MemberSettings(name=name, model=network)
    else:
        try:
            [member] = with_default_network(TrainSettings(), random_weights=False).members
            pretrained = True
        except UserError:
            pretrained = False  # nothing is at hand; a ResNet-18 learns from these images alone
    preprocess = member.preprocess.model_copy(update={"size": side})
    member = member.model_copy(update={"preprocess": preprocess})
    accelerator = resolve_accelerator("auto")
    device = torch.device(accelerator)
    keep_freed_memory()
    base = peak_memory(device)
    classifier = build_classifier(member.network(), classes).to(device).train()
    optimizer = torch.optim.AdamW(classifier.parameters())
    points, means = [], (0.0, 0.0, 0.0)
    for images in sorted({max(2, batch // 4), max(2, batch // 2)}):
        steps = _steps(classifier, optimizer, images, side, classes, budget_s / 2)
        means = tuple(sum(each) / len(steps) for each in zip(*steps, strict=True))
        points.append((images, means[0] + means[1], peak_memory(device)))
    parameter_bytes = 4 * sum(parameter.numel() for parameter in classifier.parameters())
    timed = TimedSteps(
        device=accelerator,
        points=tuple(points),
        forward_s=means[0],
        update_s=means[2],
        parameter_bytes=parameter_bytes,
        optimizer_bytes=2 * parameter_bytes,
        base_bytes=base,
    )
    named = {"name", "model", "weights", "pretrained", "preprocess"}
    written = member.model_dump(mode="json", include=named, exclude_defaults=True)
    return asdict(timed), {**written, "model": member.model}, pretrained, no_hub


def _steps(  # noqa: PLR0917
    classifier: Any, optimizer: Any, images: int, side: int, classes: int, budget_s: float
) -> list[tuple[float, float, float]]:
    """Return seconds of forward, backward and update of some steps; the first is not counted.

    On a busy machine they are those of the processor, shared by the threads: about what the steps
    take when they have the machine to themselves.
    """
    import time

    import torch

    device = next(classifier.parameters()).device
    pixels_BSS3 = torch.randint(0, 256, (images, side, side, 3), dtype=torch.uint8, device=device)
    labels_B = torch.arange(images, device=device) % classes

    alone = device.type == "cpu" and machine_is_busy()
    threads = torch.get_num_threads()

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.process_time() / threads if alone else time.perf_counter()

    taken: list[tuple[float, float, float]] = []
    began = time.monotonic()
    while len(taken) < 1 + _STEPS and (len(taken) < 2 or time.monotonic() - began < budget_s):
        start = now()
        loss = torch.nn.functional.cross_entropy(classifier(pixels_BSS3), labels_B)
        forward = now()
        torch.autograd.backward(loss)
        backward = now()
        optimizer.step()
        optimizer.zero_grad()
        taken.append((forward - start, backward - forward, now() - backward))
    return taken[1:]


def estimates(
    folder: ImageFolder, timed: TimedNetwork, *, batch: int, epochs: int, frozen: bool, cores: int
) -> tuple[Estimated, Estimated, Estimated]:
    """Return what a build, a training of one member and its evaluation are expected to take.

    A frozen trunk sees each view of an image once; what its head takes then is not counted.
    """
    images, steps = folder.images, timed.steps
    read_s = folder.screen_s * _DECODING / cores
    taken = min(batch, max(2, round(0.6 * images)))
    number = max(1, round(round(0.6 * images) / taken)) if images else 0
    validation_s = round(0.1 * images) * steps.together_s(steps.forward_image_s, read_s)
    planned_s = epochs * (number * steps.step_s(taken, taken * read_s) + validation_s)
    forward_s = steps.forward_image_s + read_s
    pixels = [verdict.width * verdict.height for _, verdict in folder.sound]
    decoded = cores * 24.0 * max(pixels, default=0)
    build_s = BUILD[0] + (BUILD[1] + folder.screen_s) * images / cores
    passes, planned_s = (VIEWS, 0.0) if frozen else (0, planned_s)
    train_s = TRAIN[0] + planned_s + (TRAIN[1] + passes) * images * forward_s
    views = VIEWS if frozen else 1
    test_s = EVALUATE[0] + (EVALUATE[1] + views - 1) * 0.2 * images * forward_s
    return (
        Estimated(build_s, BUILD_BYTES + decoded),
        Estimated(train_s, RANKS_BYTES + steps.memory_bytes(taken)),
        Estimated(test_s, EVALUATE_BYTES + 2 * steps.parameter_bytes),
    )
