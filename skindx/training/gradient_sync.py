"""A gradient exchange at work inside the engine, in place of DeepSpeed's own reduction."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

from torch import nn

from skindx.comm.dense import DenseSettings
from skindx.comm.exchange import Exchange, Reducer
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fabric import Fabric, GradientBuffer
from skindx.comm.fused import FusedSettings
from skindx.comm.fused_exchange import Fused
from skindx.comm.kinds import build_exchange
from skindx.comm.tuner import Tuner
from skindx.training.parallel.mesh import Mesh
from skindx.training.parallel.sharding.communicator import Communicator, Watch
from skindx.training.parallel.sharding.parts import Part, SplitGradients, parts_of

GRADIENTS = "wait for gradients"
"""What a timeline calls the time in which an exchange is waited for."""


class GradientSync:
    """Reduces the gradients of a module (ZeRO 0, with DeepSpeed's all-reduce off).

    Those of layers that are split count in the norm; they are averaged with the ranks that hold the
    same part, and stay where they are where none does.
    """

    def __init__(
        self,
        module: nn.Module,
        exchange: Exchange,
        mesh: Mesh,
        steps_per_epoch: int,
        say: Callable[[str], None],
    ) -> None:
        """Lay out the gradients and get the exchange ready; every rank calls this."""
        self.exchange = exchange
        parts, named = parts_of(module), list(module.named_parameters())
        self._averaged = any(part.replicated for part in parts.values())
        ranks = mesh.replicas if self._averaged else None
        self.fabric = Fabric(mesh.device, timedelta(seconds=mesh.settings.timeout_s), ranks)
        stays = () if self._averaged else parts.keys()
        self.gradients = GradientBuffer([(name, own) for name, own in named if name not in stays])
        self._split = _split_gradients(named, parts)
        exchange.attach(self.fabric, self.gradients, steps_per_epoch)
        exchange.observe(module)
        self.reducer = Reducer(self.gradients, exchange)
        self._peers = [
            _Peers(ranks, [(name, own) for name, own in named if name in own_names], mesh)
            for ranks, own_names in _by_peers(parts).items()
        ]
        self._norm: float | None = None
        self.watch: Watch | None = None
        self._tuner: Tuner | None = None
        if isinstance(exchange, Fused) and exchange.settings.tune:
            self._tuner = Tuner(exchange, self.reducer, self.fabric, mesh, say)

    def forward(self) -> None:
        """A forward pass of the engine begins."""
        if self._tuner:
            self._tuner.forward()

    def backward(self, *, last: bool) -> None:
        """The engine's next backward begins."""
        for reducer in (self.reducer, *(peers.reducer for peers in self._peers)):
            reducer.begin()  # DeepSpeed has dropped the gradients after the last step
            if last:
                reducer.arm()
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
        if self._split is None:
            return self.reducer.finish()
        if self._averaged:
            return self._split.norm(known_bad=self.reducer.finish() is None)
        bad = [peers.reducer.finish() is None for peers in self._peers]
        square = self._split.square(known_bad=any(bad))
        if not math.isfinite(square):
            # The exchange must not remember a step that is not taken.
            self.gradients.flat.fill_(math.nan)
        norm = self.reducer.finish()
        if norm is None or not math.isfinite(square):  # nothing may be left that an exchange sees
            return None
        return math.sqrt(norm**2 + square)

    def clip(self, most: float) -> None:
        """Scale the reduced gradient down to a norm of at most `most`."""
        if self._norm is not None and self._norm > most:
            flat_M = self.gradients.flat
            flat_M *= most / (self._norm + 1e-6)
            if self._split and not self._averaged:
                self._split.scale(most / (self._norm + 1e-6))

    def step_done(self) -> None:
        """The weights are moved; the tuner measures and plans between two steps."""
        if self._tuner and not self._tuner.step_done():
            self._tuner = None

    def discard(self) -> None:
        """Forget the gradients of this step, of which nothing was sent."""
        self.reducer.discard()
        for peers in self._peers:
            peers.reducer.discard()

    @property
    def bytes_sent(self) -> int:
        """By this rank since the start."""
        return self.fabric.bytes_sent + sum(peers.fabric.bytes_sent for peers in self._peers)

    def close(self) -> None:
        """Remove the hooks from the module."""
        self.reducer.close()
        for peers in self._peers:
            peers.reducer.close()


class _Peers:
    """The gradients of parts that some ranks hold alike, on their way between these."""

    def __init__(
        self, ranks: Sequence[int], named: Sequence[tuple[str, nn.Parameter]], mesh: Mesh
    ) -> None:
        timeout = timedelta(seconds=mesh.settings.timeout_s)
        self.fabric, gradients = Fabric(mesh.device, timeout, ranks), GradientBuffer(named)
        exchange = Fused(FusedSettings(tune=False))
        exchange.attach(self.fabric, gradients, 1)
        self.reducer = Reducer(gradients, exchange)


def _by_peers(parts: Mapping[str, Part]) -> dict[tuple[int, ...], set[str]]:
    """Return the names of the parts that other ranks hold as well, by these ranks."""
    found: dict[tuple[int, ...], set[str]] = {}
    for name, part in parts.items():
        if len(part.peers) > 1:
            found.setdefault(part.peers, set()).add(name)
    return found


def _split_gradients(
    named: Sequence[tuple[str, nn.Parameter]], parts: Mapping[str, Part]
) -> SplitGradients | None:
    trained = [(name, weight) for name, weight in named if weight.requires_grad]
    if not parts:
        return None
    split: dict[Communicator, list[nn.Parameter]] = {part.wires: [] for part in parts.values()}
    for name, weight in trained:
        if name in parts:
            split[parts[name].wires].append(weight)
    others = [weight for name, weight in trained if name not in parts]
    return SplitGradients(split, others)


def build_gradient_sync(
    settings: ExchangeSettings,
    module: nn.Module,
    mesh: Mesh,
    steps_per_epoch: int,
    say: Callable[[str], None],
) -> GradientSync | None:
    """Return the exchange of `settings` at work on `module`, or None for DeepSpeed's own.

    DeepSpeed would reduce what is split as well: then the dense exchange is ours.
    """
    parts = parts_of(module)
    own = [name for name, weight in module.named_parameters() if weight.requires_grad]
    alone = parts.keys() >= set(own) and not any(part.replicated for part in parts.values())
    if parts and (isinstance(settings, DenseSettings) or alone):
        settings = FusedSettings(tune=False)  # also for nothing at all: then it sends nothing
    exchange = build_exchange(settings)
    return GradientSync(module, exchange, mesh, steps_per_epoch, say) if exchange else None
