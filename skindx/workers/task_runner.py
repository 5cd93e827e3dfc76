"""Runners of a build's tasks: this machine, or an existing Ray cluster.

A task is a function of the skindx package and plain arguments. It answers through files in the
dataset folder, written atomically, so a task that is run twice does no harm and a finished one is
never run again.

Plain Ray tasks, because each answers through a file of its own and needs no data frame. Daft 0.7
was tried: it gives a task whose worker died to the next worker without any limit (26 times in
90 s), so one image that kills its decoder would never end; Ray Data does the same.
"""

import re
import secrets
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from skindx.core.errors import JobError, UserError
from skindx.core.machine import cpu_count, go_offline, require_extra

Task = tuple[Any, ...]
"""The arguments of one task; they travel to another process."""


class TaskRunner(Protocol):
    """Runs tasks; the dataset does not depend on which runner it was."""

    screen_workers: int
    """Processes that one screening task may use."""
    driver_workers: int
    """Processes that the driver may use for what is too little to be shared."""

    def run(
        self,
        function: Callable[..., None],
        tasks: Sequence[Task],
        on_done: Callable[[Task], None] | None = None,
    ) -> list[Task]:
        """Run `function(*task)` for each task; return those that end their worker every time.

        What `function` raises is raised here. `on_done(task)` is called in the order in which
        tasks end.
        """


class LocalRunner:
    """This process, one task after another; a task uses the machine's cores itself."""

    def __init__(self, workers: int = 0) -> None:
        """`workers` = 0 takes all cores that this process may use."""
        self.screen_workers = self.driver_workers = workers or cpu_count()

    def run(
        self,
        function: Callable[..., None],
        tasks: Sequence[Task],
        on_done: Callable[[Task], None] | None = None,
    ) -> list[Task]:
        """Run the tasks in their order; none can end this process and be returned."""
        for task in tasks:
            function(*task)
            if on_done:
                on_done(task)
        return []


@contextmanager
def open_runner(cluster: str | None, dataset: Path, workers: int = 0) -> Iterator[TaskRunner]:
    """Yield the runner for one build: this machine, or the Ray cluster at address `cluster`.

    Raises UserError for a cluster that cannot be used.
    """
    if cluster is None:
        yield LocalRunner(workers)
        return
    with connected(cluster, dataset, workers or cpu_count()) as runner:
        yield runner


_PACKAGES = ("numpy", "opencv-python-headless", "pillow", "simplejpeg", "numba", "scrapy")
"""Packages that, with skindx, decide what is fetched, what is sound, and its hashes."""

_ANSWER_S = 120.0


Question = Callable[[str, Sequence[str]], tuple[str, str, dict[str, str]]]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts that a worker, or the driver, reports of itself."""

    host: str
    read: str
    """Content of a file that it read from the dataset folder; "" if it read none."""
    versions: dict[str, str]
    """Version by package; "" for a package that is not installed."""


def check_workers(dataset: Path) -> int:
    """Ask a worker on every node of the connected cluster; return how many cores they have.

    Raises UserError for a cluster without cores, and for a worker that cannot do the work.
    """
    ask = _question()
    there = dataset.exists()
    dataset.mkdir(parents=True, exist_ok=True)
    beacon = dataset.absolute() / f".cluster-{secrets.token_hex(8)}"
    try:
        beacon.write_text(secrets.token_hex(8), encoding="utf-8")
        answers = _ask_all(ask, str(beacon))
        compare_nodes(NodeFacts(*ask(str(beacon), _PACKAGES)), answers, dataset)
    finally:
        beacon.unlink(missing_ok=True)
        if not there:
            dataset.rmdir()
    cores = int(sum(_alive().values()))
    if not cores:
        raise UserError(
            "no machine of the Ray cluster has a free core; add a machine with `ray start`."
        )
    return cores


def check_alive() -> None:
    """Raise JobError when the connected cluster has no worker with a core any more."""
    if not _alive():
        raise JobError(
            "no machine of the Ray cluster has a core left; start one with `ray start` and run "
            "the same command again, which continues from the finished parts."
        )


def _ask_all(ask: Question, beacon: str) -> list[NodeFacts]:
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(num_cpus=0, max_retries=2)(ask)
    pending = {}
    for node in _alive():
        there = remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        pending[node] = there.remote(beacon, _PACKAGES)
    answers = []
    for node, ref in pending.items():
        try:
            answers.append(NodeFacts(*ray.get(ref, timeout=_ANSWER_S)))
        except RayError as error:
            if node in _alive():  # else it has died meanwhile, and will not be asked to work
                detail = " ".join(str(error).split())[-200:]
                raise UserError(
                    f"a machine of the Ray cluster does not answer ({detail}); find it with `ray "
                    "status`, restart it and run the same command again."
                ) from None
    return answers


def _alive() -> dict[str, float]:
    """Return the cores of each node that can work."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    cores = {node["NodeID"]: float(node["Resources"].get("CPU", 0)) for node in nodes}
    return {node: count for node, count in cores.items() if count}


def compare_nodes(driver: NodeFacts, answers: Sequence[NodeFacts], dataset: Path) -> None:
    """Raise UserError for the first worker that cannot do the driver's work to the byte."""
    for answer in answers:
        for name, version in driver.versions.items():
            theirs = answer.versions[name]
            if theirs != version:
                raise UserError(
                    f"the machine {answer.host} has {name} {theirs or '(none)'}, but this machine "
                    f"has {version or '(none)'}; install the same version on both, because "
                    "otherwise the dataset would depend on the machine."
                )
        if answer.read != driver.read:
            raise UserError(
                f"the machine {answer.host} cannot see {dataset.absolute()}; set --out to a "
                "folder on storage that all machines share under the same path."
            )


def _question() -> Question:
    # A nested function travels as code: it answers also where skindx is not installed.
    def answer(beacon: str, packages: Sequence[str]) -> tuple[str, str, dict[str, str]]:
        import importlib.metadata
        import pathlib
        import socket

        versions = {}
        try:
            import skindx

            versions["skindx"] = skindx.__version__
        except ImportError:
            versions["skindx"] = ""
        for name in packages:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                versions[name] = ""
        try:
            read = pathlib.Path(beacon).read_text(encoding="utf-8")
        except OSError:
            read = ""
        return socket.gethostname(), read, versions

    return answer


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
            f"--cluster {address}: no Ray cluster answers at this address ({detail}); start one "
            "with `ray start --head`, and give --cluster auto on one of its machines."
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
            f"--cluster {address}: nothing answers at this address ({error}); give the address "
            "that `ray start --head` printed, or --cluster auto on a machine of the cluster."
        ) from None
