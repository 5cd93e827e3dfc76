"""What skindx takes on a disk: its core, each of its extras, the demo and the whole environment.

Sizes of the installed files with their bytecode, from the metadata of the packages; of an
installation for CPUs, where nothing of CUDA comes along, by leaving out what would not.
"""

import importlib.util
import re
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from skindx.core.settings_base import Settings
from skindx_bench.harness.result import Figure, Result

SMALLEST = ("extras=[data]",)

DEMO = ("data", "train", "detect", "serve")
"""What `make demo` installs."""

_CUDA_PACKAGES = re.compile(r"triton|cuda-.+|nvidia-(?!ml-py).+")
_CUDA_FILES = re.compile(r"torch/lib/lib\w*(cuda|nvrtc|nvshmem)\w*\.so")


class Config(Settings):
    """`extras` to measure; none: all of them."""

    extras: tuple[str, ...] = ()


def run(settings: Config) -> Result:
    """Add up the files of what is installed."""
    extras = settings.extras or tuple(
        name
        for name in metadata.metadata("skindx").get_all("Provides-Extra") or ()
        if name not in ("all", "app")
    )
    cuda_files_mb = (
        sum(size for name, size in _files("torch").items() if _CUDA_FILES.fullmatch(name)) / 1e6
    )
    core = packages(())
    chosen = {
        "core": core,
        **{f"core and {extra}": packages((extra,)) for extra in extras},
        "demo": packages(DEMO),
        "everything": packages(("all",)),
    }
    figures = {}
    for name, needed in chosen.items():
        mb = sum(map(size_mb, needed))
        dropped_mb = sum(size_mb(one) for one in needed if _CUDA_PACKAGES.fullmatch(one))
        cpu_mb = mb - dropped_mb - cuda_files_mb
        figures[f"{name}, CUDA"] = Figure(mb, "MB", 1, (mb, mb))
        figures[f"{name}, CPU"] = Figure(cpu_mb, "MB", 1, (cpu_mb, cpu_mb))
    parts = {
        name: {"packages": len(needed), "absent": sorted(n for n in needed if not _files(n))}
        for name, needed in chosen.items()
    }
    cuda = sorted(filter(_CUDA_PACKAGES.fullmatch, core))
    notes = (
        "Files and bytecode, in units of 10⁶ or 10⁹ bytes; without downloads and caches.",
        f"CPU: computed, without torch's libraries for CUDA and without {', '.join(cuda)}.",
    )
    return Result("install", figures, notes=notes, parts=parts, headings=("size", "the same"))


def packages(extras: Iterable[str]) -> frozenset[str]:
    """Return the names of what skindx with these extras needs here, skindx among them."""
    waiting = {("skindx", ""), *(("skindx", extra) for extra in extras)}
    needed: set[tuple[str, str]] = set()
    while waiting:
        needed.add(node := waiting.pop())
        name, extra = node
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, lines):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            child = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if child != "opencv-python":  # the headless one stands in for it
                waiting |= {(child, ""), *((child, more) for more in requirement.extras)} - needed
    return frozenset(name for name, _ in needed)


def size_mb(package: str) -> float:
    """Return the size of an installed package, bytecode included; 0 for an absent one."""
    return sum(_files(package).values()) / 1e6


@cache
def _files(package: str) -> dict[str, int]:
    """Return the bytes of each file; those of its bytecode are counted with a source."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return {}
    sizes = {}
    for file in files:
        if file.suffix == ".pyc":
            continue
        path = Path(str(file.locate()))
        both = (
            (path, Path(importlib.util.cache_from_source(str(path))))
            if path.suffix == ".py"
            else (path,)
        )
        sizes[str(file)] = sum(one.stat().st_size for one in both if one.is_file())
    return sizes
