"""The ranks of a benchmark: one process each in the namespaces of an emulated cluster."""

import json
import os
import select
import shlex
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from skindx.core.errors import JobError
from skindx.core.machine import ONE_THREAD
from skindx.training.deepspeed.ranks import accelerator_variables
from skindx.workers.worker_process import module_command
from skindx_bench.harness.netlab import INTERFACE, NetLab

WORKER = "skindx_bench.cluster.exchange_rank"
_LAUNCHER = "skindx_bench.harness.launcher"
_ENDING_S = 60.0
FIRST_PORT = 29500


class Ranks(ABC):
    """Processes that answer commands by lines of JSON, from `with` on; all are gone afterwards."""

    def __init__(
        self, lab: NetLab, ranks: int, job: Mapping[str, Any], *, port: int = FIRST_PORT
    ) -> None:
        """`job` is the first line of each; a namespace has ports of its own."""
        self.lab, self.ranks, self._job, self._port = lab, ranks, dict(job), port
        self._commands: list[IO[str]] = []
        self._answers: list[IO[str]] = []

    def __enter__(self) -> Self:
        try:
            self._start()
            self._send(self._job, range(self.ranks))
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @abstractmethod
    def _start(self) -> None:
        """Start the processes, and fill `_commands` and `_answers`."""

    @abstractmethod
    def _died(self, rank: int) -> JobError:
        """Return how a rank ended that answers no more, or the one that ended before it."""

    @abstractmethod
    def end(self) -> None:
        """End all ranks."""

    @abstractmethod
    def _wait(self, rank: int, do: str) -> None:
        """Return when a rank may have an answer. Raises JobError where it will have none."""

    def _environment(self, rank: int) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": "0",
            **accelerator_variables("cpu"),
            "MASTER_ADDR": self.lab.address(0),
            "MASTER_PORT": str(self._port),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # it warns that an address has no name
        }

    def ask(self, do: str, only: int | None = None, **arguments: Any) -> list[dict[str, Any]]:
        """Let all ranks, or `only` one, do something; return their answers in rank order.

        Raises JobError when a rank has ended.
        """
        ranks = range(self.ranks) if only is None else [only]
        self._send({"do": do, **arguments}, ranks)
        return [self._answer(rank, do) for rank in ranks]

    def slowest(self, do: str, **arguments: Any) -> float:
        """Let all ranks do something; return the seconds of the slowest."""
        return max(float(answer["seconds"]) for answer in self.ask(do, **arguments))

    def _send(self, message: Mapping[str, Any], ranks: Sequence[int]) -> None:
        line = json.dumps(message) + "\n"
        for rank in ranks:
            try:
                self._commands[rank].write(line)
                self._commands[rank].flush()
            except BrokenPipeError:
                raise self._died(rank) from None

    def _answer(self, rank: int, do: str) -> dict[str, Any]:
        self._wait(rank, do)
        line = self._answers[rank].readline()
        if not line:
            raise self._died(rank)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _close(self) -> None:
        for stream in (*self._commands, *self._answers):
            with suppress(BrokenPipeError):
                stream.close()


class EmulatedCluster(Ranks):
    """Ranks of one module, forked by one process that imports it; neighbours share a node."""

    def __init__(
        self, lab: NetLab, ranks: int, job: Mapping[str, Any], module: str = WORKER
    ) -> None:
        """Give the rank's `job` to each of `ranks` processes of a module, from `with` on."""
        super().__init__(lab, ranks, job)
        self._module = module
        self._codes: dict[int, int] = {}
        self._launcher: subprocess.Popen[bytes] | None = None

    def _start(self) -> None:
        commands, answers = ([os.pipe() for _ in range(self.ranks)] for _ in range(2))
        theirs = [(read, write) for (read, _), (_, write) in zip(commands, answers, strict=True)]
        places = [
            {
                "environment": self._environment(rank),
                "network": str(self.lab.namespace(rank * len(self.lab.nodes) // self.ranks)),
                "streams": streams,
            }
            for rank, streams in enumerate(theirs)
        ]
        given = [descriptor for streams in theirs for descriptor in streams]
        self._launcher = subprocess.Popen(
            module_command(_LAUNCHER, json.dumps({"module": self._module, "ranks": places})),
            stdout=subprocess.PIPE,
            env=os.environ | self._environment(0),
            pass_fds=given,
        )
        for descriptor in given:
            os.close(descriptor)
        self._commands = [os.fdopen(write, "w") for _, write in commands]
        self._answers = [os.fdopen(read) for read, _ in answers]

    def _wait(self, rank: int, do: str) -> None:
        """Do nothing: the answers of a rank that has ended are at their end."""

    def _died(self, rank: int) -> JobError:
        deadline = time.monotonic() + _ENDING_S
        while rank not in self._codes:
            if not self._read_codes(deadline - time.monotonic()):
                return JobError(f"rank {rank} of the emulated cluster answers no more; see above.")
        # The others notice that one is gone, and may end before it is looked at.
        self._read_codes(0)
        killed = [other for other, code in sorted(self._codes.items()) if code < 0]
        rank = killed[0] if killed else rank
        code = self._codes[rank]
        how = f"ended with {code}; see its error above."
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}; see above."
        if code == -signal.SIGKILL:
            how = (
                "was killed by SIGKILL; out of memory is the most common reason: take fewer ranks "
                "or a smaller network."
            )
        return JobError(f"rank {rank} of the emulated cluster {how}")

    def _read_codes(self, timeout_s: float) -> bool:
        """Wait until the launcher says how a rank ended; False: it does not."""
        assert self._launcher is not None
        assert self._launcher.stdout is not None
        ready, _, _ = select.select([self._launcher.stdout], [], [], max(0, timeout_s))
        # A line is far shorter than what a pipe takes at once, so none comes in parts.
        lines = os.read(self._launcher.stdout.fileno(), 65536).splitlines() if ready else []
        for line in lines:
            ended = json.loads(line)
            self._codes[ended["rank"]] = ended["code"]
        return bool(lines)

    def end(self) -> None:
        """End all ranks, by the end of the process that forked them."""
        if self._launcher is None:
            return
        self._launcher.kill()
        for answers in self._answers:
            answers.read()  # until the rank is gone
        self._close()
        self._launcher.communicate()


class PeerRanks(Ranks):
    """Ranks of any command, such as that of a peer's Python, each on a node of its own."""

    def __init__(
        self,
        lab: NetLab,
        ranks: int,
        command: Sequence[str],
        job: Mapping[str, Any],
        *,
        logs: Path,
        port: int = FIRST_PORT,
        limit_s: float = 600,
    ) -> None:
        """`command` is that of a rank, `job` its first line, `logs` where it prints.

        `port` is the ranks' own where several frameworks run at once, `limit_s` how long an answer
        may take.
        """
        super().__init__(lab, ranks, job, port=port)
        self._command, self._logs, self._limit_s = list(command), logs, limit_s
        self._processes: list[subprocess.Popen[str]] = []

    def _log(self, rank: int) -> Path:
        return self._logs / f"rank{rank}.log"

    def _start(self) -> None:
        for rank in range(self.ranks):
            process = self._started(rank)
            self._processes.append(process)
            assert process.stdin is not None
            assert process.stdout is not None
            self._commands.append(process.stdin)
            self._answers.append(process.stdout)

    def _started(self, rank: int) -> "subprocess.Popen[str]":
        address = self.lab.address(rank)
        # The host's name, which some frameworks look up to find their own address, is no name here.
        script = f"hostname {address} && exec {shlex.join(self._command)}"
        inside = self.lab.command(rank, "unshare", "--uts", "/bin/sh", "-c", script)
        # Asked by the rank itself, the kernel would miss a bench that ends before it has begun.
        command = ["setpriv", "--pdeathsig", "KILL", *inside]
        with self._log(rank).open("w") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | ONE_THREAD | self._environment(rank),
                start_new_session=True,  # Ctrl-C is the bench's: it ends the ranks
            )

    def _environment(self, rank: int) -> dict[str, str]:
        workers = [f"{self.lab.address(other)}:{self._port}" for other in range(self.ranks)]
        return super()._environment(rank) | {
            "NODE_RANK": str(rank),
            "WORKERS": json.dumps(workers),
            "TF_CPP_MIN_LOG_LEVEL": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONUNBUFFERED": "1",
        }

    def ask(self, do: str, only: int | None = None, **arguments: Any) -> list[dict[str, Any]]:
        """Do so within the time limit.

        Raises JobError, with the last line of its log, when a rank has ended or is too slow.
        """
        self._deadline = time.monotonic() + self._limit_s
        return super().ask(do, only, **arguments)

    def _wait(self, rank: int, do: str) -> None:
        while not select.select([self._answers[rank]], [], [], 0.2)[0]:
            if time.monotonic() > self._deadline:
                raise JobError(f"rank {rank} gave no answer to {do!r} in {self._limit_s:g} s")
            # A rank may wait for ever for one that has ended.
            for other, process in enumerate(self._processes):
                if process.poll() not in (None, 0):
                    raise self._died(other)

    def _died(self, rank: int) -> JobError:
        with suppress(subprocess.TimeoutExpired):
            self._processes[rank].wait(10)
        # The others notice that one is gone, and may end before it is looked at.
        ended = [other for other, one in enumerate(self._processes) if one.poll()]
        rank = min(ended or [rank], key=lambda other: self._log(other).stat().st_mtime)
        code = self._processes[rank].poll()
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else "ended"
        return JobError(f"rank {rank} {how}: {last_line(self._log(rank))}")

    def end(self) -> None:
        """End all ranks."""
        for process in self._processes:
            process.kill()
        self._close()
        for process in self._processes:
            process.wait()
        self._processes.clear()


def last_line(log: Path) -> str:
    """Return the last line of a log that says something: of a traceback, what was raised."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
