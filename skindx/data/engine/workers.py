"""What every worker of a cluster must have before a build starts: the folder, the same packages."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from skindx.errors import UserError

_PACKAGES = ("numpy", "opencv-python-headless", "pillow", "simplejpeg", "numba", "scrapy")
"""With skindx itself they decide what is fetched, what is sound, and its hashes."""

_ANSWER_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker, or the driver, says of itself."""

    host: str
    read: str
    """What it read from the dataset folder, "" if nothing."""
    versions: dict[str, str]
    """By package, "" for one that is not installed."""


def check_workers(node_ids: Sequence[str], dataset: Path) -> None:
    """Ask a worker on every node of the connected cluster. Raises UserError."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = _question()
    there = dataset.exists()
    dataset.mkdir(parents=True, exist_ok=True)
    beacon = dataset.absolute() / f".cluster-{secrets.token_hex(8)}"
    try:
        beacon.write_text(secrets.token_hex(8))
        remote = ray.remote(num_cpus=0, max_retries=2)(ask)
        nodes = [NodeAffinitySchedulingStrategy(node, soft=False) for node in node_ids]
        asked = [
            remote.options(scheduling_strategy=n).remote(str(beacon), _PACKAGES) for n in nodes
        ]
        answers = [Answer(*answer) for answer in ray.get(asked, timeout=_ANSWER_S)]
        own = Answer(*ask(str(beacon), _PACKAGES))
    except ray.exceptions.RayError as error:
        last = " ".join(str(error).split())[-200:]
        raise UserError(
            f"a worker of the cluster does not answer ({last}); look at `ray status`."
        ) from None
    finally:
        beacon.unlink(missing_ok=True)
        if not there:
            dataset.rmdir()
    compare(own, answers, dataset)


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


def _question() -> Callable[[str, Sequence[str]], tuple[str, str, dict[str, str]]]:
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
