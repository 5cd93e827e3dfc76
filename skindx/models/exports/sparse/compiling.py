"""The kernel in C++: compiled for this processor at first use, then read from the user's cache."""

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from skindx.models.exports.processor import cpu_flags
from skindx.system import cache_folder

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("convolution.cpp")
PORTABLE = "portable"
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread")
_SETS: dict[str, tuple[str, ...]] = {
    "avx512": ("avx512f", "avx2", "fma", "popcnt"),
    "avx2": ("avx2", "fma", "popcnt"),
    PORTABLE: (),
}
"""Instruction sets, the fastest first: the processor's flags they need, as the compiler's."""
_WAIT_S = 300.0
# A child of its own: where an instruction is missing, as under some emulators, it dies of it.
_CHECK = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).check())"


@dataclass(frozen=True)
class Kernel:
    """The compiled kernel, and the instruction set that it uses."""

    library: ctypes.CDLL
    instructions: str


def compiler() -> str:
    """Return the compiler that CXX names, or g++ or clang++; empty where there is none."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    return ""


def instruction_sets() -> list[str]:
    """Return the instruction sets that the processor says it has, the fastest first."""
    flags = cpu_flags()
    return [name for name, needed in _SETS.items() if flags.issuperset(needed)]


@cache
def kernel() -> Kernel | None:
    """Return the kernel; None, and a line in the log, where it cannot be had.

    A kernel whose instructions fail here, as under some emulators, gives way to the portable one.
    """
    program = compiler()
    if not program:
        log.info("no C++ compiler: convolutions stay dense")
        return None
    for name in instruction_sets():
        try:
            if found := _loaded(program, name):
                return Kernel(found, name)
            log.info("the sparse convolution for %s fails its check on this processor", name)
        except (OSError, subprocess.SubprocessError) as error:
            log.info("the sparse convolution cannot be compiled for %s: %s", name, error)
    return None


def kernel_state() -> tuple[bool, str]:
    """Return whether zeros can be skipped here, and in words how; nothing is compiled."""
    program = compiler()
    if not program:
        return False, "no C++ compiler: convolutions stay dense"
    said: list[str] = []
    try:
        for name in instruction_sets():
            file = cached_file(program, name)
            if not _failed(file).exists():
                state = "compiled" if file.exists() else "to be compiled at first use"
                others = sum(1 for other in file.parent.glob("convolution-*.so") if other != file)
                beside = f", {others} in the cache for other versions or processors"
                return True, "; ".join([*said, f"{name}, {state}{beside if others else ''}"])
            said.append(f"{name} fails its check on this processor")
    except (OSError, subprocess.SubprocessError) as error:
        return False, f"{program} does not run ({error}): convolutions stay dense"
    return False, "; ".join([*said, "convolutions stay dense"])


def kernel_digest() -> str:
    """Return what changes when another kernel would compute: its source and instruction set."""
    found = kernel()
    name = found.instructions if found else "none"
    return hashlib.sha256(SOURCE.read_bytes() + name.encode()).hexdigest()[:32]


def cached_file(program: str, instructions: str) -> Path:
    """Return where the kernel lies once it is compiled.

    Its name holds a hash of the source, the flags, the compiler and the processor's instruction
    sets: another machine with the same home, or another version, compiles its own.
    """
    version = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=True, timeout=_WAIT_S
    ).stdout
    source = SOURCE.read_text(encoding="utf-8")
    parts = (source, *_FLAGS, instructions, version, *sorted(cpu_flags()))
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return cache_folder() / "native" / f"convolution-{digest}.so"


def _loaded(program: str, instructions: str) -> ctypes.CDLL | None:
    file = cached_file(program, instructions)
    if _failed(file).exists():
        return None
    if not file.exists() and not _compile(program, instructions, file):
        return None
    try:
        return ctypes.CDLL(str(file))
    except OSError:  # damaged in the cache
        file.unlink()
        return ctypes.CDLL(str(file)) if _compile(program, instructions, file) else None


def _compile(program: str, instructions: str, file: Path) -> bool:
    """Compile into `file`; False, and a mark in its place, where the result fails its check."""
    file.parent.mkdir(parents=True, exist_ok=True)
    options = [f"-m{flag}" for flag in _SETS[instructions]]
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        subprocess.run(
            [program, *_FLAGS, *options, "-o", str(made), str(SOURCE)],
            capture_output=True,
            check=True,
            timeout=_WAIT_S,
        )
        checked = subprocess.run(
            [sys.executable, "-I", "-c", _CHECK, str(made)],
            capture_output=True,
            check=False,
            timeout=_WAIT_S,
        )
        if checked.returncode:
            _failed(file).touch()
            return False
        made.replace(file)
    return True


def _failed(file: Path) -> Path:
    return file.with_suffix(".failed")
