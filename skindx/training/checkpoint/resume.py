"""Connects a training with its checkpoints: what is saved, when, and where it goes on."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from skindx.core.state_checks import UnfitStateError, check_like
from skindx.training.checkpoint.fitting import check_position
from skindx.training.checkpoint.keeper import Keeper
from skindx.training.checkpoint.state import State
from skindx.training.checkpoint.stateful import Buffers, PerRank, RandomNumbers, Shared
from skindx.training.checkpoint.store import At
from skindx.training.config.checkpoints import CheckpointSettings
from skindx.training.launching.stopping import Stop, StoppedError
from skindx.training.parallel.mesh import Mesh
from skindx.training.position import Position
from skindx.training.step_guard import StepGuard

_OWN = "loss_sum"


class SavableEngine(Shared, Protocol):
    """An engine as far as checkpoints know it."""

    @property
    def exchange(self) -> PerRank | None: ...


class Savable(Protocol):
    """A training as far as its checkpoints know it."""

    @property
    def name(self) -> str: ...
    @property
    def epochs(self) -> int: ...
    @property
    def mesh(self) -> Mesh: ...
    @property
    def engine(self) -> SavableEngine: ...
    @property
    def average(self) -> Shared | None: ...
    @property
    def statistics(self) -> Buffers: ...
    @property
    def guard(self) -> StepGuard: ...
    @property
    def position(self) -> Position: ...


class _SharedPosition:
    """The part of a position that all ranks hold alike."""

    def __init__(self, position: Position) -> None:
        self._position = position

    def state_dict(self) -> State:
        values: dict[str, Any] = asdict(self._position)
        del values[_OWN]
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
        return {_OWN: self._position.loss_sum}

    def load_state_dict(self, states: Sequence[State]) -> None:
        for state in states:
            check_like(state, {_OWN: 0.0}, "loss")
        sums = [state[_OWN] for state in states]
        if len(sums) == self._mesh.data.size:
            self._position.loss_sum = sums[self._mesh.data.rank]
        else:
            self._position.loss_sum = sum(sums) if self._mesh.is_main else 0.0


class Remembered:
    """Each rank's state of its exchange."""

    def __init__(self, exchange: PerRank) -> None:
        self._exchange = exchange

    def state_dict(self) -> State:
        """Return this rank's state."""
        return self._exchange.state_dict()

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Go on from all ranks' states; one of another form is refused with the reason."""
        try:
            self._exchange.load_state_dict(states)
        except UnfitStateError as error:
            raise UnfitStateError(
                f"{error}; what an exchange remembers stays under the engine.parallel.kind and the "
                "exchange.kind that it was trained with"
            ) from None


class Resuming:
    """Saves a training in `folder`, goes on from there, and stops it when asked to."""

    def __init__(
        self, folder: Path, fingerprint: str, settings: CheckpointSettings, stop: Stop
    ) -> None:
        """Write the fingerprint into checkpoints; one of another fingerprint is refused before."""
        self._folder, self._fingerprint = folder, fingerprint
        self._settings, self._stop = settings, stop

    def attach(self, training: Savable, say: Callable[[str], None]) -> Callable[[Savable], None]:
        """Go on from the last whole checkpoint, and return what saves and stops after a step."""
        keeper = keeper_of(training, self._folder, self._fingerprint, self._settings, say)
        if at := keeper.resume():
            say(f"goes on from its checkpoint: {_words(at, training.epochs)}")
        training.guard.asked = lambda: self._stop.asked
        training.guard.due = keeper.due

        def after_step(training: Savable) -> None:
            position, guard = training.position, training.guard
            at = At(position.epoch, position.step)
            keeper.count_step()
            if position.step == 0 or guard.save or guard.stop:
                keeper.save(at)
            if guard.stop:
                self._stop.done()
                raise StoppedError(f"{training.name}: {_words(at, training.epochs)}")

        return after_step


def keeper_of(
    training: Savable,
    folder: Path,
    fingerprint: str,
    settings: CheckpointSettings,
    say: Callable[[str], None],
) -> Keeper:
    """Return what saves the whole state of a training in `folder`, and finds it there."""
    shared, own = _shared(training), _own(training)
    return Keeper(folder, fingerprint, settings, training.mesh, say, shared=shared, own=own)


def _shared(training: Savable) -> dict[str, Shared]:
    shared: dict[str, Shared] = {
        "engine": training.engine,
        "position": _SharedPosition(training.position),
    }
    if training.average:
        shared["average"] = training.average
    return shared


def _own(training: Savable) -> dict[str, PerRank]:
    mesh = training.mesh
    own: dict[str, PerRank] = {
        "statistics": training.statistics,
        "loss": _LossSum(training),
        "random": RandomNumbers(mesh.data.rank, mesh.data.size, mesh.device),
    }
    if exchange := training.engine.exchange:
        own["exchange"] = Remembered(exchange)
    return own


def _words(at: At, epochs: int) -> str:
    if at.step == 0:
        return f"{at.epoch} of {epochs} epochs done"
    return f"{at.epoch} of {epochs} epochs and {at.step} steps done"
