"""What a method may do to a training and to a run; the hooks as they stand do nothing to either.

A method overrides what it needs. Loop, engine, optimizer, averages, statistics and checkpoints call
the hooks and know no method by name: `methods/` imports the core, and `registry` alone loads one.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.errors import UserError
from skindx.core.kinds import METHODS, missing
from skindx.data.manifest import Record
from skindx.training.config.engine import SCHEDULES
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.gradient_sync import GradientSync, build_gradient_sync
from skindx.training.launching.supervise import StopRequest
from skindx.training.parallel.mesh import Mesh, Watch

State = dict[str, Any]

METHOD = "method"
"""What a network that a method has changed calls that method."""
METHOD_STATE = "preconditioner"
"""What an engine's state calls the state of its method."""


class Method:
    """Plain data-parallel training: ranks hold the whole network and work on parts of each batch.

    A step is forward and backward of each of its pieces, then reduce, `apply`, clip and step, or
    `discard` where it is not taken. Every rank calls every hook, in the same order.
    """

    reduces = False
    """Whether it reduces gradients itself, since DeepSpeed takes all weights for the same."""
    changes_gradient = False
    """Whether `apply` changes the gradient, so that its norm is computed again."""
    remembers = False
    """Whether it has a state of its own."""

    def __deepcopy__(self, memo: object) -> Self:
        """A copied network goes on with the same method."""
        return self

    # The network.

    def attach(self, module: nn.Module) -> None:
        """An engine is about to put its hooks on the network."""

    def local_weights(self, module: nn.Module) -> Sequence[nn.Parameter]:
        """Return the weights that are not the same on all ranks."""
        return ()

    def train(self) -> None:
        """The network goes back from evaluation to training."""

    def whole(self, module: nn.Module) -> nn.Module:
        """Return the network, or an average of it, to evaluate and to save."""
        return module

    # A step.

    def forward(self, images: int) -> None:
        """Note that a forward pass of this many of this rank's images begins, in training."""

    def backward(self, scale: float) -> None:
        """A backward pass begins, from the sum of the images' losses times `scale`."""

    def gradient_sync(
        self,
        settings: ExchangeSettings,
        module: nn.Module,
        mesh: Mesh,
        steps_per_epoch: int,
        say: Callable[[str], None],
    ) -> GradientSync | None:
        """Return the exchange of `settings` at work on the network; None: it is DeepSpeed's own.

        Not asked for where DeepSpeed reduces: by a dense exchange and a method without `reduces`.
        """
        return build_gradient_sync(settings, module, mesh, steps_per_epoch, say)

    def apply(self, learning_rate: float) -> None:
        """Change the reduced gradients in place: they are the same on all ranks, and stay so."""

    def discard(self) -> None:
        """The step is not taken; what it brought is dropped."""

    def watch(self, around: Watch | None, module: nn.Module) -> None:
        """Wrap whatever the method waits for in a context manager; None: in none."""

    # State: whole, so that it fits any number of ranks.

    def whole_state(self, module: nn.Module) -> dict[str, Tensor]:
        """Return weights and statistics, which the next step may change."""
        return dict(module.state_dict())

    def local_state(self, state: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
        """Undo `whole_state`: what this rank holds."""
        return dict(state)

    def whole_weights(self, module: nn.Module) -> dict[str, Tensor]:
        return {name: weight.detach() for name, weight in module.named_parameters()}

    def whole_shapes(self, module: nn.Module) -> dict[str, torch.Size]:
        """Return the whole shapes of weights of which this rank holds another one."""
        return {}

    def whole_moments(self, state: Mapping[str, Any], module: nn.Module) -> State:
        """Return an optimizer's state by parameter name."""
        return dict(state)

    def local_moments(self, state: Mapping[str, Any], module: nn.Module) -> State:
        """Undo `whole_moments`."""
        return dict(state)

    def state_dict(self) -> State:
        """Return what the method remembers from step to step, the same on every rank."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Go on from a state, on any number of ranks. Raises UnfitStateError before any change."""

    def close(self) -> None:
        """Remove the method's hooks from the network."""


PLAIN = Method()


def method_of(module: nn.Module) -> Method:
    """Return the method that has changed a network; the plain one for any other network."""
    return getattr(module, METHOD, PLAIN)


class RunMethod:
    """What a method may do to a run before its ranks train, and in their place."""

    checks_steps = False
    """Whether it checks the images of the smallest step itself, since its steps differ."""

    def __init__(self, settings: TrainSettings) -> None:
        """Take the settings of a run, which are checked as settings already."""
        self.settings = settings

    def check_machine(self) -> None:
        """Raise UserError for what this machine lacks."""

    def check_member(
        self, member: MemberSettings, classifier: nn.Module, train: Sequence[Record], ranks: int
    ) -> None:
        """Raise UserError for a member that cannot be trained so; `classifier` has no memory."""

    def check_run(
        self, records: Sequence[Record], classes: int, run: Path, *, workers: int, everywhere: int
    ) -> None:
        """Raise UserError for a run that cannot be trained so.

        There are `workers` processes on this machine, and `everywhere` on all.
        """

    def launch(self, run: Path, dataset: Path) -> bool:
        """Start what trains in place of the ranks, and wait for it; False: the ranks train."""
        return False

    def train_as_rank(self, run: Path, dataset: Path, stop: StopRequest) -> bool | None:
        """Train as the process that another launcher started; return whether it packs.

        None: it is one of the ranks.
        """
        return None

    def train_as_launched(
        self, run: Path, dataset: Path, stop: StopRequest, only: Sequence[str]
    ) -> bool:
        """Train as a process that `launch` started, `only` these jobs, if given.

        False: it is one of the ranks.
        """
        return False

    def join(self, run: Path, dataset: Path) -> None:
        """Be one more worker of a training that another process began, until it has no more work.

        Raises UserError where no such training is at work; StoppedError when asked to stop.
        """
        raise nobody_at_work(run)


def nobody_at_work(run: Path) -> UserError:
    """Return the error of a run in which no training takes further workers."""
    kinds = [name for name, kind in SCHEDULES.loaded().items() if not kind.together]
    if not kinds:
        return UserError(f"{missing('skindx train --join', METHODS)}.")
    return UserError(
        f"no training with schedule {' or '.join(kinds)} is running in {run}; start the training "
        "first, then run `skindx train --join`."
    )
