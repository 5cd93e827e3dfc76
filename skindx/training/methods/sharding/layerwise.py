"""LARS and LAMB for layers that are split over ranks: rates by the norms of whole layers.

timm's optimizers step on tensors that stand in for the ranks' parts, so that moments, momentum and
their names are those of whole layers, and a checkpoint fits both.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from timm.optim import Lamb, Lars
from torch import Tensor, nn

from skindx.training.method import Group
from skindx.training.methods.sharding.parts import PARTS, Part, Placed, parts_of

Closure = Callable[[], float] | None

# N = split weights of all groups or of one, in order


class SplitLars(Lars):  # type: ignore[misc] # timm has no types
    """LARS (You et al. 2017) in which groups with `PARTS` hold parts of layers that all adapt.

    Every rank calls `step`: it sums squares over the ranks of each layer.
    """

    @torch.no_grad()
    def step(self, closure: Closure = None) -> Any:
        """Take a step."""
        groups = _split(self)
        norms = _whole_norms(groups, _weights(groups), _gradients(groups))
        stand_ins: dict[Tensor, Tensor] = {}
        for group, (weights_N, gradients_N) in zip(groups, norms, strict=True):
            decay = group["weight_decay"]
            steep_N = gradients_N + decay * weights_N + group["eps"]
            ratios_N = _where_both(
                weights_N, gradients_N, group["trust_coeff"] * weights_N / steep_N
            )
            for weight, ratio in zip(group["params"], ratios_N, strict=True):
                if weight.grad is not None:
                    stand_in = stand_ins[weight] = weight.detach()  # the same memory
                    change = weight.grad.add(weight, alpha=decay)
                    stand_in.grad = change.mul_(ratio.to(change.dtype))
        with _instead(self, stand_ins, weight_decay=0.0, always_adapt=False):
            return super().step(closure)


class SplitLamb(Lamb):  # type: ignore[misc]
    """LAMB (You et al. 2019) in which groups with `PARTS` hold parts of layers that all adapt.

    Every rank calls `step`: it sums squares over the ranks of each layer.
    """

    @torch.no_grad()
    def step(self, closure: Closure = None) -> Any:
        """Take a step."""
        groups = _split(self)
        changes: dict[Tensor, Tensor] = {}
        for weight in _weights(groups):
            if weight.grad is not None:
                changes[weight] = torch.zeros_like(weight)
                changes[weight].grad = weight.grad
        # From zero at a rate of -1 timm's step arrives at Adam's update itself.
        with _instead(self, changes, lr=-1.0, weight_decay=0.0, always_adapt=False):
            loss = super().step(closure)
        for group in groups:
            for weight in group["params"]:
                if weight in changes:
                    changes[weight].add_(weight, alpha=group["weight_decay"])
        updates = [changes.get(weight) for weight in _weights(groups)]
        norms = _whole_norms(groups, _weights(groups), updates)
        for group, (weights_N, updates_N) in zip(groups, norms, strict=True):
            rates_N = group["lr"] * _where_both(weights_N, updates_N, weights_N / updates_N)
            for weight, rate in zip(group["params"], rates_N, strict=True):
                if weight in changes:
                    weight.sub_(changes[weight].mul_(rate.to(weight.dtype)))
        return loss


SPLIT_OPTIMIZERS: dict[type[torch.optim.Optimizer], type[torch.optim.Optimizer]] = {
    Lars: SplitLars,
    Lamb: SplitLamb,
}


def split_groups(net: nn.Module, groups: Sequence[Group]) -> list[Group]:
    """Put the weights of layers that no rank has whole into groups of their own.

    Such a group holds the `Part` of each of its weights as `PARTS`, in their order. Stages of a
    network have whole layers.
    """
    parts = {
        net.get_parameter(name): part
        for name, part in parts_of(net).items()
        if len(part.shape) > 1 and not isinstance(part, Placed)
    }
    order = {weight: number for number, weight in enumerate(net.parameters())}
    made: list[Group] = []
    for group in groups:
        whole = [weight for weight in group["params"] if weight not in parts]
        split = [weight for weight in group["params"] if weight in parts]
        made += [{**group, "params": whole}] if whole else []
        made += [{**group, "params": split, PARTS: [parts[w] for w in split]}] if split else []
    return sorted(made, key=lambda group: order[group["params"][0]])


def _split(optimizer: torch.optim.Optimizer) -> list[Group]:
    return [group for group in optimizer.param_groups if PARTS in group]


def _weights(groups: Sequence[Group]) -> list[Tensor]:
    return [weight for group in groups for weight in group["params"]]


def _gradients(groups: Sequence[Group]) -> list[Tensor | None]:
    return [weight.grad for weight in _weights(groups)]


@contextmanager
def _instead(
    optimizer: torch.optim.Optimizer, stand_ins: dict[Tensor, Tensor], **change: Any
) -> Iterator[None]:
    """Let an optimizer step on other tensors and settings in place of the split weights.

    What it keeps of them belongs to the weights, and the steps that it counts to their groups.
    """
    groups = optimizer.param_groups
    optimizer.param_groups = [
        {**group, **change, "params": [stand_ins[w] for w in group["params"] if w in stand_ins]}
        if PARTS in group
        else group
        for group in groups
    ]
    for weight, stand_in in stand_ins.items():
        optimizer.state[stand_in] = optimizer.state[weight]
    try:
        yield
    finally:
        for group, used in zip(groups, optimizer.param_groups, strict=True):
            if "step" in used:
                group["step"] = used["step"]
        optimizer.param_groups = groups
        for weight, stand_in in stand_ins.items():
            del optimizer.state[stand_in]
            if not optimizer.state[weight]:  # LARS without momentum keeps nothing
                del optimizer.state[weight]


def _whole_norms(
    groups: Sequence[Group], *kinds: Sequence[Tensor | None]
) -> list[tuple[Tensor, ...]]:
    """Return for each group the norms of whole layers in each kind of tensor, as rows of N.

    One sum for each set of ranks, in the order in which the layers come. A rank takes part also
    with nothing: with no gradient, or an empty part.
    """
    parts: list[Part] = [part for group in groups for part in group[PARTS]]
    if not parts:
        return []
    device = _weights(groups)[0].device
    squares_KN = torch.stack([_squares(kind, device) for kind in kinds])
    for links in dict.fromkeys(part.links for part in parts):
        on_links = torch.tensor([part.links is links for part in parts], device=device)
        squares_KN[:, on_links] = links.sum(squares_KN[:, on_links].contiguous())
    norms_KN = squares_KN.sqrt_()
    each = torch.split(norms_KN, [len(group["params"]) for group in groups], dim=1)
    return [tuple(norms) for norms in each]


def _squares(tensors_N: Sequence[Tensor | None], device: torch.device) -> Tensor:
    squares_N = torch.zeros(len(tensors_N), dtype=torch.float64, device=device)
    held = {n: t for n, t in enumerate(tensors_N) if t is not None and t.numel()}
    if held:
        norms = torch.stack(torch._foreach_norm(list(held.values())))
        squares_N[torch.tensor(list(held), device=device)] = norms.double().square()
    return squares_N


def _where_both(weights_N: Tensor, directions_N: Tensor, ratios_N: Tensor) -> Tensor:
    """Return the ratios, and one where either norm is zero, as timm does."""
    return torch.where((weights_N > 0) & (directions_N > 0), ratios_N, 1.0)
