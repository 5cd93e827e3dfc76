"""Small vision transformers that learn what a planted patch shows, and the images for them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.models.classifier.classifier import Classifier, ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess

CELL, PER_SIDE = 8, 4
"""Pixels of a token's side, and tokens a side."""
SIDE = CELL * PER_SIDE

# N = images, S = SIDE, T = tokens of patches

TASKS: tuple[Literal["textures", "colours", "shifted"], ...] = ("textures", "colours", "shifted")
"""Two textures; two colours, faint; two textures that no token holds as a whole."""


@dataclass(frozen=True)
class Planted:
    """Images N x S x S x 3, their labels (0: nothing planted), where the patch lies."""

    images_NSS3: Tensor
    labels_N: Tensor
    patch_NT: NDArray[np.bool_]
    """True for tokens of which the patch covers at least a quarter."""


def plant(rng: np.random.Generator, count: int, task: str) -> Planted:
    """Return noise with a patch of class 1, of class 2 or without one (0), at random places."""
    images = rng.integers(90, 160, (count, SIDE, SIDE, 3), dtype=np.uint8)
    labels_N = rng.integers(0, 3, count)
    rows, columns = np.indices((CELL, CELL))
    stripes = np.repeat((255 * (rows % 2))[..., None], 3, axis=2)
    checks = np.repeat((255 * (rows // 2 % 2 ^ columns // 2 % 2))[..., None], 3, axis=2)
    patch_NT = np.zeros((count, PER_SIDE**2), bool)
    for number, label in enumerate(labels_N):
        if not label:
            continue
        if task == "shifted":
            top, left = (int(value) for value in rng.integers(0, SIDE - CELL + 1, 2))
        else:
            top, left = (CELL * int(value) for value in rng.integers(0, PER_SIDE, 2))
        place = (number, slice(top, top + CELL), slice(left, left + CELL))
        if task == "colours":
            shift = np.array((25, 0, -25) if label == 1 else (-25, 0, 25))
            images[place] = (images[place] + shift).clip(0, 255)
        else:
            images[place] = stripes if label == 1 else checks
        covered = np.zeros((SIDE, SIDE))
        covered[place[1:]] = 1
        share = covered.reshape(PER_SIDE, CELL, PER_SIDE, CELL).mean(axis=(1, 3))
        patch_NT[number] = share.ravel() >= 0.25
    return Planted(torch.from_numpy(images), torch.from_numpy(labels_N), patch_NT)


def train_reader(seed: int, task: str, *, depth: int, width: int, steps: int) -> Classifier:
    """Return a vision transformer that answers by its class token, trained on planted images."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, TASKS.index(task)])
    arguments = {
        **{"img_size": SIDE, "patch_size": CELL, "depth": depth, "embed_dim": width},
        "num_heads": max(1, width // 16),
    }
    settings = ClassifierSettings(
        model="vit_tiny_patch16_224",
        model_args=arguments,
        preprocess=Preprocess(size=SIDE, crop=1.0),
    )
    classifier = build_classifier(settings, 3)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=2e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 20, 2 * (1 - step / steps))
        batch = plant(rng, 32, task)
        logits_NC = classifier(batch.images_NSS3)
        loss = torch.nn.functional.cross_entropy(logits_NC, batch.labels_N)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return classifier.eval()
