"""Points in time on the device that computes."""

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
