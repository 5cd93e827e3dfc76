"""The workers of a scan, and its stages: each has its tasks in a queue of its own.

Workers are processes on this machine, this process, or other machines alone. A stage ends when
every task is done or set aside.
"""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol, Self

from sqlalchemy import select

from skindx import __version__
from skindx.core.errors import JobError, UserError
from skindx.core.progress import Progress
from skindx.scan.work.scan_worker import ScanPlan, ScanTask, queue_name
from skindx.workers.lease_queue import (
    DONE,
    TASKS,
    LeaseQueue,
    LeaseTask,
    TaskState,
    database_errors,
)
from skindx.workers.leases import Leases
from skindx.workers.worker_process import module_command, start

QUEUE = "SKINDX_SCAN_QUEUE"
"""Environment variable that names the database of a scan."""
_USER_ERROR = 2
_MOST_FAILURES = 3
"""Workers that may end one after another without having taken a task."""
_LONGEST_WORDS = 4000


class ScanWorkers(Protocol):
    """The workers of an open queue."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def supervise(self, leases: Leases) -> None:
        """Do some tasks, or make sure that workers do. Raises UserError, JobError."""
        return


class RemoteWorkers(ScanWorkers):
    """Workers of other machines do everything."""


@dataclass
class _Process:
    running: "subprocess.Popen[bytes]"
    errors: IO[bytes]

    def words(self) -> str:
        """Return the end of what it wrote."""
        self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, self.errors.tell() - _LONGEST_WORDS))
        return self.errors.read().decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Close what connects to a process that has ended."""
        assert self.running.stdin is not None
        self.running.stdin.close()
        self.errors.close()


@dataclass
class LocalWorkers(ScanWorkers):
    """Processes of this machine; one that dies is replaced, and all end with this process."""

    command: Sequence[str]
    count: int
    queue: str = ""
    """Passed in the environment: all users of this machine can read a command and its passwords."""
    _processes: list[_Process] = field(default_factory=list)
    _failures: int = 0

    @classmethod
    def for_scan(cls, where: Path | str, token: str, count: int, device: str = "cpu") -> Self:
        """Return workers that run `skindx scan worker`."""
        options = ("--scan", token, "--device", device, "--with-parent")
        return cls(module_command("skindx", "scan", "worker", *options), count, str(where))

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.running.send_signal(signal.SIGKILL)  # a task of it would be given again
            process.running.wait()
            process.close()
        self._processes.clear()

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes that run."""
        return [process.running.pid for process in self._processes]

    def supervise(self, leases: Leases) -> None:
        """Replace the dead, and give back what they held."""
        for process in list(self._processes):
            code = process.running.poll()
            if code is None:
                continue
            self._processes.remove(process)
            words = process.words()
            process.close()
            if code == _USER_ERROR:
                raise UserError(words.rpartition("error: ")[2] or "a worker gave up")
            had_task = _lose(leases, process.running.pid)
            self._failures = 0 if had_task or code == 0 else self._failures + 1
            if self._failures >= _MOST_FAILURES:
                raise JobError(f"{words}\nworkers end before they take a task, see above")
        while len(self._processes) < self.count:
            errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
            running = start(
                self.command,
                {QUEUE: self.queue} if self.queue else {},
                process_group=0,  # Ctrl+C goes to the driver alone: it ends its workers itself
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            self._processes.append(_Process(running, errors))


def _lose(leases: Leases, pid: int) -> bool:
    """Say that a process of this machine is dead; False: it held nothing."""
    mine = (socket.gethostname(), pid)
    for worker in leases.workers():
        if (worker.note.get("host"), worker.note.get("pid")) == mine:
            leases.lose(worker.worker)
            return True
    return False


def forget_ended(leases: Leases) -> None:
    """Give back what processes of this machine held that ended with an earlier driver."""
    for worker in leases.workers():
        pid = worker.note.get("pid")
        if worker.note.get("host") == socket.gethostname() and isinstance(pid, int):
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                leases.leave(worker.worker)
            except PermissionError:
                continue


_POLL_S = (0.02, 0.5)


@dataclass(frozen=True)
class ScanStages:
    """Runs the stages of one scan."""

    where: Path | str
    folder: Path
    plan: ScanPlan
    lease_s: float
    progress: Progress

    def run(
        self, stage: str, tasks: Sequence[ScanTask], workers: ScanWorkers
    ) -> dict[str, TaskState]:
        """Return the ended tasks by their keys; those that are done already stay as they are."""
        if not tasks:
            return {}
        with LeaseQueue(self.where, queue_name(self.plan.token, stage)) as queue:
            facts = {"folder": str(self.folder.absolute()), "lease_s": self.lease_s}
            queue.put(
                [LeaseTask(task.key, weight=len(task)) for task in tasks],
                fingerprint=self.plan.fingerprint,
                version=__version__,
                facts=facts,
            )
            leases = Leases(queue, self.lease_s)
            forget_ended(leases)
            pause, total = _POLL_S[0], sum(map(len, tasks))
            while leases.has_work():
                workers.supervise(leases)
                self.progress(stage, _done(queue), total)
                time.sleep(pause)
                pause = min(1.5 * pause, _POLL_S[1])
            self.progress(stage, _done(queue), total)
            return {task.key: task for task in leases.tasks()}

    def remove(self, stages: Sequence[str]) -> None:
        """Delete the queues of a scan that has ended."""
        for stage in stages:
            with LeaseQueue(self.where, queue_name(self.plan.token, stage)) as queue:
                queue.remove()


def _done(queue: LeaseQueue) -> int:
    with database_errors(queue.where), queue.engine.begin() as connection:
        ended = select(TASKS.c.key).where(TASKS.c.queue == queue.name, TASKS.c.state == DONE)
        return sum(len(ScanTask.from_key(key)) for key in connection.execute(ended).scalars())
