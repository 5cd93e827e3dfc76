"""What ranks of local steps agree on: between two rounds they train apart, and skip steps alone."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from skindx.core.state_checks import check_like
from skindx.data.loader.batches import steps_of
from skindx.training.checkpoint.saved_state import (
    PerRank,
    State,
    check_optimizer,
    load_named_state,
    mean_of,
    named_state,
)
from skindx.training.config.engine import CheckpointSettings
from skindx.training.parallel.mesh import Mesh
from skindx.training.parallel.messages import gathered
from skindx.training.position import Counted, CountedBatch, Position, StepGuard
from skindx_methods.local_steps.local_steps import TAKEN, LocalSteps


class RoundGuard(StepGuard):
    """Each rank looks at its own losses alone; all else ranks learn when they `agree`."""

    skipped_words = "{} steps of single ranks are"

    def __init__(
        self,
        mesh: Mesh,
        bad_steps: int,
        stop_requested: Callable[[], bool] = lambda: False,
        due: Callable[[], bool] = lambda: False,
        *,
        agree_s: float = 2.0,
    ) -> None:
        """Ranks agree every `agree_s` or more often; all else is as for `StepGuard`."""
        super().__init__(mesh, bad_steps, stop_requested, due)
        self._agree_s = agree_s
        self._steps, self._most_steps, self._agreed_at = 0, 1, time.monotonic()
        self.skipped = self.skipped_pictures = 0
        """Steps and images that this rank skipped since the ranks last agreed."""

    @classmethod
    def for_training(cls, mesh: Mesh, settings: CheckpointSettings) -> Self:
        """Return a guard that agrees often: a stop is saved in its grace, however late it comes."""
        return cls(mesh, settings.bad_steps, agree_s=min(2.0, settings.grace_s / 10))

    def check(self, loss: Tensor) -> float | None:
        """Return this rank's loss; None when it is not finite."""
        value = loss.detach().float().item()
        return value if math.isfinite(value) else None

    def agreed(self, engine: Any, *, taken: bool) -> int:
        """Return over how many steps all ranks hold the same weights again: those of a round."""
        return _exchange(engine).agreed

    def count_skipped(self, training: Counted, batch: CountedBatch, *, taken: bool) -> int:
        """Count a step of this rank; return how many all have skipped since they last agreed."""
        if not taken:
            self.skipped += 1
            self.skipped_pictures += batch.local_count
        task, position = training.task, training.position
        ends = position.step == steps_of(task.images, task.batch)
        return self.agree(position, synced=ends or _exchange(training.engine).agreed > 0)

    def agree(self, position: Position, *, synced: bool) -> int:
        """Let ranks learn what one of them knows, where it is time for it.

        That is where they `synced`, where a checkpoint is due by its steps, and after so many steps
        as the slowest rank took in `agree_s`. Return how many steps they skipped since.
        """
        self.stop, self.save, self.flags = False, False, ()
        self._steps += 1
        if not (synced or self._steps >= self._most_steps or self.due_alike()):
            return 0
        due = self.mesh.is_main and self.due()
        step_s = (time.monotonic() - self._agreed_at) / self._steps
        more = (float(question()) for question in self.more)
        known = (self.stop_requested(), due, position.bad_run, step_s, *more)
        local_N = torch.tensor(
            (*known, self.skipped, self.skipped_pictures),
            dtype=torch.float64,
            device=self.mesh.device,
        )
        all_PN = gathered(local_N, self.mesh.data.size)
        stop, save, position.bad_run, step_s, *flags = all_PN.amax(0).tolist()[:-2]
        *_, skipped, pictures = map(int, all_PN.sum(0).tolist())
        self.stop, self.save, position.bad_run = bool(stop), bool(save), int(position.bad_run)
        self.flags = tuple(map(bool, flags))
        position.skipped += skipped
        position.skipped_pictures += pictures
        self._steps, self.skipped, self.skipped_pictures = 0, 0, 0
        self._most_steps = max(1, int(self._agree_s / max(step_s, 1e-6)))
        self._agreed_at = time.monotonic()
        return skipped

    def sync(self, engine: Any) -> int:
        """End the round, and return over how many steps all ranks hold the same weights then."""
        return _exchange(engine).sync()

    def share_statistics(self, training: Counted) -> None:
        """Take statistics again, of the weights that ranks have just agreed on, then their mean."""
        if training.mesh.data.size > 1:
            refresh_statistics(training)
        super().share_statistics(training)

    def complete(self, engine: Any) -> bool:
        """Tell whether the next step ends a round, or an overlap: then ranks send messages."""
        return _exchange(engine).is_sync_step

    def per_rank(self, engine: Any) -> dict[str, PerRank]:
        """Return each rank's state of its optimizer."""
        mesh = engine.mesh.data
        return {"moments": Moments(engine.optimizer, engine.module, mesh.rank, mesh.size)}

    def place(self, training: Counted) -> tuple[int, ...]:
        """Return where this rank stands: all of a round, whatever step of it they have come to."""
        position = training.position
        return position.epoch, position.agreed, _exchange(training.engine).rounds

    def counts(self, training: Counted) -> dict[str, dict[str, int]]:
        """Return the steps of the round."""
        return {"exchange": {TAKEN: _exchange(training.engine).taken}}


def _exchange(engine: Any) -> LocalSteps:
    exchange = engine.exchange
    assert isinstance(exchange, LocalSteps)
    return exchange


_REFRESHING = 20
"""Steps at the end of an epoch whose images give the statistics of weights that ranks agreed on."""


def refresh_statistics(training: Counted) -> None:
    """Take batch-norm statistics again, of the weights that ranks have just agreed on.

    Those which each rank counted in training are of weights that it alone had.
    """
    engine, task, average = training.engine, training.task, training.average
    engine.train()
    counting = {name for name, norm in norms_of(engine.module).items() if norm.training}
    engine.train(False)
    first = max(0, steps_of(task.images, task.batch) - _REFRESHING)

    def show(network: Callable[[Any], object]) -> None:
        for batch in task.batches(training.position.epoch, first):
            for inputs, _ in batch.pieces():
                network(inputs)

    pairs: list[tuple[nn.Module, Callable[[Any], object]]] = [(engine.module, engine)]
    if average:
        pairs.append((average.module, average.module))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        for module, network in pairs:
            norms = [norm for name, norm in norms_of(module).items() if name in counting]
            recompute_statistics(norms, lambda network=network: show(network))  # type: ignore[misc]


def norms_of(net: nn.Module) -> dict[str, _BatchNorm]:
    """Return the batch norms that keep statistics, by name."""
    named = net.named_modules()
    norms = {name: layer for name, layer in named if isinstance(layer, _BatchNorm)}
    return {name: norm for name, norm in norms.items() if norm.track_running_stats}


def recompute_statistics(norms: Collection[_BatchNorm], batches: Callable[[], object]) -> None:
    """Set batch-norm statistics to the mean over what `batches` sends through the network.

    Averaged weights give activations that no ingredient had, so the mean of the ingredients'
    statistics does not fit them (Izmailov et al. 2018, section 3.2). Dropout stays off.
    """
    if not norms:
        return
    kept = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
        norm.train()
    try:
        batches()
    finally:
        for norm, momentum in zip(norms, kept, strict=True):
            norm.momentum = momentum
            norm.eval()


class Moments:
    """What each rank's optimizer keeps."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, module: nn.Module, rank: int, world: int
    ) -> None:
        self._optimizer, self._module = optimizer, module
        self._rank, self._world = rank, world

    def state_dict(self) -> State:
        """Return this rank's, by parameter name."""
        return named_state(self._optimizer, self._module)

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Take this rank's; on another number of ranks the mean of all (whole numbers: the first).

        Raises UnfitStateError before any change.
        """
        if len(states) == self._world:
            result = states[self._rank]
        else:
            every = list(states)
            for state in every:
                check_like(state, every[0], "moments")
            result = {
                name: {key: mean_of([state[name][key] for state in every]) for key in kept}
                for name, kept in every[0].items()
            }
        check_optimizer(result, self._optimizer, self._module, complete=False)
        load_named_state(self._optimizer, self._module, result)
