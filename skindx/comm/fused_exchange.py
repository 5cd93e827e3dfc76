"""Fused: dense all-reduce of groups of tensors, each as soon as backward has made it."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.comm.exchange import Exchange, State
from skindx.comm.fabric import Fabric, GradientBuffer
from skindx.comm.fused import FusedSettings
from skindx.comm.grouping import fixed_buckets
from skindx.core.state_checks import UnfitStateError, check_list


class Fused(Exchange):
    """Merged-gradient wait-free backpropagation (Shi et al. 2018, arXiv 1811.11141).

    Executes a plan; `skindx.comm.grouping` makes it. Each rank sends 2 (P - 1) / P of the gradient.
    """

    sums = True

    def __init__(self, settings: FusedSettings) -> None:
        self.settings = settings
        self._norms: list[Tensor] = []
        self._works: list[tuple[dist.Work, Tensor, Tensor]] = []

    def attach(self, fabric: Fabric, gradients: GradientBuffer, steps_per_epoch: int) -> None:
        """Start with buckets of a fixed size."""
        super().attach(fabric, gradients, steps_per_epoch)
        sizes = [4 * elements for elements in gradients.sizes]
        self._groups = fixed_buckets(sizes, self.settings.bucket_mb, first_mb=1)
        self.planned = False

    @property
    def groups(self) -> Sequence[int]:
        return self._groups

    def plan(self, groups: Sequence[int]) -> None:
        """Take other groups, between two steps; the same on every rank, or all would hang."""
        assert sum(groups) == len(self.gradients.names)
        assert min(groups) > 0
        self._groups = list(groups)

    def launch(self, group: int) -> None:
        first = sum(self._groups[:group])
        span = self.gradients.span(first, first + self._groups[group])
        sent = span.bfloat16() if self.settings.wire == "bf16" else span
        self._works.append((self.fabric.all_reduce(sent), sent, span))

    def finish(self) -> bool:
        """Wait for all groups, and take each one's norm while the next ones are under way."""
        self._norms.clear()
        for work, sent, span in self._works:
            work.wait()
            if sent is not span:
                span.copy_(sent)
            if not self.divided:
                span.div_(self.fabric.world)
            self._norms.append(torch.linalg.vector_norm(span))
        self._works.clear()
        return True

    def norm(self) -> float:
        return float(torch.linalg.vector_norm(torch.stack(self._norms))) if self._norms else 0.0

    def state_dict(self) -> State:
        """Return the plan, so that a resumed training keeps it."""
        if not self.planned:
            return {}
        return {"groups": list(self._groups), "order": list(self.gradients.names)}

    def load_state_dict(self, states: Sequence[State]) -> None:
        """Take the plan over, also on another number of ranks: tune again by a new run."""
        state = states[0]
        if "groups" in state:
            groups = check_list(state["groups"], int, "exchange/groups")
            order = check_list(state.get("order"), str, "exchange/order")
            names = self.gradients.names
            if set(order) != set(names):
                return  # other layers are split over the ranks now: they are planned again
            if sorted(order) != sorted(names) or sum(groups) != len(names) or min(groups) < 1:
                raise UnfitStateError("exchange/groups does not fit the parameters of this network")
            self.gradients.reorder(list(order))
            self.plan(groups)
            self.planned = True
