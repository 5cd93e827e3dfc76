"""Joules of this machine while something runs, always with the label of their source.

Counters: RAPL for processors; zeus or NVML for GPUs. A command appends its joules to a JSON file
and prints one sentence.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.untrusted import MALFORMED

Source = Literal["measured", "modelled", "unavailable"]
"""measured: a counter of the hardware; modelled: computed from utilisation; else no figure."""


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules of one run, or why there are none.

    `interval` holds the true value in 90 % of networks where the source is a model; a counter has
    none. `sensors` are the counters that were read, `why` says what is missing or assumed.
    """

    source: Source
    joules: float | None = None
    interval: tuple[float, float] | None = None
    sensors: tuple[str, ...] = ()
    why: str = ""

    def __post_init__(self) -> None:
        """Check that joules and label belong together: no figure without a source."""
        assert (self.joules is None) == (self.source == "unavailable"), self

    def as_dict(self) -> Mapping[str, Any]:
        """Return plain values for a JSON file."""
        return {
            "source": self.source,
            "joules": self.joules,
            "interval": None if self.interval is None else list(self.interval),
            "sensors": list(self.sensors),
            "why": self.why,
        }


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
class EnergyCounters:
    """The counters that can be read, and a sentence for each that cannot."""

    counters: list[Counter] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def find_counters(rapl: Path = _RAPL) -> EnergyCounters:
    """Return the counters that this process may read."""
    detected = EnergyCounters()
    _add_rapl(rapl, detected)
    _add_gpus(detected)
    return detected


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


def _add_rapl(folder: Path, detected: EnergyCounters) -> None:
    # intel-rapl:0 is a package, intel-rapl:0:1 a part of it that the package counts as well.
    packages = [file for file in sorted(folder.glob("intel-rapl:*")) if file.name.count(":") == 1]
    if not packages:
        detected.refused.append(
            "this machine shows no RAPL counter (most virtual machines hide it)"
        )
    for package in packages:
        try:
            counter = RaplPackage(package)
        except PermissionError:
            detected.refused.append(
                f"{package.name} may only be read by root; run as root, or let its group read "
                "energy_uj"
            )
        except (OSError, ValueError) as error:
            detected.refused.append(f"{package.name} cannot be read ({error})")
        else:
            if counter.name != "RAPL psys":  # the platform holds the packages: they count twice
                detected.counters.append(counter)


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


def _add_gpus(detected: EnergyCounters) -> None:
    try:
        from zeus.device import get_gpus
    except ImportError:
        _add_nvml(detected)
        return
    try:
        gpus = get_gpus()
    except Exception:  # no driver, no library, no GPU: each has its own exception
        return
    for index in range(len(gpus)):
        if gpus.supports_get_total_energy_consumption(index):
            detected.counters.append(_ZeusGpu(gpus, index))
        else:
            detected.refused.append(f"GPU {index} has no energy counter")


def _add_nvml(detected: EnergyCounters) -> None:
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
            detected.counters.append(_NvmlGpu(pynvml, index))
        except (OSError, pynvml.NVMLError):
            detected.refused.append(f"GPU {index} has no energy counter")


_EVERY_S = 10.0
"""RAPL's counters start again at zero every few minutes under load: read them more often."""

_LEAST_S = 1.0
"""Seconds after which an unmoved counter does not count: even an idle processor draws watts."""


class EnergyMeter:
    """Sums all counters between entering and leaving.

    What is counted is the whole machine's processors and GPUs, for all processes. A counter that
    goes backwards, stands still or cannot be read makes the figure unavailable: a sum without one
    of its parts is no sum.
    """

    def __init__(
        self,
        counters: Sequence[Counter] | None = None,
        every_s: float = _EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._refused: Sequence[str] = ()
        if counters is None:
            detected = find_counters()
            counters, self._refused = detected.counters, detected.refused
        self._counters = counters
        self._every_s = every_s
        self._clock = clock
        self._last = [0.0] * len(counters)
        self._grown = [0.0] * len(counters)
        self._fault = ""
        self._began = self._ended = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def sensors(self) -> tuple[str, ...]:
        """Names of the counters."""
        return tuple(counter.name for counter in self._counters)

    @property
    def joules(self) -> float | None:
        """Joules so far; None where they are unavailable."""
        return self.energy.joules

    @property
    def energy(self) -> Energy:
        """Joules with their label."""
        if not self._counters:
            why = "; ".join(self._refused) or "no energy counter"
            return Energy("unavailable", why=why)
        if self._fault:
            return Energy("unavailable", sensors=self.sensors, why=self._fault)
        seconds = self._ended - self._began
        if seconds >= _LEAST_S:
            for counter, grown in zip(self._counters, self._grown, strict=True):
                if grown == 0:
                    why = f"{counter.name} did not move in {seconds:.1f} s"
                    return Energy("unavailable", sensors=self.sensors, why=why)
        elif not sum(self._grown):
            why = f"the counters did not move in {seconds:.3f} s, which is too short for them"
            return Energy("unavailable", sensors=self.sensors, why=why)
        why = "; ".join(self._refused)
        return Energy("measured", sum(self._grown), sensors=self.sensors, why=why)

    def __enter__(self) -> Self:
        self._began = self._ended = self._clock()
        for index, counter in enumerate(self._counters):
            try:
                self._last[index] = counter.read_j()
            except (OSError, RuntimeError) as error:
                self._fault = f"{counter.name} could not be read ({error})"
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
        self._ended = self._clock()
        for index, counter in enumerate(self._counters):
            if self._fault:
                return
            try:
                now = counter.read_j()
                self._grown[index] += growth(self._last[index], now, counter.range_j)
                self._last[index] = now
            except (OSError, RuntimeError) as error:
                self._fault = f"{counter.name} could not be read ({error})"
            except ValueError as error:
                self._fault = f"{counter.name} {error}"


def growth(before_j: float, now_j: float, range_j: float) -> float:
    """Return the joules between two readings of a counter that starts again after `range_j`.

    Raises ValueError when it went backwards and did not start again: between two readings a
    counter uses up far less than half of its range.
    """
    grown = now_j - before_j
    if grown >= 0:
        return grown
    wrapped = grown + range_j
    if 0 <= wrapped < range_j / 2:
        return wrapped
    raise ValueError(f"the energy counter went backwards from {before_j:.3f} J to {now_j:.3f} J")


ENERGY = "energy.json"
"""File of a run or report: each command that worked on it, with its seconds and labelled joules."""


@contextmanager
def energy_reported(verb: str, folder: Path, meter: EnergyMeter | None = None) -> Iterator[None]:
    """Measure the energy of the block, append it to FOLDER/energy.json, and print a sentence.

    A block that fails is recorded as well, where the folder exists: its joules are spent. One that
    is refused (UserError) is not. Of several ranks that another launcher started the first alone
    reports.
    """
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    meter = meter or EnergyMeter()
    start, finished, refused = time.monotonic(), False, False
    try:
        with meter:
            yield
        finished = True
    except UserError:
        refused = True
        raise
    finally:
        if folder.is_dir() and not refused:
            seconds = time.monotonic() - start
            _append(folder / ENERGY, verb, seconds, meter.energy, finished=finished)
        if finished:
            print(sentence(meter.energy))


def sentence(energy: Energy) -> str:
    """Say how many joules there were and where they come from, or why there are none."""
    if energy.joules is None:
        return f"energy: unavailable ({energy.why})"
    sensors = f" by {', '.join(energy.sensors)}" if energy.sensors else ""
    return f"energy: {energy.joules:,.0f} J, {energy.source}{sensors}, of the whole machine"


def _append(file: Path, verb: str, seconds: float, energy: Energy, *, finished: bool) -> None:
    try:
        runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
    except (OSError, *MALFORMED):
        runs = []  # the first one, or a file that was cut off: joules are no reason to fail
    run = {
        "verb": verb,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "finished": finished,
        **energy.as_dict(),
    }
    write_json(file, {"runs": [*runs, run]})
