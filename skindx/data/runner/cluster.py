"""A Ray cluster as the runner of a build: tasks of one core, tried again a fixed number of times.

Plain Ray tasks, because each answers through a file of its own and needs no data frame. Daft 0.7
was tried: it gives a task whose worker died to the next worker without any limit (26 times in
90 s), so one image that kills its decoder would never end; Ray Data does the same.
"""

import re
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skindx.core.errors import UserError
from skindx.core.machine import go_offline, require_extra
from skindx.data.runner.task_runner import Task
from skindx.data.runner.workers import check_alive, check_workers

ATTEMPTS = 3
"""How often a task is given to a worker that dies under it, before the task is to blame."""

_IN_FLIGHT = 4
"""Tasks handed over for each core: enough to keep it busy, few enough to hold in memory."""
_CONNECT_S = 5.0
_LOOK_S = 10.0
"""Seconds without a finished task after which the driver checks that there are workers."""


class RayRunner:
    """The workers of a connected Ray cluster; `connected` makes it."""

    screen_workers = 1

    def __init__(self, workers: int, driver_workers: int) -> None:
        """`workers`: how many tasks of one core the cluster runs at once."""
        self.fetch_parts = workers
        self.driver_workers = driver_workers
        self._in_flight = _IN_FLIGHT * workers

    def run(
        self,
        function: Callable[..., None],
        tasks: Sequence[Task],
        on_done: Callable[[Task], None] | None = None,
    ) -> list[Task]:
        """Run the tasks on all workers at once; see `TaskRunner.run`.

        Raises JobError when no worker is left: Ray itself would wait for another one for ever.
        """
        import ray
        from ray.exceptions import RayError, RayTaskError

        # Ray's own retries have no limit where the memory runs out; these have.
        remote = ray.remote(num_cpus=1, max_retries=0)(_work)
        waiting = deque(range(len(tasks)))
        running: dict[Any, int] = {}
        attempts: Counter[int] = Counter()
        lost: list[int] = []
        while waiting or running:
            while waiting and len(running) < self._in_flight:
                at = waiting.popleft()
                running[remote.remote(function, tasks[at])] = at
            ended, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_S)
            if not ended:
                check_alive()
            for ref in ended:
                at = running.pop(ref)
                try:
                    ray.get(ref)
                except RayTaskError as error:
                    raise error.cause from None
                except RayError:
                    attempts[at] += 1
                    (lost if attempts[at] == ATTEMPTS else waiting).append(at)
                else:
                    if on_done:
                        on_done(tasks[at])
        return [tasks[at] for at in sorted(lost)]


def _work(function: Callable[..., None], task: Task) -> None:
    go_offline()
    function(*task)


@contextmanager
def connected(address: str, dataset: Path, driver_workers: int = 1) -> Iterator[RayRunner]:
    """Connect to a running Ray cluster whose workers all see `dataset`; disconnect afterwards.

    `address` is auto (the cluster this machine belongs to), HOST:PORT, or ray://HOST:PORT. Raises
    UserError for a cluster that is not there or cannot do the work.
    """
    _check_address(address)
    import ray

    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, SystemExit) as error:
        detail = " ".join(str(error).split())
        raise UserError(
            f"--cluster {address}: no Ray cluster can be joined there ({detail}); start one with "
            f"`ray start --head`, and give auto on one of its machines."
        ) from None
    try:
        yield RayRunner(check_workers(dataset), driver_workers)
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    require_extra("cluster", "ray", purpose="--cluster")
    if address == "auto":
        return
    if not re.fullmatch(r"(ray://)?[^\s:/@]+:[1-9]\d{0,4}", address):
        raise UserError(f"--cluster {address!r} must be auto, HOST:PORT or ray://HOST:PORT.")
    # Ray itself would look for a wrong address for two minutes.
    where = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        assert where.hostname
        assert where.port
        socket.create_connection((where.hostname, where.port), _CONNECT_S).close()
    except OSError as error:
        raise UserError(
            f"--cluster {address}: nothing answers there ({error}); give the address that "
            f"`ray start --head` printed, or auto on one of the cluster's machines."
        ) from None
