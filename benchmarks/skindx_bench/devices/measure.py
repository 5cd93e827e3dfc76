"""Times one piece of work on a device, with its joules and what else the machine did."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal, Protocol

import torch

from skindx.core.errors import UserError
from skindx.core.measurement import cpu_model
from skindx.energy import Energy, EnergyMeter
from skindx_bench.harness.conditions import Conditions, cpu_mhz


class TooSlowError(RuntimeError):
    """This device emulates the work so slowly that its rounds would take the whole run."""


@contextmanager
def call_limit(most_s: float) -> Iterator[None]:
    """Raise TooSlowError in the block after `most_s` seconds, between two operators.

    Python handles a signal only between its own instructions, and `backward` is one call of C++.
    So operators fetch the tensors that they saved for it through a function of Python, in this
    block only. A single operator cannot be interrupted. Other threads than the main one receive no
    signals, so they have no limit.
    """
    if math.isinf(most_s) or threading.current_thread() is not threading.main_thread():
        yield
        return
    from torch.autograd.graph import saved_tensors_hooks

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"one call takes more than most_s = {most_s:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, most_s)
    try:
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


Precision = Literal["fp32", "bf16", "fp16", "int8"]
Mode = Literal["inference", "training"]

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
}


@dataclass(frozen=True)
class Work:
    """A call that does `samples` of something, and what it must compute and move.

    `flops` counts 2 a multiply-add. `bytes_moved` counts each operand once, as if caches held the
    rest; None where that says nothing, as of a whole network.
    """

    run: Callable[[], object]
    samples: int
    flops: float
    bytes_moved: float | None = None


Maker = Callable[[torch.device], Work]
"""Puts the operands on a device. Raises RuntimeError (of torch) for what it does not have."""


@dataclass(frozen=True)
class Case:
    """A named piece of work: `gemm-1024`, bf16, training."""

    name: str
    precision: Precision
    mode: Mode
    kind: Literal["operator", "network"]
    make: Maker

    @property
    def key(self) -> str:
        """Name under which its figures stand."""
        return f"{self.name}, {self.precision}, {self.mode}"


class Device(Protocol):
    """Where tensors lie, and when the work on them is done."""

    kind: str
    """cpu, cuda, rocm, xpu or mps."""
    name: str
    torch: torch.device

    def synchronize(self) -> None:
        """Return when everything that was started on the device has ended."""

    def clock_mhz(self) -> float | None:
        """Return its clock, or None where it cannot be read."""


class Processor:
    """This machine's processor; its work has ended when a call returns."""

    kind = "cpu"

    def __init__(self) -> None:
        self.name = cpu_model()
        self.torch = torch.device("cpu")

    def synchronize(self) -> None:
        return

    def clock_mhz(self) -> float | None:
        return cpu_mhz()


class Accelerator:
    """What `torch.accelerator` stands for: CUDA, ROCm, XPU, MPS. Work is started, then awaited."""

    def __init__(self) -> None:
        found = torch.accelerator.current_accelerator()
        assert found is not None
        self.torch = found
        rocm = found.type == "cuda" and torch.version.hip is not None
        self.kind = "rocm" if rocm else found.type
        module = torch.get_device_module(found)
        name: Callable[[], str] | None = getattr(module, "get_device_name", None)
        self.name = name() if name else found.type.upper()
        self._clock: Callable[[], int] | None = getattr(module, "clock_rate", None)

    def synchronize(self) -> None:
        torch.accelerator.synchronize()

    def clock_mhz(self) -> float | None:
        try:
            return None if self._clock is None else float(self._clock())
        except (RuntimeError, ModuleNotFoundError, AssertionError):  # no library for its sensors
            return None


def open_device(wanted: str) -> Device:
    """Return the device: `cpu`, a kind of accelerator, or `auto`: an accelerator if there is one.

    Raises UserError for a kind that this machine or this torch does not have.
    """
    if wanted == "cpu":
        return Processor()
    if not torch.accelerator.is_available():
        if wanted == "auto":
            return Processor()
        raise UserError(
            f"device={wanted}: torch {torch.__version__} finds no accelerator; run `skindx "
            "doctor`, or measure the processor with --set device=cpu."
        )
    found = Accelerator()
    if wanted not in ("auto", found.kind):
        raise UserError(
            f"device={wanted}: torch {torch.__version__} finds {found.name} ({found.kind}); set "
            f"device={found.kind} or device=auto."
        )
    return found


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
