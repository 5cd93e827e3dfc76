"""Ranks of a training that meet with accidents."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ranks import forking, free_port

from skindx.training.config.run import TrainSettings

LIMIT_S = 120

WRITING = " while it writes"
"""The checkpoint of the step before is on its way to a slow disk."""


@dataclass(frozen=True)
class Accident:
    """What happens to one rank (`None`: to each) before a step of the whole training is counted."""

    kind: str
    step: int
    rank: int | None = 1


def start(
    world: int, run: Path, dataset: Path, settings: TrainSettings, accident: Accident | None = None
) -> list[Any]:
    """Start the ranks of a training; they write what they print to RUN-rank-R.log."""
    context, port = forking(), free_port()
    run.mkdir(parents=True, exist_ok=True)
    settings.save(run / "train.yaml")
    processes = [
        context.Process(target=_rank, args=(rank, world, port, run, dataset, accident))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    return processes


def wait(processes: list[Any]) -> list[int]:
    """Return the exit codes; fails when the ranks hang."""
    deadline = time.monotonic() + LIMIT_S
    try:
        for process in processes:
            process.join(max(0, deadline - time.monotonic()))
        codes = [process.exitcode for process in processes]
        assert None not in codes, f"ranks hang: {codes}"
        return codes
    finally:
        for process in processes:
            process.kill()


def printed(run: Path, rank: int) -> str:
    """Return what a rank of the last start printed."""
    return log_of(run, rank).read_text()


def log_of(run: Path, rank: int) -> Path:
    return run.with_name(f"{run.name}-rank-{rank}.log")


def _rank(
    rank: int, world: int, port: int, run: Path, dataset: Path, accident: Accident | None
) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    log = os.open(log_of(run, rank), os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from skindx.training import jobs

    if accident and accident.rank in (None, rank):
        _prepare(accident)
    code = jobs.main([str(run), str(dataset)])
    os._exit(code)  # what the server imported must not be torn down


def _prepare(accident: Accident) -> None:
    """Let the accident happen when the loss of its step is known: the weights are untouched."""
    from skindx.training import state
    from skindx.training.checkpoint import rank_parts

    made, seen = state.step_guard, [0]

    def with_accident(*given: Any) -> Any:
        guard = made(*given)
        check = guard.check

        def checked(loss: torch.Tensor) -> float | None:
            seen[0] += 1
            happens = seen[0] == accident.step or (accident.kind == "always nan")
            return check(_ACCIDENTS[accident.kind](loss) if happens else loss)

        guard.check = checked
        return guard

    state.step_guard = with_accident
    if accident.kind.endswith(WRITING):
        flush = rank_parts.flush

        def slow(path: Path) -> None:
            time.sleep(0.5 if seen[0] >= accident.step - 1 else 0)
            flush(path)

        rank_parts.flush = slow


def _kill(loss: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return loss


def _terminate(loss: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.5)  # the listening thread
    return loss


def _nan(loss: torch.Tensor) -> torch.Tensor:
    return loss * float("nan")


_ACCIDENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "kill": _kill,
    "terminate": _terminate,
    f"kill{WRITING}": _kill,
    f"terminate{WRITING}": _terminate,
    "nan": _nan,
    "always nan": _nan,
}
