"""Interface of preconditioners."""

from typing import Any, Protocol

State = dict[str, Any]


class Preconditioner(Protocol):
    """Changes the gradient between its reduction and the clipping of its norm.

    Every rank calls all of it, in the same order; a step is forward and backward of each of its
    pieces, then `apply`, or `discard` when it is not taken.
    """

    def forward(self, images: int) -> None:
        """A forward pass of so many of this rank's images begins."""

    def backward(self, scale: float) -> None:
        """Its backward pass begins, from the sum of the images' losses times `scale`."""

    def apply(self, learning_rate: float) -> None:
        """Change the gradients in place: they are the same on all ranks, and stay so."""

    def discard(self) -> None:
        """The step is not taken; what it brought is dropped."""

    def state_dict(self) -> State:
        """Return what is remembered from step to step, the same on every rank."""

    def load_state_dict(self, state: State) -> None:
        """Go on from a state, on any number of ranks. Raises UnfitStateError before any change."""

    def close(self) -> None:
        """Remove the hooks from the module."""
