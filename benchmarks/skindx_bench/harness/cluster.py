"""The ranks of the exchange bench: one process each in the namespaces of a lab."""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from skindx.core.errors import JobError
from skindx.training.deepspeed.ranks import accelerator_variables
from skindx.workers.worker_process import module_command
from skindx_bench.harness.netlab import INTERFACE, NetLab

WORKER = "skindx_bench.cluster.exchange_rank"
_LAUNCHER = "skindx_bench.harness.launcher"
_ENDING_S = 60.0
_PORT = "29500"  # a namespace has ports of its own


class EmulatedCluster:
    """Ranks that answer commands; neighbouring ranks share a node."""

    def __init__(
        self, lab: NetLab, ranks: int, job: Mapping[str, Any], module: str = WORKER
    ) -> None:
        """Give the rank's `job` to each of `ranks` processes of a module, from `with` on."""
        self.lab, self.ranks, self._job, self._module = lab, ranks, dict(job), module
        self._codes: dict[int, int] = {}

    def __enter__(self) -> Self:
        self._launch()
        try:
            self._send(self._job, range(self.ranks))
        except BaseException:
            self._end()
            raise
        return self

    def _launch(self) -> None:
        """Start the process that forks the ranks."""
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

    def _environment(self, rank: int) -> dict[str, str]:
        return {
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
            try:
                self._commands[rank].write(line)
                self._commands[rank].flush()
            except BrokenPipeError:
                raise self._died(rank) from None

    def _answer(self, rank: int) -> dict[str, Any]:
        line = self._answers[rank].readline()
        if not line:
            raise self._died(rank)
        answer: dict[str, Any] = json.loads(line)
        return answer

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
        assert self._launcher.stdout is not None
        ready, _, _ = select.select([self._launcher.stdout], [], [], max(0, timeout_s))
        # A line is far shorter than what a pipe takes at once, so none comes in parts.
        lines = os.read(self._launcher.stdout.fileno(), 65536).splitlines() if ready else []
        for line in lines:
            ended = json.loads(line)
            self._codes[ended["rank"]] = ended["code"]
        return bool(lines)

    def _end(self) -> None:
        self._launcher.kill()
        for answers in self._answers:
            answers.read()  # until the rank is gone
        for stream in (*self._commands, *self._answers):
            with suppress(BrokenPipeError):
                stream.close()
        self._launcher.communicate()

    def __exit__(self, *_: object) -> None:
        self._end()
