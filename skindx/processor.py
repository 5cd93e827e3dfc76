"""The processor of this machine: its instruction sets, what its speed depends on, a fingerprint."""

import hashlib
import json
from functools import cache
from importlib import metadata
from pathlib import Path

from skindx.system import cpu_count

CPU_INFO = Path("/proc/cpuinfo")


@cache
def cpu_flags() -> frozenset[str]:
    """Return the names of the CPU's instruction sets as Linux lists them; none on other systems."""
    return frozenset(_first("flags").split())


@cache
def cpu_vendor() -> str:
    """Return the maker's name as Linux says it (GenuineIntel, AuthenticAMD); "" where it does not.

    It is "" on other systems and on processors that are not x86.
    """
    return _first("vendor_id")


def _first(name: str) -> str:
    """Return the value of a line of the first core; "" where there is none."""
    if not CPU_INFO.is_file():
        return ""
    for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def processor_facts() -> list[object]:
    """Return the facts on which the speed of a machine depends, without its instruction sets."""
    text = CPU_INFO.read_text(encoding="utf-8", errors="replace") if CPU_INFO.is_file() else ""
    model = [line for line in text.splitlines() if line.startswith("model name")][:1]
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:  # none, or one that was built in place
        torch = ""
    return [model, cpu_count(), torch]


def machine_fingerprint(*more: str) -> str:
    """Return what stands for this machine, in hexadecimal: what was timed holds where it is equal.

    It changes with the processor, the cores that this process may use, torch, and with `more`.
    """
    facts = [*processor_facts(), sorted(cpu_flags()), *more]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
