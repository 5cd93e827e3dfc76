"""Run a function on several real ranks; a worker's traceback comes back to the test.

Each rank is a process of its own, forked from a server that has imported all: a start takes a
fraction of a second instead of DeepSpeed's fifteen.
"""

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any
from unittest.mock import patch

from skindx.core.machine import free_port

PRELOADED = ["compiled", "preloaded"]


def forking() -> ForkServerContext:
    """Return the context whose processes start from the server, which is running then."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    # What libraries read while they are imported is settled for all ranks.
    ranks_have = {
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with patch.dict(os.environ, ranks_have):
        forkserver.ensure_running()
    return context


def run_ranks(
    world: int,
    function: Callable[..., Any],
    *arguments: Any,
    timeout_s: float = 120,
    device: str = "cpu",
) -> list[Any]:
    """Call `function(*arguments)` in `world` processes and return their results in rank order.

    `function` is importable by name. Ranks on a GPU are new processes: CUDA survives no fork.
    Fails with the first worker's traceback, or after `timeout_s`, which counts from the
    first rank's start; no process outlives the call.
    """
    context: ForkServerContext | SpawnContext
    context = forking() if device == "cpu" else multiprocessing.get_context("spawn")
    port = free_port()
    workers = []
    for rank in range(world):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work, args=(rank, world, port, theirs, function, arguments), daemon=True
        )
        process.start()
        theirs.close()
        workers.append((process, ours))
    deadline = time.monotonic() + timeout_s
    try:
        results = _receive([pipe for _, pipe in workers], deadline)
        for process, _ in workers:
            process.join(max(1, deadline - time.monotonic()))
    finally:
        for process, _ in workers:
            if process.is_alive():
                process.kill()
    return results


def _receive(pipes: list[Connection], deadline: float) -> list[Any]:
    """Take answers as they come, so that the first rank to fail is the one that is told."""
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        open_pipes = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(open_pipes, max(0, deadline - time.monotonic()))
        if not ready:
            silent = [rank for rank in range(len(pipes)) if rank not in results]
            raise TimeoutError(f"ranks {silent} gave no answer in time")
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                worked, value = pipe.recv()
            except EOFError:
                raise RuntimeError(f"rank {rank} died without an answer") from None
            if not worked:
                raise AssertionError(f"rank {rank} failed:\n{value}")
            results[rank] = value
    return [results[rank] for rank in range(len(pipes))]


def _work(
    rank: int,
    world: int,
    port: int,
    pipe: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
    )
    try:
        pipe.send((True, function(*arguments)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
