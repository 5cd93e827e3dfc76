"""The end of a member's epoch: its history row, its trackers, its snapshot, and its last result."""

from collections.abc import Sequence

from skindx.training.callbacks.callback_list import member_callbacks
from skindx.training.finished.member import FinishedMember
from skindx.training.finished.snapshots import snapshot_keeper
from skindx.training.parallel.mesh import Mesh
from skindx.training.position import Position
from skindx.training.task import EpochSpeed, Row
from skindx.training.tasks.classifier.figures import epoch_line, figures
from skindx.training.tasks.classifier.job import MemberJob
from skindx.workers.leases.task import TaskState


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
    snapshot_keeper(job.run, job.member, epochs, mesh)(epoch + 1, finished)
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
