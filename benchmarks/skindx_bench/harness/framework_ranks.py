"""The ranks of one framework: a process each, in the namespaces of an emulated cluster."""

import json
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from skindx.core.errors import JobError
from skindx.core.machine import ONE_THREAD
from skindx_bench.harness.netlab import INTERFACE, NetLab

FIRST_PORT = 29500


class Ranks:
    """Processes that answer commands, from `with` on; all are gone afterwards."""

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
        self.ranks, self._lab, self._command, self._job = ranks, lab, list(command), dict(job)
        self._logs, self._port, self._limit_s = logs, port, limit_s
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        try:
            for rank in range(self.ranks):
                self._processes.append(self._start(rank))
            self._send(self._job, range(self.ranks))
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _log(self, rank: int) -> Path:
        return self._logs / f"rank{rank}.log"

    def _start(self, rank: int) -> "subprocess.Popen[str]":
        address = self._lab.address(rank)
        # The host's name, which some frameworks look up to find their own address, is no name here.
        script = f"hostname {address} && exec {shlex.join(self._command)}"
        inside = self._lab.command(rank, "unshare", "--uts", "/bin/sh", "-c", script)
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
        workers = [f"{self._lab.address(other)}:{self._port}" for other in range(self.ranks)]
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": "0",
            "NODE_RANK": str(rank),
            "MASTER_ADDR": self._lab.address(0),
            "MASTER_PORT": str(self._port),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "WORKERS": json.dumps(workers),
            "DS_ACCELERATOR": "cpu",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "TF_CPP_MIN_LOG_LEVEL": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONUNBUFFERED": "1",
        }

    def ask(self, do: str, only: int | None = None, **arguments: Any) -> list[dict[str, Any]]:
        """Let all ranks, or `only` one, do something; return their answers in rank order.

        Raises JobError, with the last line of its log, when a rank has ended or is too slow.
        """
        ranks = range(self.ranks) if only is None else [only]
        self._send({"do": do, **arguments}, ranks)
        deadline = time.monotonic() + self._limit_s
        return [self._answer(rank, do, deadline) for rank in ranks]

    def _send(self, message: Mapping[str, Any], ranks: Sequence[int]) -> None:
        line = json.dumps(message) + "\n"
        for rank in ranks:
            process = self._processes[rank]
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:
                raise self._died(rank) from None

    def _answer(self, rank: int, do: str, deadline: float) -> dict[str, Any]:
        stream = self._processes[rank].stdout
        assert stream is not None
        while not select.select([stream], [], [], 0.2)[0]:
            if time.monotonic() > deadline:
                raise JobError(f"rank {rank} gave no answer to {do!r} in {self._limit_s:g} s")
            # A rank may wait for ever for one that has ended.
            for other, process in enumerate(self._processes):
                if process.poll() not in (None, 0):
                    raise self._died(other)
        line = stream.readline()
        if not line:
            raise self._died(rank)
        answer: dict[str, Any] = json.loads(line)
        return answer

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
        for process in self._processes:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()
            process.wait()
        self._processes.clear()


def last_line(log: Path) -> str:
    """Return the last line of a log that says something: of a traceback, what was raised."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
