"""Keep the workers of one machine running, and show how far all members are.

It runs as a program, with the arguments WORKERS PORT MODULE --worker=MAIN RUN DATASET, and imports
no torch. A worker that was killed is said to be dead at once, instead of after its lease, and is
started again.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Self

from skindx.core.errors import UserError
from skindx.core.machine import child_environment, python_command
from skindx.core.settings_base import read_yaml
from skindx.training.config.engine import SETTINGS, EngineSettings
from skindx.training.launching.supervise import RANKS
from skindx.workers.lease_queue import ASIDE, DONE, FAILED, TAKEN, TaskState, WorkerState
from skindx.workers.leases import Leases
from skindx_methods.hopping.hop_units import Unit, open_queue

if TYPE_CHECKING:
    from rich.table import Table


_TERMINAL_S, _LINES_S = 1.0, 15.0
"""Seconds between two reads of the queue: on a terminal, and for plain lines."""


@dataclass(frozen=True)
class MemberProgress:
    """One member at this moment."""

    member: str
    done: int
    units: int
    where: str
    """Current work of the member, and the worker that does it."""
    row: dict[str, float] | None
    """Figures of its last completed epoch."""
    left_s: float | None
    """Remaining work in seconds of one worker; None: nothing was measured yet."""


def progress_of(
    tasks: Sequence[TaskState], workers: Sequence[WorkerState]
) -> tuple[list[MemberProgress], float | None]:
    """Return how far each member is, and in how many seconds all are likely to be finished.

    The time left is that of the work, shared out among the workers alive, but no less than the
    member with the most work needs alone.
    """
    hosts = {worker.worker: _host(worker) for worker in workers}
    measured = [task for task in tasks if task.took_s is not None]
    weight = sum(task.weight for task in measured)
    overall = sum(task.took_s or 0.0 for task in measured) / weight if weight else None
    groups: dict[str, list[TaskState]] = {}
    for task in tasks:
        groups.setdefault(Unit.of(task.key).member, []).append(task)
    result = [_member(name, group, hosts, overall) for name, group in groups.items()]
    lefts = [member.left_s for member in result if member.left_s is not None]
    if len(lefts) < len(result) or not workers:
        return result, None
    return result, max(max(lefts, default=0.0), sum(lefts) / len(workers))


def _host(worker: WorkerState) -> str:
    return f"worker {worker.note.get('rank', '?')} on {worker.note.get('host', '?')}"


def _member(
    name: str, tasks: Sequence[TaskState], hosts: dict[str, str], overall: float | None
) -> MemberProgress:
    done = [task for task in tasks if task.state == DONE]
    taken = next((task for task in tasks if task.state == TAKEN), None)
    ended = next((task for task in tasks if task.state in (ASIDE, FAILED)), None)
    if len(done) == len(tasks):
        where = "finished"
    elif ended is not None:
        where = "set aside" if ended.state == ASIDE else "refused"
    elif taken is not None:
        where = f"{_words(Unit.of(taken.key))}, {hosts.get(taken.worker or '', 'a lost worker')}"
    else:
        where = "waits for a worker"
    rows = [task for task in done if task.answer and "row" in task.answer]
    last = max(rows, key=lambda task: task.ended or 0).answer["row"] if rows else None
    weight = sum(task.weight for task in done if task.took_s)
    rate = sum(task.took_s or 0.0 for task in done) / weight if weight else overall
    left = sum(task.weight for task in tasks if task.state != DONE)
    left_s = 0.0 if not left or ended else None if rate is None else left * rate
    return MemberProgress(name, len(done), len(tasks), where, last, left_s)


def _words(unit: Unit) -> str:
    if unit.kind == "whole":
        return "in training"
    does = "trains on" if unit.kind == "train" else "is validated on"
    return f"epoch {unit.epoch + 1} {does} partition {unit.partition + 1}"


def table(members: Sequence[MemberProgress], left_s: float | None) -> "Table":
    """Return all members as a table for a terminal."""
    from rich.table import Table

    title = "" if left_s is None else f"about {duration(left_s)} left"
    made = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("member", "units", "where", "last epoch"):
        made.add_column(heading, no_wrap=heading != "where")
    for member in members:
        made.add_row(member.member, f"{member.done}/{member.units}", member.where, _last(member))
    return made


def line(members: Sequence[MemberProgress], left_s: float | None) -> str:
    """Return all members as one line of a log."""
    parts = [f"{member.member} {member.done}/{member.units}" for member in members]
    left = "" if left_s is None else f"; about {duration(left_s)} left"
    return f"units done: {', '.join(parts)}{left}"


def _last(member: MemberProgress) -> str:
    row = member.row
    if row is None:
        return ""
    return f"{row['epoch']:.0f}: loss {row['loss']:.3f}, balanced {row['val_balanced']:.3f}"


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "a minute"
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


class Watcher:
    """Shows how far all members are while the block runs: a table on a terminal, else lines."""

    def __init__(self, leases: Leases) -> None:
        from rich.console import Console

        self._leases, self._ended = leases, threading.Event()
        self._console = Console(stderr=True)
        self._thread = threading.Thread(target=self._watch, name="skindx-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def print(self, text: str) -> None:
        """Write a line of a worker above the table."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)
        sys.stderr.flush()

    def _watch(self) -> None:
        from rich.live import Live

        on_terminal, last_line = self._console.is_terminal, ""
        live = Live(console=self._console, transient=True) if on_terminal else None
        with live or nullcontext():
            while not self._ended.wait(_TERMINAL_S if on_terminal else _LINES_S):
                try:
                    result, left_s = progress_of(self._leases.tasks(), self._leases.workers())
                except UserError:
                    continue  # a database that is away for a moment
                if live:
                    live.update(table(result, left_s))
                elif result and (now := line(result, left_s)) != last_line:
                    self.print(now)
                    last_line = now


_POLL_S = 0.1
_GRACE_S = 30.0
_LAST_WORDS_S = 2.0
_HUNG_S = 10.0
"""Seconds after the last unit was done, after which a worker that has not ended hangs."""
_MOST_DEATHS = 4
"""Deaths in a row without a finished unit, after which the units are not the cause."""


class Manager:
    """The workers of this machine."""

    def __init__(self, workers: int, command: list[str], leases: Leases, run: Path) -> None:
        self._command, self._leases, self._run = command, leases, run
        self._workers = workers
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._deaths = dict.fromkeys(range(workers), 0)
        self._done = 0
        self._readers: list[threading.Thread] = []
        self._watcher = Watcher(leases)

    def run(self) -> int:
        """Return 0 when no work is left, else the code of a worker that refused or keeps dying."""
        with self._watcher:
            try:
                for rank in range(self._workers):
                    self._start(rank)
                return self._watch()
            finally:
                self._end()

    def _start(self, rank: int) -> None:
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        world = {"WORLD_SIZE": str(self._workers), "LOCAL_SIZE": str(self._workers)}
        process = subprocess.Popen(
            self._command,
            env=child_environment(world, place),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._processes[rank] = process
        reader = threading.Thread(target=self._pass_on, args=(process,), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _pass_on(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._watcher.print(line.rstrip("\n"))

    def _watch(self) -> int:
        looked, over = time.monotonic(), False
        while self._processes:
            if time.monotonic() - looked > _HUNG_S:
                if over:
                    self._end_hung()
                looked, over = time.monotonic(), not self._leases.has_work()
            for rank, process in list(self._processes.items()):
                code = process.poll()
                if code is None:
                    continue
                del self._processes[rank]
                if code == 0:
                    continue
                if code > 0 and code != 1:
                    return code
                self._bury(process.pid)
                gives_up, work = self._gives_up(rank), self._leases.has_work()
                self._watcher.print(_death(rank, process.pid, code, gives_up=gives_up, work=work))
                if gives_up:
                    return code
                if work:
                    self._start(rank)
                else:
                    (self._run / RANKS / f"rank-{rank}.json").unlink(missing_ok=True)
            time.sleep(_POLL_S)
        return 0

    def _end_hung(self) -> None:
        """End workers that do not notice that no work is left: what they held, others did."""
        for rank, process in list(self._processes.items()):
            self._watcher.print(f"worker {rank} (process {process.pid}) hung and is ended")
            process.kill()
            process.wait()
            del self._processes[rank]
            (self._run / RANKS / f"rank-{rank}.json").unlink(missing_ok=True)

    def _bury(self, pid: int) -> None:
        """Say at once that a process is dead: its units are others' to do."""
        host = os.uname().nodename
        for worker in self._leases.workers():
            if worker.note.get("pid") == pid and worker.note.get("host") == host:
                self._leases.lose(worker.worker)

    def _gives_up(self, rank: int) -> bool:
        done = sum(task.ended is not None for task in self._leases.tasks())
        if done > self._done:
            self._deaths = dict.fromkeys(self._deaths, 0)
        self._done = done
        self._deaths[rank] += 1
        return self._deaths[rank] >= _MOST_DEATHS

    def _end(self) -> None:
        """Ask those that still run to stop, and end them after a while."""
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + _GRACE_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in self._readers:
            reader.join(_LAST_WORDS_S)


def _death(rank: int, pid: int, code: int, *, gives_up: bool, work: bool) -> str:
    """Say in a sentence how a worker ended, and what becomes of its work."""
    how = "failed; see its error above"
    if code < 0:
        name = signal.Signals(-code).name
        most = " (out of memory is the most common reason)" if name == "SIGKILL" else ""
        how = f"was killed by {name}{most}"
    then = "its unit is another's to do, and it is started again" if work else "no work is left"
    if gives_up:
        then = f"it died {_MOST_DEATHS} times and no unit was done meanwhile, so the run ends"
    return f"worker {rank} (process {pid}) {how}; {then}"


def main(arguments: list[str]) -> int:
    """Run the workers to the end; return the exit code."""
    workers, _, module, option, run, dataset = arguments
    engine = EngineSettings.parse(read_yaml(Path(run) / SETTINGS)["engine"], expand=False)

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with open_queue(Path(run), engine) as queue:
        leases = Leases(queue, engine.lease_s)
        command = python_command("-u", "-m", module, option, run, dataset)
        return Manager(int(workers), command, leases, Path(run)).run()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.exit(code if code >= 0 else 128 - code)
