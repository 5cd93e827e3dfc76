"""Marks in time on the device that computes: of a step and of its gradients."""

import time
from typing import Any, Protocol

import torch


class Mark(Protocol):
    """A point in time; on a GPU it is reached when all work queued before is done."""

    def seconds_since(self, earlier: "Mark") -> float:
        """Return the seconds between two marks; on a GPU both must have been reached."""


class HostMark:
    """Now."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def seconds_since(self, earlier: Mark) -> float:
        """Return the seconds between two marks."""
        assert isinstance(earlier, HostMark)
        return self._at - earlier._at


class DeviceMark:
    """An event in the GPU's queue."""

    def __init__(self) -> None:
        event: Any = torch.cuda.Event
        self._event = event(enable_timing=True)
        self._event.record()

    def seconds_since(self, earlier: Mark) -> float:
        """Return the seconds between two marks, waiting until this one is reached."""
        assert isinstance(earlier, DeviceMark)
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1000


def mark(device: torch.device) -> Mark:
    """Return a mark at this point of the program."""
    return DeviceMark() if device.type == "cuda" else HostMark()


class Recorder:
    """The marks of one step."""

    def __init__(self, device: torch.device) -> None:
        """The step begins with the first call of `forward`."""
        self._device = device
        self._begun: Mark | None = None
        self._backward: Mark | None = None
        self._ready: dict[str, Mark] = {}
        self._ended: Mark | None = None

    def forward(self) -> None:
        """A forward pass begins; the first one of the step counts."""
        self._begun = self._begun or mark(self._device)

    def backward(self) -> None:
        """The last backward pass of the step begins."""
        self._backward = mark(self._device)

    def saw(self, name: str) -> None:
        """This gradient is complete."""
        self._ready[name] = mark(self._device)

    def end(self) -> None:
        """The weights are moved."""
        self._ended = mark(self._device)

    @property
    def step_s(self) -> float:
        """Seconds of the step, without the wait for its images."""
        assert self._begun
        assert self._ended
        return self._ended.seconds_since(self._begun)

    @property
    def forward_s(self) -> float:
        """Seconds before the last backward."""
        assert self._begun
        assert self._backward
        return self._backward.seconds_since(self._begun)

    def ready_s(self) -> dict[str, float]:
        """Return seconds since the last backward began, in the order of the gradients."""
        assert self._backward
        return {
            name: reached.seconds_since(self._backward) for name, reached in self._ready.items()
        }
