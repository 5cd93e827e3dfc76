"""The kernel in C++: compiled for this processor at first use, then read from the user's cache."""

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from skindx.models.exports.runtimes import cpu_flags
from skindx.system import cache_folder

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("convolution.cpp")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread")
_WAIT_S = 300.0


def compiler() -> str:
    """Return the compiler that CXX names, or g++ or clang++; empty where there is none."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    return ""


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernel; None, and a line in the log, where it cannot be had.

    The cache's name holds a hash of the source, the flags, the compiler and the processor's
    instruction sets: another machine with the same home compiles its own.
    """
    program = compiler()
    if not program:
        log.info("no C++ compiler: convolutions stay dense")
        return None
    try:
        file = _compiled(program)
        try:
            return ctypes.CDLL(str(file))
        except OSError:  # damaged in the cache
            file.unlink()
            return ctypes.CDLL(str(_compiled(program)))
    except (OSError, subprocess.SubprocessError) as error:
        log.info("the sparse convolution cannot be compiled: %s", error)
        return None


def _compiled(program: str) -> Path:
    version = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=True, timeout=_WAIT_S
    ).stdout
    parts = (SOURCE.read_text(encoding="utf-8"), *_FLAGS, version, *sorted(cpu_flags()))
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    file = cache_folder() / "native" / f"convolution-{digest}.so"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / file.name
            subprocess.run(
                [program, *_FLAGS, "-o", str(made), str(SOURCE)],
                capture_output=True,
                check=True,
                timeout=_WAIT_S,
            )
            made.replace(file)
    return file
