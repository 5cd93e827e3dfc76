"""Checks of a cluster's workers before a build starts: the folder, the same packages."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from skindx.core.errors import JobError, UserError

_PACKAGES = ("numpy", "opencv-python-headless", "pillow", "simplejpeg", "numba", "scrapy")
"""With skindx itself they decide what is fetched, what is sound, and its hashes."""

_ANSWER_S = 120.0


Question = Callable[[str, Sequence[str]], tuple[str, str, dict[str, str]]]


@dataclass(frozen=True, slots=True)
class Answer:
    """Facts that a worker, or the driver, reports of itself."""

    host: str
    read: str
    """Content that it read from the dataset folder, "" if none."""
    versions: dict[str, str]
    """By package, "" for one that is not installed."""


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
        compare(Answer(*ask(str(beacon), _PACKAGES)), answers, dataset)
    finally:
        beacon.unlink(missing_ok=True)
        if not there:
            dataset.rmdir()
    cores = int(sum(_alive().values()))
    if not cores:
        raise UserError("the cluster has no worker with a core; add one with `ray start`.")
    return cores


def check_alive() -> None:
    """Raise JobError when the connected cluster has no worker with a core any more."""
    if not _alive():
        raise JobError(
            "the cluster has no worker with a core left; start one with `ray start` and run the "
            "same command again, which goes on with what is finished."
        )


def _ask_all(ask: Question, beacon: str) -> list[Answer]:
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(num_cpus=0, max_retries=2)(ask)
    asked = {}
    for node in _alive():
        there = remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        asked[node] = there.remote(beacon, _PACKAGES)
    answers = []
    for node, ref in asked.items():
        try:
            answers.append(Answer(*ray.get(ref, timeout=_ANSWER_S)))
        except RayError as error:
            if node in _alive():  # else it has died meanwhile, and will not be asked to work
                detail = " ".join(str(error).split())[-200:]
                raise UserError(
                    f"a worker of the cluster does not answer ({detail}); look at `ray status`."
                ) from None
    return answers


def _alive() -> dict[str, float]:
    """Return the cores of each node that can work."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    cores = {node["NodeID"]: float(node["Resources"].get("CPU", 0)) for node in nodes}
    return {node: count for node, count in cores.items() if count}


def compare(own: Answer, answers: Sequence[Answer], dataset: Path) -> None:
    """Raise UserError for the first worker that cannot do the driver's work to the byte."""
    for answer in answers:
        for name, version in own.versions.items():
            theirs = answer.versions[name]
            if theirs != version:
                raise UserError(
                    f"the worker {answer.host} has {name} {theirs or '(none)'} and this machine "
                    f"{version or '(none)'}; install the same skindx and packages on both, else "
                    f"the dataset would depend on who did the work."
                )
        if answer.read != own.read:
            raise UserError(
                f"the worker {answer.host} does not see {dataset.absolute()}; put --out on a "
                f"file system that all machines of the cluster share, under the same path."
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
