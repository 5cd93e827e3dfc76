"""Energy counters of this machine: RAPL for processors; zeus or NVML for GPUs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

_RAPL = Path("/sys/class/powercap")


class Counter(Protocol):
    """An energy counter that only grows, but may start again at zero."""

    name: str

    def read_j(self) -> float:
        """Return joules since some time before. Raises OSError or RuntimeError when it cannot."""

    @property
    def range_j(self) -> float:
        """Joules after which it starts again at zero; 0 for a counter that never does."""


@dataclass
class Found:
    """The counters that can be read, and a sentence for each that cannot."""

    counters: list[Counter] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def find_counters(rapl: Path = _RAPL) -> Found:
    """Return the counters that this process may read."""
    found = Found()
    _add_rapl(rapl, found)
    _add_gpus(found)
    return found


class RaplPackage:
    """One processor package (Intel and AMD): `energy_uj` in microjoules."""

    def __init__(self, folder: Path) -> None:
        self.name = f"RAPL {(folder / 'name').read_text().strip()}"
        self._energy = folder / "energy_uj"
        self.range_j = int((folder / "max_energy_range_uj").read_text()) / 1e6
        self.read_j()  # raises PermissionError where only root may

    def read_j(self) -> float:
        try:
            return int(self._energy.read_text()) / 1e6
        except ValueError as error:
            raise OSError(f"{self._energy} holds no number") from error


def _add_rapl(folder: Path, found: Found) -> None:
    # intel-rapl:0 is a package, intel-rapl:0:1 a part of it that the package counts as well.
    packages = [file for file in sorted(folder.glob("intel-rapl:*")) if file.name.count(":") == 1]
    if not packages:
        found.refused.append("this machine shows no RAPL counter (most virtual machines hide it)")
    for package in packages:
        try:
            counter = RaplPackage(package)
        except PermissionError:
            found.refused.append(
                f"{package.name} may only be read by root; run as root, or let its group read "
                "energy_uj"
            )
        except (OSError, ValueError) as error:
            found.refused.append(f"{package.name} cannot be read ({error})")
        else:
            if counter.name != "RAPL psys":  # the platform holds the packages: they count twice
                found.counters.append(counter)


class _ZeusGpu:
    """One GPU through zeus (NVIDIA and AMD), millijoules."""

    range_j = 0.0

    def __init__(self, gpus: Any, index: int) -> None:
        self._gpus, self._index = gpus, index
        self.name = f"zeus GPU {index}"

    def read_j(self) -> float:
        try:
            return float(self._gpus.get_total_energy_consumption(self._index)) / 1e3
        except Exception as error:  # zeus has an exception for every vendor's library
            raise OSError(f"{self.name}: {error}") from error


class _NvmlGpu:
    """One GPU since its driver was loaded, millijoules (Volta and later)."""

    range_j = 0.0

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml, self._handle = nvml, nvml.nvmlDeviceGetHandleByIndex(index)
        self.name = f"NVML GPU {index}"
        self.read_j()

    def read_j(self) -> float:
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3
        except self._nvml.NVMLError as error:
            raise OSError(f"{self.name}: {error}") from error


def _add_gpus(found: Found) -> None:
    try:
        from zeus.device import get_gpus
    except ImportError:
        _add_nvml(found)
        return
    try:
        gpus = get_gpus()
    except Exception:  # no driver, no library, no GPU: each has its own exception
        return
    for index in range(len(gpus)):
        if gpus.supports_get_total_energy_consumption(index):
            found.counters.append(_ZeusGpu(gpus, index))
        else:
            found.refused.append(f"GPU {index} has no energy counter")


def _add_nvml(found: Found) -> None:
    try:
        import pynvml
    except ImportError:
        return
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return
    for index in range(count):
        try:
            found.counters.append(_NvmlGpu(pynvml, index))
        except (OSError, pynvml.NVMLError):
            found.refused.append(f"GPU {index} has no energy counter")
