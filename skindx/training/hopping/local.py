"""Keep the workers of one machine running, and show how far all members are.

`python -m skindx.training.hopping.local WORKERS PORT MODULE RUN DATASET` imports no torch. A worker
that was killed is said to be dead at once, instead of after its lease, and is started again.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from skindx.core.settings_base import read_yaml
from skindx.training.config.engine import SETTINGS, EngineSettings
from skindx.training.hopping.opening import open_queue
from skindx.training.hopping.progress import Watcher
from skindx.training.launching.notes import RANKS
from skindx.workers.leases.leases import Leases

_POLL_S = 0.1
_GRACE_S = 30.0
_LAST_WORDS_S = 2.0
_MOST_DEATHS = 4
"""In a row without a unit done: then the worker dies of something else than its units."""


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
            env=os.environ | world | place,
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
        while self._processes:
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
    workers, _, module, run, dataset = arguments
    engine = EngineSettings.parse(read_yaml(Path(run) / SETTINGS)["engine"], expand=False)

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with open_queue(Path(run), engine) as queue:
        leases = Leases(queue, engine.lease_s)
        command = [sys.executable, "-u", "-m", module, run, dataset]
        return Manager(int(workers), command, leases, Path(run)).run()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.exit(code if code >= 0 else 128 - code)
