"""One visit of a member to a worker: train it on a partition, or validate it there.

The last visitor closes the epoch: history row, trackers, and the finished member.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skindx.core.atomic_files import atomic_file, entries, sha256_file
from skindx.core.errors import UserError
from skindx.models.bounded_files import load_tensors, save_tensors
from skindx.models.classifier.classifier import Classifier, build_classifier
from skindx.training.callbacks import Silent, member_callbacks
from skindx.training.checkpoint.finished import FinishedMember, read_arrays
from skindx.training.checkpoint.keeper import At, checkpoint_folder
from skindx.training.checkpoint.resume import keeper_of
from skindx.training.launching.supervise import Stop
from skindx.training.loop import refuse_diverged, take_steps
from skindx.training.parallel.mesh import Mesh, peak_memory
from skindx.training.position import WHAT_TO_TRY, Position
from skindx.training.state import DivergedError, EpochSpeed, Row, Training, ValidationStoppedError
from skindx.training.tasks.classifier_job import MemberJob, setup_member
from skindx.training.tasks.classifier_task import ClassifierTask, epoch_line, figures, validate
from skindx.workers.lease_queue import TaskState
from skindx_methods.hopping.hop_units import Unit, done_of
from skindx_methods.hopping.partition_images import PartitionImages, VisitedSet


def close_epoch(
    job: MemberJob,
    mesh: Mesh,
    finished: FinishedMember,
    trained: Sequence[TaskState],
    history: Sequence[Row],
) -> Row:
    """Return the row of the epoch that follows `history`, and save its result.

    After the last epoch that is the member itself. All of it is written whole or not at all, and
    is the same when a worker that died wrote it before.
    """
    last, epoch = trained[-1].answer, len(history)
    position = Position(
        epoch=epoch,
        skipped=last["skipped"],
        skipped_pictures=last["skipped_pictures"],
    )
    images, epochs = len(job.data.train), job.settings.recipe_of(job.member).epochs
    row = position.row(images, last["loss_sum"], figures(finished, _speed(images, trained)))
    rows = [*history, row]
    with member_callbacks(
        job.run, job.settings, job.member, images, shown=True, bar=False
    ) as callbacks:
        callbacks.start(history)
        callbacks.epoch(rows, epoch_line(row))
    if epoch + 1 == epochs:
        job.save(finished, rows)
    return row


def _speed(images: int, trained: Sequence[TaskState]) -> EpochSpeed:
    answers = [task.answer for task in trained]
    seconds = max(1e-9, sum(answer["seconds"] for answer in answers))
    return EpochSpeed(
        images_per_s=round(images / seconds, 1),
        wait_share=round(sum(answer["waited_s"] for answer in answers) / seconds, 4),
        memory_gb=round(max(answer["memory_gb"] for answer in answers), 3),
        seconds=round(seconds, 1),
    )


class States:
    """The states of a run's members, each under a name of its own: no write replaces another."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def folder(self, member: str) -> Path:
        """Return where a member's states lie on this machine."""
        return checkpoint_folder(self.run, member)

    def path(self, member: str, name: str) -> Path:
        """Return where a state is to be written."""
        return self.folder(member) / name

    def fetch(self, member: str, name: str) -> Path:
        """Return where a state that another worker wrote can be read."""
        return self.path(member, name)

    def publish(self, member: str, name: str) -> None:
        """Let other workers read a state that was written; here they see it already."""

    def names(self, member: str) -> list[str]:
        """Return the names under which states of a member lie, whole or not."""
        folder = self.folder(member)
        return [path.name for path in entries(folder)] if folder.is_dir() else []

    def forget(self, member: str, names: Iterable[str]) -> None:
        """Remove some of a member's states."""
        for name in names:
            shutil.rmtree(self.path(member, name), ignore_errors=True)

    def remove(self, member: str) -> None:
        """Remove all states of a member: it is finished."""
        shutil.rmtree(self.folder(member), ignore_errors=True)


EVALUATED = "evaluated.safetensors"
"""The weights that are validated and kept, beside the state after the last visit of an epoch."""

Answer = dict[str, Any]


class UnitStoppedError(Exception):
    """The worker was asked to stop, or its lease is over; what it did of the unit is dropped."""


class LeasedStop:
    """A request to stop, for a unit that is dropped at once when its lease is another's."""

    def __init__(self, stop: Stop, lost: Callable[[], bool]) -> None:
        self._stop, self._lost = stop, lost

    @property
    def requested(self) -> bool:
        """Raises UnitStoppedError when the lease is lost: nothing of the unit may be saved."""
        if self._lost():
            raise UnitStoppedError
        return self._stop.requested

    def done(self) -> None:
        """Note that all is saved."""
        self._stop.done()


@dataclass(frozen=True)
class Visitor:
    """A worker's means to do any unit of any member; one member is in memory at a time."""

    mesh: Mesh
    images: PartitionImages
    states: States
    stop_requested: Callable[[], bool]
    """True when the unit is to be dropped."""
    say: Callable[[str], None]

    def train(self, job: MemberJob, unit: Unit, done: Sequence[TaskState], name: str) -> Answer:
        """Train a member on a partition, and write its state under `name`.

        Raises UnitStoppedError, UserError for a loss that stays bad or a state that is damaged.
        """
        earlier = done_of(done, unit.epoch, "train")
        training = setup_member(
            job.settings,
            job.member,
            job.data,
            self.mesh,
            self.say,
            open_images=self.images.opener(unit.partition),
        )
        try:
            self._load(job, training, unit, done)
            task = training.task
            assert isinstance(task, ClassifierTask)
            assert isinstance(task.training, VisitedSet)
            before = (Unit.of(was.key).partition for was in earlier)
            task.training.visits.order = (*before, unit.partition)
            training.guard.stop_requested = self.stop_requested
            began, first = time.monotonic(), training.position.step
            take_steps(training, Silent(self.say), _stop_between_steps)
            refuse_diverged(training, training.evaluated())
            seconds = time.monotonic() - began
            folder = self.states.path(unit.member, name)
            last_visit = len(earlier) + 1 == self.images.partitions.count
            if last_visit:
                training.engine.train(False)
                self._save_evaluated(training, folder)
            last = last_visit and unit.epoch + 1 == training.epochs
            if not last:
                self._save(job, training, folder)
            self.states.publish(unit.member, name)
            position = training.position
            return {
                "state": name,
                "evaluated": sha256_file(folder / EVALUATED) if last_visit else None,
                "loss_sum": position.loss_sum,
                "skipped": position.skipped,
                "skipped_pictures": position.skipped_pictures,
                "steps": position.step - first,
                "seconds": seconds,
                "waited_s": training.waiting.seconds,
                "memory_gb": peak_memory(self.mesh.device) / 1e9,
            }
        finally:
            training.engine.close()

    def _load(
        self, job: MemberJob, training: Training[Any], unit: Unit, done: Sequence[TaskState]
    ) -> None:
        """Go on from the member's last visit; before the first one it is fresh."""
        epochs = range(unit.epoch + 1)
        trained = [task for epoch in epochs for task in done_of(done, epoch, "train")]
        if not trained:
            return
        folder = self.states.fetch(unit.member, trained[-1].answer["state"])
        keeper = keeper_of(
            training, folder, job.fingerprint, job.settings.checkpoint, lambda line: None
        )
        if keeper.resume() is None:
            raise UserError(
                f"the state of member {unit.member} in {folder} is damaged or missing; delete "
                f"{folder.parent.parent} and run the same command again, which trains unfinished "
                "members from the beginning."
            )
        position = training.position
        if position.epoch < unit.epoch:
            position.next_epoch()
            position.history = history_of(done, unit.epoch)

    def _save(self, job: MemberJob, training: Training[Any], folder: Path) -> None:
        problems: list[str] = []
        settings = job.settings.checkpoint
        keeper = keeper_of(training, folder, job.fingerprint, settings, problems.append)
        if not keeper.save(At(training.position.epoch, training.position.step)):
            self._stop_if_requested()  # another worker may have cleared what this one has lost
            raise UserError(
                f"{folder.parent} cannot be written: {'; '.join(problems)}; free some space on "
                "the disk and run the same command again."
            )

    def _save_evaluated(self, training: Training[Any], folder: Path) -> None:
        network = training.evaluated()
        assert isinstance(network, Classifier)
        state = network.net.state_dict()
        tensors = {key: value.detach().cpu().contiguous() for key, value in state.items()}
        with atomic_file(folder / EVALUATED) as temporary:
            save_tensors(tensors, temporary)

    def validate(self, job: MemberJob, unit: Unit, done: Sequence[TaskState], name: str) -> Answer:
        """Validate a member on a partition; the last visitor closes its epoch.

        Raises UnitStoppedError, UserError for weights that are damaged.
        """
        trained, earlier = (done_of(done, unit.epoch, kind) for kind in ("train", "validate"))
        answer = trained[-1].answer
        file = self.states.fetch(unit.member, answer["state"]) / EVALUATED
        if not file.is_file() or sha256_file(file) != answer["evaluated"]:
            raise UserError(
                f"the weights of member {unit.member} in {file} are damaged or missing; delete "
                f"{file.parent.parent.parent} and run the same command again, which trains "
                "unfinished members from the beginning."
            )
        state = load_tensors(file)
        predicted = self._predict(job, unit, state)
        if len(earlier) + 1 < self.images.partitions.count:
            folder = self.states.path(unit.member, name)
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_file(folder / "part.npz") as temporary, temporary.open("wb") as opened:
                np.savez(opened, log=predicted.validation_NC, truth=predicted.truth_N)
            self.states.publish(unit.member, name)
            return {"state": name}
        parts = {unit.partition: predicted}
        for task in earlier:
            part = self.states.fetch(unit.member, task.answer["state"]) / "part.npz"
            arrays = read_arrays(part, {"log": ("f", 2), "truth": ("i", 1)})
            other = Unit.of(task.key).partition
            parts[other] = FinishedMember({}, arrays["log"], arrays["truth"])
        self._stop_if_requested()
        owner_N = self.images.partitions.owner_N(job.data.val)
        finished = _together(state, owner_N, parts)
        history = history_of(done, unit.epoch)
        try:
            row = close_epoch(job, self.mesh, finished, trained, history)
        except DivergedError as error:
            raise UserError(
                f"{unit.member} diverged: its {error} are not finite after epoch "
                f"{unit.epoch + 1}; {WHAT_TO_TRY}."
            ) from None
        return {"state": name, "row": row}

    def _predict(
        self, job: MemberJob, unit: Unit, state: dict[str, torch.Tensor]
    ) -> FinishedMember:
        """Return the member's predictions of the partition's validation images."""
        validation = self.images.validation(unit.partition, job.data, job.member)
        if not len(validation):
            empty = np.empty((0, len(job.classes)))
            return FinishedMember({}, empty, np.empty(0, dtype=np.int64))
        classifier = build_classifier(job.member, len(job.classes))
        classifier.net.load_state_dict(state)
        classifier.to(self.mesh.device).eval()
        try:
            return validate(classifier, job.member, validation, self.mesh, self.stop_requested)
        except ValidationStoppedError:
            raise UnitStoppedError from None

    def _stop_if_requested(self) -> None:
        if self.stop_requested():
            raise UnitStoppedError


def history_of(done: Sequence[TaskState], epochs: int) -> list[Row]:
    """Return a member's history rows of its first epochs."""
    rows = [
        task.answer["row"]
        for epoch in range(epochs)
        for task in done_of(done, epoch, "validate")
        if task.answer and "row" in task.answer
    ]
    assert len(rows) == epochs, (len(rows), epochs)
    return rows


def _together(
    state: dict[str, torch.Tensor], owner_N: np.ndarray[Any, Any], parts: dict[int, FinishedMember]
) -> FinishedMember:
    """Put the predictions of all partitions back in manifest order."""
    classes = next(iter(parts.values())).validation_NC.shape[1]
    validation_NC = np.empty((len(owner_N), classes))
    truth_N = np.empty(len(owner_N), dtype=np.int64)
    for partition, part in parts.items():
        validation_NC[owner_N == partition] = part.validation_NC
        truth_N[owner_N == partition] = part.truth_N
    return FinishedMember(state, validation_NC, truth_N)


def _stop_between_steps(training: Training[Any]) -> None:
    if training.guard.stop:
        raise UnitStoppedError
