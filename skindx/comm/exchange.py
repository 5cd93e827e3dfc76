"""Interface of every gradient exchange: settings with a `kind`, and one small class."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from skindx.comm.fabric import Fabric
from skindx.comm.gradients import Gradients
from skindx.core.settings_base import Settings

State = dict[str, Any]
"""Names to tensors and plain values, as a checkpoint holds them."""


class ExchangeSettings(Settings):
    """How ranks agree on the mean of their gradients; each kind has settings of its own."""

    kind: str


class Exchange(ABC):
    """Turns each rank's gradient into the mean over all ranks, or into what stands for it.

    Once `attach` is called, each step is: every rank writes its gradient into `gradients.flat`;
    `launch` is called for each group as soon as it is complete on this rank, in plan order, often
    while backward still computes the next; `finish` waits, and `gradients.flat` holds the same
    values on every rank. All ranks call all of it in the same order.
    """

    remembers: ClassVar[bool] = False
    """True for a kind whose residuals stand in the units of the gradient."""
    sums: ClassVar[bool] = False
    """True for a kind to which gradients may come divided by the number of ranks."""
    divided: bool = False
    """In this step they come so, and their sum is the mean: the reducer divides while it copies."""

    fabric: Fabric
    gradients: Gradients
    ready: Callable[[nn.Parameter], None] = staticmethod(lambda weight: None)
    """The reducer's: called once a gradient of `computes` is complete on this rank."""

    def attach(self, fabric: Fabric, gradients: Gradients, steps_per_epoch: int) -> None:
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

        False, on every rank alike, when some rank's gradient was not finite: then the step must
        not be taken, and what is remembered from step to step is as it was before. A kind that
        remembers nothing may return True: what is not finite is then in `gradients.flat`.
        """

    def norm(self) -> float:
        """Return the norm of the result, once `finish` has returned."""
        return float(torch.linalg.vector_norm(self.gradients.flat))

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent since `attach`."""
        return self.fabric.bytes_sent

    def state_dict(self) -> State:
        """Return what this rank remembers from step to step (residuals, warm-up)."""
        return {}

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Go on from all ranks' states, in rank order; there may have been more or fewer then."""
        return

    def close(self) -> None:
        """Release threads, if there are any."""
        return
