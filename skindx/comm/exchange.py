"""Interface of every gradient exchange, and the reducer that launches it beside backward."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from skindx.comm.fabric import Fabric, GradientBuffer
from skindx.core.state_checks import check_like

State = dict[str, Any]
"""Names to tensors and plain values, as a checkpoint holds them."""


class Exchange(ABC):
    """Turns each rank's gradient into the mean over all ranks, or into what stands for it.

    Once `attach` is called, each step is: every rank writes its gradient into `gradients.flat`;
    `launch` is called for each group as soon as it is complete on this rank, in plan order, often
    while backward still computes the next; `finish` waits, and `gradients.flat` holds the same
    values on every rank. All ranks call all of it in the same order.
    """

    after_update: ClassVar[str] = ""
    """Name in a timeline of the time in which `step_done` waits for other ranks; empty: none."""
    remembers: ClassVar[bool] = False
    """Whether the residuals have the units of the gradient."""
    sums: ClassVar[bool] = False
    """Whether the kind accepts gradients that are already divided by the number of ranks."""
    divided: bool = False
    """Whether this step's gradients come divided, so that their sum is the mean."""

    fabric: Fabric
    gradients: GradientBuffer
    ready: Callable[[nn.Parameter], None] = staticmethod(lambda weight: None)
    """The reducer's callback, called once a gradient of `computes` is complete on this rank."""

    def attach(self, fabric: Fabric, gradients: GradientBuffer, steps_per_epoch: int) -> None:
        """Get ready; every rank calls this. `gradients` has its layout and stays the same."""
        self.fabric, self.gradients = fabric, gradients
        self.steps_per_epoch = steps_per_epoch

    def observe(self, module: nn.Module) -> None:
        """See the layers whose gradients these are, after `attach`; most kinds do not look."""
        return

    @property
    def computes(self) -> frozenset[nn.Parameter]:
        """Parameters whose gradients in this step come from the exchange, not from autograd."""
        return frozenset()

    def begin(self) -> None:
        """The first backward pass of a step begins; layout and groups may change here."""
        return

    @property
    def groups(self) -> Sequence[int]:
        """How many tensors each group has, in the order of `gradients`; all in one by default."""
        return [len(self.gradients.names)]

    @abstractmethod
    def launch(self, group: int) -> None:
        """Begin with a group that is complete on this rank."""

    @abstractmethod
    def finish(self) -> bool:
        """Wait until `gradients.flat` holds the result.

        False when some rank's gradient was not finite: then the step must not be taken, and what is
        remembered from step to step is as it was before. All ranks learn the same, but where the
        kind's settings name another `guard`. A kind that remembers nothing may return True: what is
        not finite is then in `gradients.flat`.
        """

    def norm(self) -> float:
        """Return the norm of the result, once `finish` has returned."""
        return float(torch.linalg.vector_norm(self.gradients.flat))

    def forward(self) -> None:
        """A forward pass begins."""
        return

    def step_done(self) -> None:
        """The optimizer has moved the weights."""
        return

    def step_skipped(self) -> None:
        """The step was not taken: the weights are as they were."""
        return

    def break_off(self) -> None:
        """A rank is lost: take back what is under way."""
        return

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent since `attach`."""
        return self.fabric.bytes_sent

    def state_dict(self) -> State:
        """Return what this rank remembers from step to step (residuals, warm-up)."""
        return {}

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Restore the states of all ranks, in rank order; their number may have been another."""
        return

    def close(self) -> None:
        """Release threads, if there are any."""
        return


def take_over(residual_M: Tensor, states: Sequence[State], name: str, fabric: Fabric) -> None:
    """Fill a rank's residual from all ranks' states, in rank order. Raises UnfitStateError.

    On the same number of ranks it is the rank's own. On another, each takes the mean of all: a
    step applies the mean of what ranks send, so this keeps the update that is still to come.
    """
    if len(states) == fabric.world:
        state = states[fabric.rank]
        check_like(state.get(name), residual_M, f"exchange/{name}")
        residual_M.copy_(state[name])
        return
    residual_M.zero_()
    for state in states:
        check_like(state.get(name), residual_M, f"exchange/{name}")
        residual_M.add_(state[name].to(residual_M.device), alpha=1 / len(states))


class Reducer:
    """Watches a module's backward and signals to the exchange which groups are complete.

    Groups are launched in plan order on all ranks, whatever order gradients come in: ranks that
    launched in different orders would wait for one another for ever. A parameter that the loss
    does not reach counts as zeros.
    """

    def __init__(self, gradients: GradientBuffer, exchange: Exchange) -> None:
        self.gradients, self.exchange = gradients, exchange
        self.saw: Callable[[str], None] | None = None
        """Called with each parameter's name when its gradient is complete; for a trace."""
        self._group_of: dict[nn.Parameter, int] = {}
        self._missing: list[int] = []
        self._view_of: dict[nn.Parameter, Tensor] = {}
        self._next, self._armed, self._begun, self._passes = 0, False, False, 0
        self._share = 1.0
        self._computed: frozenset[nn.Parameter] = frozenset()
        self._names = dict(zip(gradients.parameters, gradients.names, strict=True))
        self._hooks = [
            _after_gradient(parameter, self._ready) for parameter in gradients.parameters
        ]
        self._grouped: tuple[list[int], list[str]] | None = None
        exchange.ready = self._ready

    def _regroup(self) -> None:
        """Take over the exchange's groups and the gradients' layout, where they have changed."""
        now = (list(self.exchange.groups), self.gradients.names)
        if now == self._grouped:
            return
        self._grouped = now
        ends = list(accumulate(now[0]))
        starts = [0, *ends][:-1]
        self._group_of = {
            self.gradients.parameters[number]: group
            for group, (start, end) in enumerate(zip(starts, ends, strict=True))
            for number in range(start, end)
        }
        assert len(self._group_of) == len(self.gradients.parameters)

    def begin(self) -> None:
        """Get ready for a backward pass of a step; the first one of a step begins it."""
        self._passes += 1
        if self._begun:
            return
        self.exchange.begin()
        self._computed = self.exchange.computes
        self._regroup()
        # Autograd hands its own tensors over, which go into the buffer as they come: to add to
        # zeros there would take twice as many passes over the memory.
        self.gradients.detach()
        self._view_of = dict(zip(self.gradients.parameters, self.gradients.views, strict=True))
        self._missing = list(self.exchange.groups)
        self._next, self._begun, self._passes = 0, True, 1

    def arm(self) -> None:
        """The next backward is the last of the step: what it completes may be sent."""
        self._armed = True
        # What later passes add is not divided: only a step of one pass can be.
        exchange = self.exchange
        exchange.divided = exchange.sums and self._passes == 1
        self._share = 1 / exchange.fabric.world if exchange.divided else 1.0

    def _ready(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        if self._begun:
            self._place(parameter)
        if not self._armed:
            return
        if self.saw:
            self.saw(self._names[parameter])
        self._missing[self._group_of[parameter]] -= 1
        while self._next < len(self._missing) and self._missing[self._next] <= 0:
            self.exchange.launch(self._next)
            self._next += 1

    def _place(self, parameter: nn.Parameter) -> None:
        """Put a gradient into the buffer; later backward passes of the step add to it there."""
        view, gradient = self._view_of[parameter], parameter.grad
        if gradient is view:
            return
        if parameter in self._computed:
            if gradient is not None:
                raise RuntimeError(
                    f"{self._names[parameter]} is used outside its own layer, which this exchange "
                    "does not support; set exchange.kind=fused."
                )
        elif gradient is None:
            view.zero_()
        elif self._armed and self._share != 1.0:
            torch.mul(gradient, self._share, out=view)
        else:
            view.copy_(gradient)
        parameter.grad = view

    def finish(self) -> float | None:
        """Launch what is left, and wait; return the norm of the gradient that all ranks hold.

        None, on every rank, where it is not finite: the step must not be taken.
        """
        if self._begun:
            for parameter in self.gradients.parameters:
                self._place(parameter)  # what the loss did not reach
        while self._next < len(self._missing):
            self.exchange.launch(self._next)
            self._next += 1
        self._armed = self._begun = False
        if not self.exchange.finish():
            return None
        # Exact kinds carry what is not finite to all ranks, as sums do.
        norm = self.exchange.norm()
        return norm if math.isfinite(norm) else None

    def discard(self) -> None:
        """Forget the gradients of this step, of which nothing was launched."""
        assert not self._armed
        self._begun = False

    def close(self) -> None:
        """Let go of the parameters."""
        for hook in self._hooks:
            hook.remove()
        self.exchange.close()


def _after_gradient(parameter: Any, call: Callable[[Tensor], None]) -> RemovableHandle:
    hook: RemovableHandle = parameter.register_post_accumulate_grad_hook(call)
    return hook
