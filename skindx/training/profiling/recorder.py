"""Times within a step: its start, its last backward, and the completion of each gradient."""

import torch

from skindx.training.profiling.clocks import Mark, mark


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
