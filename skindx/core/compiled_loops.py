"""Loops compiled at first use: in C++ for this processor, or by numba; kept in the user's cache."""

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from skindx.core.machine import cache_folder, cpu_flags, python_command

log = logging.getLogger(__name__)

PORTABLE = "portable"
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread")
_SETS: dict[str, tuple[str, ...]] = {
    "avx512": ("avx512f", "avx512bw", "avx2", "fma", "popcnt"),
    "avx2": ("avx2", "fma", "popcnt"),
    PORTABLE: (),
}
"""Instruction sets, the fastest first: the processor's flags they need, as the compiler's."""
_WAIT_S = 300.0
# A child of its own: where an instruction is missing, as under some emulators, it dies of it.
_CHECK = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).check())"


@dataclass(frozen=True)
class CompiledKernel:
    """The compiled kernel, and the instruction set that it uses."""

    library: ctypes.CDLL
    instructions: str


def compiler() -> str:
    """Return the compiler that CXX names, or g++ or clang++; empty where there is none."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++"):
        if name and (program := shutil.which(name)):
            return program
    return ""


def instruction_sets() -> list[str]:
    """Return the instruction sets that the processor says it has, the fastest first."""
    flags = cpu_flags()
    return [name for name, needed in _SETS.items() if flags.issuperset(needed)]


@dataclass(frozen=True)
class CppSource:
    """A C++ file that lies beside its user, and exports `int check()`: 0 if it computes right."""

    file: Path
    name: str
    """What it computes, for messages."""
    without: str
    """What happens where it cannot be compiled, for messages."""
    options: tuple[str, ...] = ()
    """Further options of the compiler."""

    @cache  # noqa: B019 (a source is a constant of its module)
    def kernel(self) -> CompiledKernel | None:
        """Return the kernel; None, and a line in the log, where it cannot be had.

        A kernel whose instructions fail here, as under some emulators, gives way to the portable
        one.
        """
        program = compiler()
        if not program:
            log.info("no C++ compiler: %s", self.without)
            return None
        for name in instruction_sets():
            try:
                if library := self._loaded(program, name):
                    return CompiledKernel(library, name)
                log.info("the %s for %s fails its check on this processor", self.name, name)
            except (OSError, subprocess.SubprocessError) as error:
                log.info("the %s cannot be compiled for %s: %s", self.name, name, error)
        return None

    def state(self) -> tuple[bool, str]:
        """Return whether the kernel can be had here, and in words how; nothing is compiled."""
        program = compiler()
        if not program:
            return False, f"no C++ compiler: {self.without}"
        failed: list[str] = []
        try:
            for name in instruction_sets():
                file = self.cached_file(program, name)
                if not _failed(file).exists():
                    state = "compiled" if file.exists() else "to be compiled at first use"
                    alike = file.parent.glob(f"{self.file.stem}-*.so")
                    other_builds = sum(1 for other in alike if other != file)
                    beside = f", {other_builds} in the cache for other versions or processors"
                    return True, "; ".join(
                        [*failed, f"{name}, {state}{beside if other_builds else ''}"]
                    )
                failed.append(f"{name} fails its check on this processor")
        except (OSError, subprocess.SubprocessError) as error:
            return False, f"{program} does not run ({error}): {self.without}"
        return False, "; ".join([*failed, self.without])

    def digest(self) -> str:
        """Return what changes when another kernel would compute: source and instruction set."""
        kernel = self.kernel()
        name = kernel.instructions if kernel else "none"
        return hashlib.sha256(self.file.read_bytes() + name.encode()).hexdigest()[:32]

    def cached_file(self, program: str, instructions: str) -> Path:
        """Return where the kernel lies once it is compiled.

        Its name holds a hash of the source, the options, the compiler and the processor's
        instruction sets: another machine with the same home, or another version, compiles its own.
        """
        version = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            timeout=_WAIT_S,
        ).stdout
        source = self.file.read_text(encoding="utf-8")
        options = self._options(instructions)
        parts = (source, *options, instructions, version, *sorted(cpu_flags()))
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
        return cache_folder() / "native" / f"{self.file.stem}-{digest}.so"

    def _options(self, instructions: str) -> list[str]:
        return [*_FLAGS, *self.options, *(f"-m{flag}" for flag in _SETS[instructions])]

    def _loaded(self, program: str, instructions: str) -> ctypes.CDLL | None:
        file = self.cached_file(program, instructions)
        if _failed(file).exists():
            return None
        if not file.exists() and not self._compile(program, instructions, file):
            return None
        try:
            return ctypes.CDLL(str(file))
        except OSError:  # damaged in the cache
            file.unlink()
            made = self._compile(program, instructions, file)
            return ctypes.CDLL(str(file)) if made else None

    def _compile(self, program: str, instructions: str, file: Path) -> bool:
        """Compile into `file`; False, and a mark in its place, where the result fails its check."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / file.name
            subprocess.run(
                [program, *self._options(instructions), "-o", str(made), str(self.file)],
                capture_output=True,
                check=True,
                timeout=_WAIT_S,
            )
            checked = subprocess.run(
                python_command("-c", _CHECK, str(made), isolated=True),
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


F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile by numba on the first call; kept beside the source or in the user's cache."""
    import numba

    try:
        return cast(F, numba.njit(function, cache=True, nogil=True, error_model="numpy"))
    except RuntimeError:  # neither folder can be written to
        return cast(F, numba.njit(function, nogil=True, error_model="numpy"))
