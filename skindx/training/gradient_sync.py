"""A gradient exchange at work inside the engine, in place of DeepSpeed's own reduction."""

from collections.abc import Callable, Collection
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

from torch import nn

from skindx.comm.exchange import Exchange, Reducer
from skindx.comm.exchange_kinds import build_exchange
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fabric import Fabric, GradientBuffer
from skindx.comm.fused_exchange import Fused
from skindx.comm.tuner import Tuner
from skindx.training.parallel.mesh import Mesh, Watch

GRADIENTS = "wait for gradients"
"""What a timeline calls the time in which an exchange is waited for."""


class GradientSync:
    """Reduces the gradients of a module (ZeRO 0, with DeepSpeed's all-reduce off)."""

    def __init__(
        self,
        module: nn.Module,
        exchange: Exchange,
        mesh: Mesh,
        steps_per_epoch: int,
        say: Callable[[str], None],
        *,
        left_out: Collection[str] = (),
    ) -> None:
        """Lay out the gradients and get the exchange ready; every rank calls this.

        The weights that are `left_out` by name stay as they are on each rank.
        """
        self.exchange = exchange
        self.fabric = Fabric(mesh.device, timedelta(seconds=mesh.settings.timeout_s))
        named = module.named_parameters()
        self.gradients = GradientBuffer(
            [(name, weight) for name, weight in named if name not in left_out]
        )
        exchange.attach(self.fabric, self.gradients, steps_per_epoch)
        exchange.observe(module)
        self.reducer = Reducer(self.gradients, exchange)
        self._norm: float | None = None
        self.watch: Watch | None = None
        self._tuner: Tuner | None = None
        if isinstance(exchange, Fused) and exchange.settings.tune:
            self._tuner = Tuner(exchange, self.reducer, self.fabric, mesh, say)

    def forward(self) -> None:
        """A forward pass of the engine begins."""
        self.exchange.forward()
        if self._tuner:
            self._tuner.forward()

    def backward(self, *, last: bool) -> None:
        """The engine's next backward begins."""
        self.reducer.begin()  # DeepSpeed has dropped the gradients after the last step
        if last:
            self.reducer.arm()
        if last and self._tuner:
            self._tuner.backward()

    def reduce(self, scaler: Any) -> bool:
        """Wait for the gradient that all ranks take.

        False, on all ranks, where it is not finite. With a loss `scaler` (fp16) it comes and goes
        scaled, so that DeepSpeed, which then clips by itself, takes or skips the step.
        """
        with self.watch(GRADIENTS) if self.watch else nullcontext():
            return self._reduce(scaler)

    def _reduce(self, scaler: Any) -> bool:
        flat_M, scale = self.gradients.flat, float(scaler.get_scale()) if scaler else 1.0
        if self.exchange.remembers and scale != 1.0:
            flat_M /= scale  # residuals outlive a change of the scale
        self._norm = self._finish()
        flat_M = self.gradients.flat
        if self._norm is None:
            if scaler:
                flat_M[0] = float("inf")
            return scaler is not None
        if self.exchange.remembers and scale != 1.0:
            flat_M *= scale
        return True

    def _finish(self) -> float | None:
        """Wait for the exchange; return the norm of all gradients, None where one is not finite."""
        return self.reducer.finish()

    def clip(self, most: float) -> None:
        """Scale the reduced gradient down to a norm of at most `most`."""
        if self._norm is not None and self._norm > most:
            self._scale(most / (self._norm + 1e-6))

    def _scale(self, factor: float) -> None:
        flat_M = self.gradients.flat
        flat_M *= factor

    def step_done(self) -> None:
        """The weights are moved; the tuner measures and plans between two steps."""
        if self._tuner and not self._tuner.step_done():
            self._tuner = None
        name = self.exchange.after_update
        with self.watch(name) if self.watch and name else nullcontext():
            self.exchange.step_done()

    def step_skipped(self) -> None:
        """The weights stay as they were."""
        self.exchange.step_skipped()

    def discard(self) -> None:
        """Forget the gradients of this step, of which nothing was sent."""
        self.reducer.discard()

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent since the start."""
        return self.fabric.bytes_sent

    def close(self) -> None:
        """Remove the hooks from the module."""
        self.reducer.close()


def build_gradient_sync(
    settings: ExchangeSettings,
    module: nn.Module,
    mesh: Mesh,
    steps_per_epoch: int,
    say: Callable[[str], None],
) -> GradientSync | None:
    """Return the exchange of `settings` at work on `module`, or None for DeepSpeed's own."""
    exchange = build_exchange(settings)
    return GradientSync(module, exchange, mesh, steps_per_epoch, say) if exchange else None
