"""Connect a training with its checkpoints: what is saved, when, and where to continue.

What each rank holds alone is restored on the same number of ranks to the bit, and by a rule of its
own on another number.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from skindx.core.state_checks import UnfitStateError, check_like
from skindx.training.checkpoint.keeper import LEAVING_S, At, Keeper
from skindx.training.checkpoint.saved_state import (
    FALLBACK,
    Buffers,
    PerRank,
    Shared,
    State,
    check_position,
)
from skindx.training.config.engine import CheckpointSettings
from skindx.training.launching.supervise import Stop, StoppedError
from skindx.training.parallel.mesh import Mesh
from skindx.training.position import Counted, Position


def share_weights(module: nn.Module, optimizer: torch.optim.Optimizer, mesh: Mesh) -> None:
    """Give all ranks the main one's weights where Muon moved them.

    Each rank multiplies matrices in 16 bits itself, and another processor rounds otherwise. So
    ranks differ for an epoch at most; on like ones nothing changes.
    """
    if mesh.data.size > 1 and any(FALLBACK in group for group in optimizer.param_groups):
        for weight in module.parameters():
            dist.broadcast(weight.data, 0)


class RandomNumbers:
    """Torch's, NumPy's and Python's global generators; on other ranks they stay as seeded."""

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self._rank, self._world, self._device = rank, world, device

    def state_dict(self) -> State:
        name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
        version, words, following = random.getstate()
        state: dict[str, Any] = {
            "torch": torch.get_rng_state(),
            "numpy": {
                "name": name,
                "keys": np.asarray(keys).astype(np.int64),
                "rest": [int(position), int(has_gauss), float(gauss)],
            },
            "python": {"version": version, "words": list(words), "next": following},
        }
        if self._device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self._device)
        return state

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Take this rank's states, when there are as many ranks as then."""
        if len(states) != self._world:
            return
        state, current = states[self._rank], self.state_dict()
        if "cuda" not in current or "cuda" not in state:  # on another device than then
            state, current = (
                {k: v for k, v in part.items() if k != "cuda"} for part in (state, current)
            )
        python = state.get("python")
        if isinstance(python, dict) and isinstance(python.get("next", ""), float | None):
            current["python"]["next"] = python["next"]  # a second normal number is kept, or none
        check_like(state, current, "random numbers")
        numpy, python = state["numpy"], state["python"]
        if not 0 <= numpy["rest"][0] <= len(numpy["keys"]):
            raise UnfitStateError("the position in random numbers/numpy is beyond the end")
        try:
            torch.set_rng_state(state["torch"])
            np.random.set_state((numpy["name"], numpy["keys"].astype(np.uint32), *numpy["rest"]))
            random.setstate((python["version"], tuple(python["words"]), python["next"]))
            if "cuda" in state:
                torch.cuda.set_rng_state(state["cuda"], self._device)
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            raise UnfitStateError(f"the random numbers cannot be restored ({error})") from None


_LOSS_SUM = "loss_sum"


class SavableEngine(Shared, Protocol):
    """An engine as far as checkpoints know it."""

    @property
    def exchange(self) -> PerRank | None: ...


class Savable(Counted, Protocol):
    """A training as far as its checkpoints know it."""

    @property
    def epochs(self) -> int: ...
    @property
    def engine(self) -> SavableEngine: ...
    @property
    def average(self) -> Shared | None: ...
    @property
    def statistics(self) -> Buffers: ...


class _SharedPosition:
    """The part of a position that all ranks hold alike."""

    def __init__(self, position: Position) -> None:
        self._position = position

    def state_dict(self) -> State:
        values: dict[str, Any] = asdict(self._position)
        del values[_LOSS_SUM]
        return values

    def load_state_dict(self, state: State) -> None:
        check_position(state, self.state_dict())
        for name, value in state.items():
            setattr(self._position, name, value)


class _LossSum:
    """Each rank's loss in this epoch; on another number of ranks the main one takes the sum."""

    def __init__(self, training: Savable) -> None:
        self._position, self._mesh = training.position, training.mesh

    def state_dict(self) -> State:
        return {_LOSS_SUM: self._position.loss_sum}

    def load_state_dict(self, states: Sequence[State]) -> None:
        for state in states:
            check_like(state, {_LOSS_SUM: 0.0}, "loss")
        sums = [state[_LOSS_SUM] for state in states]
        if len(sums) == self._mesh.data.size:
            self._position.loss_sum = sums[self._mesh.data.rank]
        else:
            self._position.loss_sum = sum(sums) if self._mesh.is_main else 0.0


class Remembered:
    """Each rank's state of its exchange."""

    def __init__(self, exchange: PerRank) -> None:
        self._exchange = exchange

    def state_dict(self) -> State:
        return self._exchange.state_dict()

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Go on from all ranks' states; one of another form is refused with the reason."""
        try:
            self._exchange.load_state_dict(states)
        except UnfitStateError as error:
            raise UnfitStateError(
                f"{error}; engine.parallel.kind and exchange.kind must be those of the checkpoint"
            ) from None


class Resuming:
    """Saves a training in `folder`, continues it from there, and stops it on request."""

    def __init__(
        self, folder: Path, fingerprint: str, settings: CheckpointSettings, stop: Stop
    ) -> None:
        """Write the fingerprint into checkpoints; one of another fingerprint is refused before."""
        self._folder, self._fingerprint = folder, fingerprint
        self._settings, self._stop = settings, stop
        self._keeper: Keeper | None = None

    def attach(self, training: Savable, say: Callable[[str], None]) -> Callable[[Savable], None]:
        """Go on from the last whole checkpoint, and return what saves and stops after a step."""
        keeper = self.keep(training, say)
        self.resume(training, say)
        training.guard.stop_requested = lambda: self._stop.requested
        training.guard.due = keeper.due
        training.guard.due_alike = keeper.due_by_steps
        return self.after_step(keeper)

    def keep(self, training: Savable, say: Callable[[str], None]) -> Keeper:
        """Return what saves this training from now on."""
        self._keeper = keeper_of(training, self._folder, self._fingerprint, self._settings, say)
        return self._keeper

    def resume(self, training: Savable, say: Callable[[str], None]) -> None:
        """Go on from the last whole checkpoint, if there is one."""
        assert self._keeper
        if at := self._keeper.resume():
            say(f"goes on from its checkpoint: {words_of(at, training.epochs)}")

    def after_step(self, keeper: Keeper) -> Callable[[Savable], None]:
        """Return what saves and stops after a step."""

        def after_step(training: Savable) -> None:
            position, guard = training.position, training.guard
            at = At(position.epoch, position.step)
            keeper.count_step()
            if position.step == 0 or guard.save or guard.stop:
                keeper.save(at, wait=guard.stop)
            if guard.stop:
                self._stop.done()
                raise StoppedError(f"{training.name}: {words_of(at, training.epochs)}")

        return after_step

    def settle(self, *, leaving: bool, wait_s: float = LEAVING_S) -> None:
        """Wait until nothing is being written; after an error, not long for the other ranks."""
        if self._keeper:
            self._keeper.settle(leaving=leaving, wait_s=wait_s)


def keeper_of(
    training: Savable,
    folder: Path,
    fingerprint: str,
    settings: CheckpointSettings,
    say: Callable[[str], None],
) -> Keeper:
    """Return what saves the whole state of a training in `folder`, and loads it from there."""
    shared, per_rank = parts_of(training)
    return Keeper(
        folder, fingerprint, settings, training.mesh, say, shared=shared, per_rank=per_rank
    )


def parts_of(training: Savable) -> tuple[dict[str, Shared], dict[str, PerRank]]:
    """Return the whole state of a training: what ranks hold alike, and what each holds alone."""
    return _shared(training), _per_rank(training)


def _shared(training: Savable) -> dict[str, Shared]:
    shared: dict[str, Shared] = {
        "engine": training.engine,
        "position": _SharedPosition(training.position),
    }
    if training.average:
        shared["average"] = training.average
    return shared


def _per_rank(training: Savable) -> dict[str, PerRank]:
    mesh = training.mesh
    per_rank: dict[str, PerRank] = {
        "statistics": training.statistics,
        "loss": _LossSum(training),
        "random": RandomNumbers(mesh.data.rank, mesh.data.size, mesh.device),
    }
    if exchange := training.engine.exchange:
        per_rank["exchange"] = Remembered(exchange)
    return per_rank | training.guard.per_rank(training.engine)


def words_of(at: At, epochs: int) -> str:
    """Say where a training stands."""
    if at.step == 0:
        return f"{at.epoch} of {epochs} epochs done"
    return f"{at.epoch} of {epochs} epochs and {at.step} steps done"
