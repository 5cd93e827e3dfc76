"""A measurement: candidates timed in turns, and where it was made (bundle, data, versions)."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import skindx

_PACKAGES = ("torch", "torchvision", "timm", "ultralytics", "numpy")


@dataclass(frozen=True, slots=True)
class MeasurementOrigin:
    """The subject, the input and the time of a measurement."""

    bundle: str
    dataset: str
    manifest_sha256: str
    split: str
    seed: int
    date: str
    """UTC, ISO 8601."""
    hardware: str
    versions: dict[str, str]
    taxonomy_review: str
    bundle_digest: str = ""
    """SHA-256 of the bundle's index as it was measured; empty for what is no bundle."""
    use: str = ""
    """What the bundle may be used for and what it is not for, in sentences; empty: not stated."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without `use` where nothing is stated."""
        return {key: value for key, value in asdict(self).items() if key != "use" or value}


def hardware() -> str:
    """Return the processor and its cores, and the GPU that torch sees."""
    described = f"{cpu_model()}, {os.cpu_count()} cores"
    # A predictor that did not load torch ran on no GPU, so there is none to name.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        described += f", {torch.cuda.get_device_name()}"
    return described


def cpu_model() -> str:
    """Return what the processor calls itself, or its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def versions(packages: Iterable[str] = _PACKAGES) -> dict[str, str]:
    """Return the versions of Python, skindx and packages, as far as they are installed."""
    installed = {"skindx": skindx.__version__, "python": platform.python_version()}
    for name in packages:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def commit() -> str:
    """Return the commit of this checkout, or the one recorded in the wheel; empty: unknown.

    A checkout with changes has `-dirty` behind its commit.
    """
    checkout = Path(skindx.__file__).parents[1]
    if (checkout / ".git").exists():
        return _described(checkout)
    try:
        recorded = metadata.distribution("skindx").read_text("extra_metadata/commit.txt")
    except metadata.PackageNotFoundError:
        return ""
    return (recorded or "").strip()


def _described(checkout: Path) -> str:
    command = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(
            ["git", "-C", checkout, *command], capture_output=True, text=True, check=False
        )
    except OSError:  # git is not installed
        return ""
    return done.stdout.strip()


Name = TypeVar("Name", bound=str)


def interleave(
    candidates: Mapping[Name, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] | None = None,
) -> dict[Name, list[float]]:
    """Time every candidate once a round and return their seconds, `rounds` each.

    A slow minute of the machine then hits all of them, and the order turns by one each round so
    that no candidate always follows the same one. `warmup` rounds come first and are not timed.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in candidates}
    for taken in timed_rounds(candidates, rounds, warmup, clock):
        for name, took in taken.items():
            seconds[name].append(took)
    return seconds


def timed_rounds(
    candidates: Mapping[Name, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] | None = None,
) -> Iterator[dict[Name, float]]:
    """Yield the seconds of every candidate in each round of `interleave`."""
    clock = clock or time.perf_counter
    names = list(candidates)
    for turn in range(-warmup, rounds):
        first = turn % len(names)
        taken: dict[Name, float] = {}
        for name in names[first:] + names[:first]:
            start = clock()
            candidates[name]()
            taken[name] = clock() - start
        if turn >= 0:
            yield taken


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute on so many threads in the block; a server's workers use one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
