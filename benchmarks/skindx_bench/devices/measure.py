"""Times one piece of work on a device, with its joules and what else the machine did."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from skindx.energy import Energy, EnergyMeter
from skindx_bench.devices.call_limit import call_limit
from skindx_bench.devices.device import Device
from skindx_bench.devices.work import Case, Work
from skindx_bench.harness.conditions import Conditions

Meter = Callable[[], EnergyMeter]


@dataclass
class Measured:
    """Rounds of one case: seconds and joules, `repeats` calls each."""

    case: Case
    samples: int
    flops: float
    bytes_moved: float | None
    repeats: int
    seconds: list[float] = field(default_factory=list)
    energy: list[Energy] = field(default_factory=list)
    conditions: dict[str, Any] = field(default_factory=dict)

    def rates(self, amount: float) -> list[float]:
        """Return how much of `amount` (of one call) was done a second, by round."""
        return [amount * self.repeats / elapsed for elapsed in self.seconds]


def measure(  # noqa: PLR0917
    case: Case,
    device: Device,
    rounds: int,
    least_s: float,
    meter: Meter = EnergyMeter,
    most_s: float = math.inf,
) -> Measured:
    """Time `rounds` rounds of at least `least_s` seconds after calls that are not counted.

    Raises RuntimeError (of torch) when the device does not have this operator or precision, or
    not the memory; TooSlowError when one call takes more than `most_s` seconds.
    """
    work = case.make(device.torch)
    with call_limit(most_s):
        _time(work, device, 1)
    repeats = _repeats(work, device, least_s)
    found = Measured(case, work.samples, work.flops, work.bytes_moved, repeats)
    with Conditions(clock_mhz=device.clock_mhz) as conditions:
        for _ in range(rounds):
            with meter() as joules:
                found.seconds.append(_time(work, device, repeats))
            found.energy.append(joules.energy)
    found.conditions = dict(conditions.as_dict())
    return found


def idle_watts(seconds: float, meter: Meter = EnergyMeter) -> tuple[float | None, Energy]:
    """Return the watts of the machine while this process waits, and their label."""
    with meter() as joules:
        start = time.perf_counter()
        time.sleep(seconds)
        took = time.perf_counter() - start
    energy = joules.energy
    return (None if energy.joules is None else energy.joules / took), energy


def joules_of(energies: Sequence[Energy]) -> list[float] | None:
    """Return joules by round; None unless every round has some."""
    found = [energy.joules for energy in energies if energy.joules is not None]
    return found if len(found) == len(energies) and found else None


def _repeats(work: Work, device: Device, least_s: float) -> int:
    """Return how many calls take `least_s` seconds."""
    repeats, took = 1, _time(work, device, 1)
    while took < least_s / 4 and repeats < 1 << 20:
        repeats *= 4
        took = _time(work, device, repeats)
    return max(1, round(repeats * least_s / max(took, 1e-9)))


def _time(work: Work, device: Device, repeats: int) -> float:
    device.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work.run()
    device.synchronize()
    return time.perf_counter() - start
