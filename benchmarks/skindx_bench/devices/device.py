"""The device that is measured: the processor, or what torch.accelerator finds."""

from collections.abc import Callable
from typing import Protocol

import torch

from skindx.core.errors import UserError
from skindx.core.measurement import cpu_model
from skindx_bench.harness.conditions import cpu_mhz


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
