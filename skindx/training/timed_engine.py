"""An engine that marks when forward, backward and the update of a step began and ended."""

from typing import Any

from torch import Tensor

from skindx.comm.clocks import Mark, mark
from skindx.training.deepspeed.engine import Engine


class TimedEngine:
    """Stands in for an engine in the training loop; all else is the engine's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.forward_begin: Mark | None = None
        self.backward_begin: Mark | None = None
        self.backward_end: Mark | None = None
        self.end: Mark | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Forward."""
        self.forward_begin = mark(self._engine.mesh.device)
        return self._engine(inputs)

    def backward(self, loss_sum: Tensor, global_count: int, *, last: bool = True) -> None:
        """Backward."""
        self.backward_begin = mark(self._engine.mesh.device)
        self._engine.backward(loss_sum, global_count, last=last)
        self.backward_end = mark(self._engine.mesh.device)

    def step(self, learning_rate: float) -> bool:
        """Update."""
        taken = self._engine.step(learning_rate)
        self.end = mark(self._engine.mesh.device)
        return taken
