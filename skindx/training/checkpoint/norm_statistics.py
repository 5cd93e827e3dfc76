"""Batch-norm statistics: each rank's, and their mean."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from skindx.core.state_checks import check_like
from skindx.training.checkpoint.saved_state import State, mean_of


class Buffers:
    """The buffers of networks, which differ by rank until their average is taken."""

    def __init__(self, networks: Sequence[nn.Module], rank: int, world: int) -> None:
        self._networks, self._rank, self._world = tuple(networks), rank, world
        self._kept: dict[torch.dtype, list[Tensor]] = {}

    def _named(self) -> dict[str, Tensor]:
        return {
            f"{number}.{name}": buffer
            for number, network in enumerate(self._networks)
            for name, buffer in network.named_buffers()
        }

    def state_dict(self) -> State:
        """Return the buffers by name; every rank calls this."""
        return dict(self._named())

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Take this rank's own; on another number of ranks the mean of all (counts: the first)."""
        if len(states) == self._world:
            result = states[self._rank]
            check_like(result, self._named(), "statistics")
        else:
            every = list(states)
            for state in every:
                check_like(state, self._named(), "statistics")
            result = {name: mean_of([state[name] for state in every]) for name in every[0]}
        with torch.no_grad():
            for name, buffer in self._named().items():
                buffer.copy_(result[name])

    def remember(self) -> None:
        """Keep a copy to go back to: of a hundred small tensors in each step, so all at once."""
        for dtype, buffers in self._by_dtype().items():
            if dtype not in self._kept:
                self._kept[dtype] = [torch.empty_like(buffer) for buffer in buffers]
            torch._foreach_copy_(self._kept[dtype], buffers)

    def go_back(self) -> None:
        """Undo what happened since `remember`."""
        for dtype, buffers in self._by_dtype().items():
            torch._foreach_copy_(buffers, self._kept[dtype])

    def _by_dtype(self) -> dict[torch.dtype, list[Tensor]]:
        result: dict[torch.dtype, list[Tensor]] = {}
        for network in self._networks:
            for buffer in network.buffers():
                result.setdefault(buffer.dtype, []).append(buffer)
        return result
