"""The loss of a member, and what each class weighs in it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skindx.training.recipe import Recipe

# N = pictures, C = classes


def build_loss(labels_N: NDArray[np.int64], classes: int, recipe: Recipe) -> nn.Module:
    """Return a function of (logits_BC, labels_B) that sums over the batch."""
    return nn.CrossEntropyLoss(
        weight=class_weights(labels_N, classes, recipe),
        label_smoothing=recipe.label_smoothing,
        reduction="sum",
    )


def class_weights(labels_N: NDArray[Any], classes: int, recipe: Recipe) -> Tensor:
    """Return the loss weight of each class: N / (C n_c), its square root, or one."""
    counts_C = np.maximum(np.bincount(labels_N, minlength=classes), 1)
    balanced_C = len(labels_N) / (classes * counts_C)
    power = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}[recipe.class_weights]
    return torch.from_numpy(balanced_C**power).float()
