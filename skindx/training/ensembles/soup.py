"""Soups: the mean of several networks' weights, made without training (Wortsman et al. 2022)."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from skindx.metrics import balanced_accuracy
from skindx.models.ensemble.ensemble import Member
from skindx.training.finished.snapshots import State

# N = images, C = classes


def average(states: Sequence[State]) -> State:
    """Return the mean of each tensor; what is no floating number comes from the first.

    Summed in double precision, so that the mean of equal weights is these weights, to the bit.
    """
    first = states[0]
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor.clone()
        for name, tensor in first.items()
    }


def same(first: State, second: State) -> bool:
    """True when two networks are the same to the bit."""
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def recompute_statistics(net: nn.Module, batches: Callable[[], object]) -> None:
    """Set batch-norm statistics to the mean over what `batches` sends through the network.

    Averaged weights give activations that no ingredient had, so the mean of the ingredients'
    statistics does not fit them (Izmailov et al. 2018, section 3.2). Dropout stays off.
    """
    norms = [layer for layer in net.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    norms = [layer for layer in norms if layer.track_running_stats]
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


Mix = Callable[[Sequence[State]], tuple[State, NDArray[np.float64]]]
"""Mixes ingredients; returns the soup and its log-probabilities of the validation images."""


def cook(
    ingredients: Sequence[State], mix: Mix, truth_N: NDArray[np.int64], *, greedy: bool
) -> tuple[State, NDArray[np.float64], list[int]]:
    """Return the soup, its log-probabilities N x C, and which ingredients are in it.

    Greedy (Wortsman et al. 2022, recipe 1): best first, each stays if balanced accuracy on
    validation does not fall.
    """
    if not greedy:
        return *mix(ingredients), list(range(len(ingredients)))

    def score(log_NC: NDArray[np.float64]) -> float:
        return balanced_accuracy(np.exp(log_NC), truth_N)

    alone = [score(mix([state])[1]) for state in ingredients]
    first, *others = sorted(range(len(ingredients)), key=lambda i: -alone[i])
    chosen, best = [first], mix([ingredients[first]])
    for index in others:
        tried = mix([ingredients[number] for number in [*chosen, index]])
        if score(tried[1]) >= score(best[1]):
            chosen, best = [*chosen, index], tried
    return *best, sorted(chosen)


def mixer(
    member: Member,
    judge: Callable[[Member], NDArray[np.float64]],
    learn: Callable[[Member], object],
) -> Mix:
    """Return a function that mixes states in `member`'s network.

    `judge` gives its log-probabilities of the validation images; `learn` sends the training
    images through it.
    """

    def mix(states: Sequence[State]) -> tuple[State, NDArray[np.float64]]:
        net = member.classifier.net
        mean = average(states)
        net.load_state_dict(mean)
        if not all(same(mean, state) for state in states):
            recompute_statistics(net, lambda: learn(member))
        state = {name: tensor.detach().cpu().clone() for name, tensor in net.state_dict().items()}
        return state, judge(member)

    return mix
