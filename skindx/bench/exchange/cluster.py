"""The ranks of the exchange bench: one process each in the namespaces of a lab."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self

from skindx.bench.harness.netlab import INTERFACE, NetLab
from skindx.errors import JobError
from skindx.training.deepspeed.library import accelerator_variables

WORKER = "skindx.bench.exchange.worker"
_ENDING_S = 60.0
_PORT = "29500"  # a namespace has ports of its own


class Cluster:
    """Ranks that answer commands; neighbouring ranks share a node."""

    def __init__(
        self, lab: NetLab, ranks: int, job: Mapping[str, Any], module: str = WORKER
    ) -> None:
        """Give the rank's `job` to each of `ranks` processes of a module, from `with` on."""
        self.lab, self.ranks, self._job, self._module = lab, ranks, dict(job), module
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        try:
            for rank in range(self.ranks):
                self._processes.append(self._start(rank))
            self._send(self._job, range(self.ranks))
        except BaseException:
            self._end()
            raise
        return self

    def _start(self, rank: int) -> subprocess.Popen[str]:
        environment = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": "0",
            **accelerator_variables("cpu"),
            "MASTER_ADDR": self.lab.address(0),
            "MASTER_PORT": _PORT,
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # it warns that an address has no name
        }
        node = rank * len(self.lab.nodes) // self.ranks
        return subprocess.Popen(
            self.lab.command(node, sys.executable, "-m", self._module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, do: str, only: int | None = None, **arguments: Any) -> list[dict[str, Any]]:
        """Let all ranks, or `only` one, do something; return their answers in rank order.

        Raises JobError when a rank has ended.
        """
        ranks = range(self.ranks) if only is None else [only]
        self._send({"do": do, **arguments}, ranks)
        return [self._answer(rank) for rank in ranks]

    def slowest(self, do: str, **arguments: Any) -> float:
        """Let all ranks do something; return the seconds of the slowest."""
        return max(float(answer["seconds"]) for answer in self.ask(do, **arguments))

    def _send(self, message: Mapping[str, Any], ranks: Sequence[int]) -> None:
        line = json.dumps(message) + "\n"
        for rank in ranks:
            pipe = self._processes[rank].stdin
            assert pipe is not None
            try:
                pipe.write(line)
                pipe.flush()
            except BrokenPipeError:
                raise self._died(rank) from None

    def _answer(self, rank: int) -> dict[str, Any]:
        pipe = self._processes[rank].stdout
        assert pipe is not None
        line = pipe.readline()
        if not line:
            raise self._died(rank)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self, rank: int) -> JobError:
        try:
            code = self._processes[rank].wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            return JobError(f"rank {rank} of the emulated cluster answers no more; see above.")
        # The others notice that one is gone, and may end before it is looked at.
        killed = [n for n, process in enumerate(self._processes) if (process.poll() or 0) < 0]
        if killed:
            rank = killed[0]
            code = self._processes[rank].returncode
        how = f"ended with {code}; see its error above."
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}; see above."
        if code == -signal.SIGKILL:
            how = (
                "was killed by SIGKILL; out of memory is the most common reason: take fewer ranks "
                "or a smaller network."
            )
        return JobError(f"rank {rank} of the emulated cluster {how}")

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()

    def __exit__(self, *_: object) -> None:
        self._end()
