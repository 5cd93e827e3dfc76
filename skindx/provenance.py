"""Provenance of a measurement: bundle, data, machine, versions."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import skindx

_PACKAGES = ("torch", "torchvision", "timm", "ultralytics", "numpy")


@dataclass(frozen=True, slots=True)
class Origin:
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
    found = {"skindx": skindx.__version__, "python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


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
