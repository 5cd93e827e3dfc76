"""Joules of this machine while something runs: RAPL for processors, NVML for NVIDIA's GPUs."""

import threading
from pathlib import Path
from typing import Any, Protocol, Self

_RAPL = Path("/sys/class/powercap")
_EVERY_S = 10.0
"""RAPL's counters start again at zero every few minutes under load: read them more often."""


class Counter(Protocol):
    """An energy counter that only grows, but may start again at zero."""

    name: str

    def read_j(self) -> float:
        """Return joules since some time before."""

    @property
    def range_j(self) -> float:
        """Joules after which it starts again at zero."""


class EnergyMeter:
    """Sums all counters between entering and leaving; `joules` is None without a counter.

    What is counted is the whole machine's processors and GPUs, for all processes.
    """

    def __init__(self, counters: list[Counter] | None = None, every_s: float = _EVERY_S) -> None:
        self._counters = find_counters() if counters is None else counters
        self._every_s = every_s
        self._last = [0.0] * len(self._counters)
        self._sum = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def sensors(self) -> tuple[str, ...]:
        """Names of the counters."""
        return tuple(counter.name for counter in self._counters)

    @property
    def joules(self) -> float | None:
        """Joules so far."""
        return self._sum if self._counters else None

    def __enter__(self) -> Self:
        self._last = [counter.read_j() for counter in self._counters]
        if self._counters:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._counters:
            self._thread.join()
            self._add()

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            self._add()

    def _add(self) -> None:
        for index, counter in enumerate(self._counters):
            now = counter.read_j()
            grown = now - self._last[index]
            self._sum += grown if grown >= 0 else grown + counter.range_j
            self._last[index] = now


def find_counters(rapl: Path = _RAPL) -> list[Counter]:
    """Return the counters that this process may read."""
    return [*_rapl_counters(rapl), *_nvml_counters()]


class _Rapl:
    """One processor package (Intel and AMD): `energy_uj` in microjoules."""

    def __init__(self, folder: Path) -> None:
        self.name = f"RAPL {(folder / 'name').read_text().strip()}"
        self._energy = folder / "energy_uj"
        self.range_j = int((folder / "max_energy_range_uj").read_text()) / 1e6
        self.read_j()  # raises PermissionError where only root may

    def read_j(self) -> float:
        return int(self._energy.read_text()) / 1e6


def _rapl_counters(folder: Path) -> list[Counter]:
    found: list[Counter] = []
    # intel-rapl:0 is a package, intel-rapl:0:1 a part of it that the package counts as well.
    for package in sorted(folder.glob("intel-rapl:*")):
        if package.name.count(":") == 1:
            try:
                found.append(_Rapl(package))
            except OSError:
                continue
    return found


class _Nvml:
    """One GPU since its driver was loaded, millijoules (Volta and later)."""

    range_j = 0.0

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml, self._handle = nvml, nvml.nvmlDeviceGetHandleByIndex(index)
        self.name = f"NVML GPU {index}"
        self.read_j()  # raises NVMLError on a GPU without the counter

    def read_j(self) -> float:
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3


def _nvml_counters() -> list[Counter]:
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        return [_Nvml(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
