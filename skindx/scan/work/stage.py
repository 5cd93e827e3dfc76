"""One stage of a scan: its tasks in a queue of their own, until every one is done or set aside."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from skindx import __version__
from skindx.core.progress import Progress
from skindx.scan.work.crew import Crew, forget_ended
from skindx.scan.work.folder import Plan
from skindx.scan.work.tasks import ScanTask, leased
from skindx.scan.work.worker import queue_name
from skindx.workers.leases.database import database_errors
from skindx.workers.leases.leases import Leases
from skindx.workers.leases.queue import Queue
from skindx.workers.leases.tables import DONE, TASKS
from skindx.workers.leases.task import TaskState

_POLL_S = (0.02, 0.5)


@dataclass(frozen=True)
class Stages:
    """Runs the stages of one scan."""

    where: Path | str
    folder: Path
    plan: Plan
    lease_s: float
    progress: Progress

    def run(self, stage: str, tasks: Sequence[ScanTask], crew: Crew) -> dict[str, TaskState]:
        """Return the ended tasks by their keys; those that are done already stay as they are."""
        if not tasks:
            return {}
        with Queue(self.where, queue_name(self.plan.token, stage)) as queue:
            facts = {"folder": str(self.folder.absolute()), "lease_s": self.lease_s}
            queue.put(
                leased(tasks), fingerprint=self.plan.fingerprint, version=__version__, facts=facts
            )
            leases = Leases(queue, self.lease_s)
            forget_ended(leases)
            pause, total = _POLL_S[0], sum(map(len, tasks))
            while leases.has_work():
                crew.tend(leases)
                self.progress(stage, _done(queue), total)
                time.sleep(pause)
                pause = min(1.5 * pause, _POLL_S[1])
            self.progress(stage, _done(queue), total)
            return {task.key: task for task in leases.tasks()}

    def remove(self, stages: Sequence[str]) -> None:
        """Delete the queues of a scan that has ended."""
        for stage in stages:
            with Queue(self.where, queue_name(self.plan.token, stage)) as queue:
                queue.remove()


def _done(queue: Queue) -> int:
    """Return how many tiles or lesions are done."""
    with database_errors(queue.where), queue.engine.begin() as connection:
        ended = select(TASKS.c.key).where(TASKS.c.queue == queue.name, TASKS.c.state == DONE)
        return sum(len(ScanTask.of(key)) for key in connection.execute(ended).scalars())
