"""The losses of a member, and what each class weighs in them.

Every loss sums over the batch, so that gradients can be divided by the number of images that
all ranks saw. Targets are class numbers, or for mixed images a probability for each class.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from skindx.training.config.recipe import CrossEntropy, Focal, LogitAdjusted, Recipe

# N = images, B = batch, C = classes


class SmoothedCrossEntropy(nn.CrossEntropyLoss):
    """Summed cross-entropy of logits_BC: - sum_bc w_c t_bc log p_bc, with smoothed targets t."""

    def __init__(self, weights_C: Tensor, label_smoothing: float) -> None:
        super().__init__(weights_C, label_smoothing=label_smoothing, reduction="sum")


class FocalLoss(nn.Module):
    """Summed focal loss: - sum_bc w_c t_bc (1 - p_bc)^gamma log p_bc, with smoothed targets t.

    Lin et al. 2017, arXiv 1708.02002, eq. 5, over the classes of a softmax. gamma = 0 is
    cross-entropy.
    """

    weights_C: Tensor

    def __init__(self, weights_C: Tensor, label_smoothing: float, gamma: float) -> None:
        super().__init__()
        self.register_buffer("weights_C", weights_C)
        self.label_smoothing, self.gamma = label_smoothing, gamma

    def forward(self, logits_BC: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over the batch."""
        log_BC = torch.log_softmax(logits_BC, dim=1)
        targets_BC = as_probabilities(targets, logits_BC.shape[1])
        smooth = self.label_smoothing
        targets_BC = targets_BC * (1 - smooth) + smooth / logits_BC.shape[1]
        # 1 - p of a class that is sure is zero, where a power below one has no slope.
        easy_BC = (1 - log_BC.exp()).clamp_min(1e-7) ** self.gamma
        return -(self.weights_C * targets_BC * easy_BC * log_BC).sum()


class LogitAdjustedLoss(SmoothedCrossEntropy):
    """Summed cross-entropy of logits + tau log(prior) (Menon et al. 2020, arXiv 2007.07314)."""

    shift_C: Tensor

    def __init__(
        self, weights_C: Tensor, label_smoothing: float, tau: float, prior_C: Tensor
    ) -> None:
        super().__init__(weights_C, label_smoothing)
        self.register_buffer("shift_C", tau * prior_C.log())

    def forward(self, logits_BC: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over the batch."""
        return super().forward(logits_BC + self.shift_C, targets)


def build_loss(labels_N: NDArray[np.int64], classes: int, recipe: Recipe) -> nn.Module:
    """Return the recipe's loss, a function of (logits_BC, targets), for these training labels."""
    weights_C = class_weights(labels_N, classes, recipe)
    match recipe.loss:
        case CrossEntropy():
            return SmoothedCrossEntropy(weights_C, recipe.label_smoothing)
        case Focal(gamma=gamma):
            return FocalLoss(weights_C, recipe.label_smoothing, gamma)
        case LogitAdjusted(tau=tau):
            counts_C = torch.from_numpy(_counts(labels_N, classes)).float()
            prior_C = counts_C / counts_C.sum()
            return LogitAdjustedLoss(weights_C, recipe.label_smoothing, tau, prior_C)


def drawn_loss(criterion: nn.Module) -> Callable[[Tensor, torch.Generator], Tensor]:
    """Return what draws a label for each row of logits_BC, and sums - log p of what it drew.

    p is the softmax that the loss trains, with its shift of the logits. Gradients of this loss have
    the Fisher matrix as their second moment.
    """
    shift_C = getattr(criterion, "shift_C", 0.0)

    def loss_sum(logits_BC: Tensor, generator: torch.Generator) -> Tensor:
        log_BC = torch.log_softmax(logits_BC.float() + shift_C, dim=1)
        below_BC = log_BC.detach().exp().cumsum(1)
        drawn_B1 = torch.rand(len(log_BC), 1, generator=generator, device=log_BC.device)
        labels_B1 = (below_BC < drawn_B1 * below_BC[:, -1:]).sum(1, keepdim=True)
        return -log_BC.gather(1, labels_B1.clamp_max(log_BC.shape[1] - 1)).sum()

    return loss_sum


def as_probabilities(targets: Tensor, classes: int) -> Tensor:
    """Return targets_BC, for class numbers with a one at the class."""
    if targets.is_floating_point():
        return targets
    return functional.one_hot(targets, classes).float()


def class_weights(labels_N: NDArray[Any], classes: int, recipe: Recipe) -> Tensor:
    """Return the loss weight of each class, see `Recipe.weights_of`."""
    return torch.from_numpy(recipe.weights_of(np.bincount(labels_N, minlength=classes))).float()


def _counts(labels_N: NDArray[Any], classes: int) -> NDArray[Any]:
    """Return how many images each class has; a class without any counts as one."""
    return np.maximum(np.bincount(labels_N, minlength=classes), 1)
