"""Where a measurement comes from: bundle, data, machine, versions."""

import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import skindx

_PACKAGES = ("torch", "torchvision", "timm", "ultralytics", "numpy")


@dataclass(frozen=True, slots=True)
class Origin:
    """What was measured, on what, and when."""

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


def hardware() -> str:
    """Return the processor and its cores, and the GPU that torch sees."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        cpu = names[0] if names else cpu
    described = f"{cpu}, {os.cpu_count()} cores"
    # A predictor that did not load torch ran on no GPU, so there is none to name.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        described += f", {torch.cuda.get_device_name()}"
    return described


def versions() -> dict[str, str]:
    versions = {"skindx": skindx.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
