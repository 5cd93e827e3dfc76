"""The end of a run's queue: what went wrong is named, what was done is kept as RUN/hops.csv."""

import csv
import time
from collections.abc import Sequence
from pathlib import Path

from skindx.core.atomic_files import write_csv
from skindx.core.errors import JobError, UserError
from skindx.training.checkpoint.keeper import CHECKPOINTS
from skindx.training.hopping.files import DATABASE, HOPS, NAME
from skindx.training.hopping.units import Unit
from skindx.workers.leases.leases import Leases
from skindx.workers.leases.tables import ASIDE, DONE, FAILED
from skindx.workers.leases.task import MOST_LOSSES, TaskState

_LEAVING_S = 10.0
"""Other workers notice within a second that no work is left."""

_COLUMNS = ("member", "epoch", "visit", "kind", "partition", "worker", "seconds")


def raise_problems(tasks: Sequence[TaskState]) -> None:
    """Raise UserError for units that were refused, JobError for those that ended their workers."""
    refused = [task for task in tasks if task.state == FAILED]
    if refused:
        others = sorted({Unit.of(task.key).member for task in refused[1:]})
        also = f" Refused as well: {', '.join(others)}." if others else ""
        raise UserError(f"{Unit.of(refused[0].key).words}: {refused[0].answer}{also}")
    if aside := [task for task in tasks if task.state == ASIDE]:
        names = "; ".join(Unit.of(task.key).words for task in aside)
        raise JobError(
            f"{names}: {MOST_LOSSES} workers died of it, one after the other (out of memory is the "
            "most common reason), so it was set aside; the other members went on. Run the same "
            "command again to try once more"
        )


def write_hops(run: Path, tasks: Sequence[TaskState]) -> None:
    """Write the order of all visits; members of an earlier start keep their rows."""
    done = [task for task in tasks if task.state == DONE]
    done = [task for task in done if Unit.of(task.key).kind != "whole"]
    members = {Unit.of(task.key).member for task in done}
    if not members:
        return
    file, rows = run / HOPS, []
    if file.is_file():
        with file.open(newline="", encoding="utf-8") as opened:
            rows = [row for row in list(csv.reader(opened))[1:] if row and row[0] not in members]
    count: dict[tuple[str, int, str], int] = {}
    for task in sorted(done, key=lambda task: task.ended or 0):
        unit = Unit.of(task.key)
        of = (unit.member, unit.epoch, unit.kind)
        count[of] = count.get(of, 0) + 1
        visit = [unit.member, unit.epoch + 1, count[of], unit.kind, unit.partition + 1]
        rows.append([*map(str, visit), task.worker or "", f"{task.took_s or 0:.3f}"])
    write_csv(file, _COLUMNS, rows)


def conclude(run: Path, leases: Leases) -> None:
    """End a run whose work is over: keep the order of visits, and remove the queue.

    Raises what `raise_problems` raises; the queue then stays for the next start.
    """
    tasks = leases.tasks()
    raise_problems(tasks)
    deadline = time.monotonic() + _LEAVING_S
    while leases.workers() and time.monotonic() < deadline:
        time.sleep(0.1)  # they still look whether there is work
    write_hops(run, tasks)
    leases.queue.remove()
    for name in (DATABASE, NAME):
        (run / CHECKPOINTS / name).unlink(missing_ok=True)
