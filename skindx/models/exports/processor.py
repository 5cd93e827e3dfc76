"""The processor of this machine: its instruction sets, and the facts on which its speed depends."""

from functools import cache
from importlib import metadata
from pathlib import Path

from skindx.system import cpu_count

CPU_INFO = Path("/proc/cpuinfo")


@cache
def cpu_flags() -> frozenset[str]:
    """Return the names of the CPU's instruction sets as Linux lists them; none on other systems."""
    if not CPU_INFO.is_file():
        return frozenset()
    for line in CPU_INFO.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def processor_facts() -> list[object]:
    """Return the facts on which the speed of a machine depends, without its instruction sets."""
    text = CPU_INFO.read_text(encoding="utf-8", errors="replace") if CPU_INFO.is_file() else ""
    model = [line for line in text.splitlines() if line.startswith("model name")][:1]
    return [model, cpu_count(), metadata.version("torch")]
