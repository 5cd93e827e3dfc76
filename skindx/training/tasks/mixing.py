"""Mixed images of a recipe with `mix`: whose partner each is, what is drawn, and the blend.

Mixup (Zhang et al. 2017, arXiv 1710.09412) and CutMix (Yun et al. 2019, arXiv 1905.04899).

Partners are neighbours: the 1st and 2nd image of a step, the 3rd and 4th, … are blended with each
other in the same proportion; the last of an odd number takes its left neighbour and gives
nothing. A step's order is a fresh permutation, so a neighbour is as random as any other partner,
every image leads exactly one sample, and the labels of a step weigh what they weighed before.

Under several ranks the steps are the same as on one: where a rank's part ends inside a pair, it
loads its neighbour's image as well, two more at most, which count in no loss. Only with shards,
where a rank cannot see what others keep, are the pairs those of the rank's own part. What is
drawn depends on (seed, epoch, step) alone, and with shards on the rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.training.config.recipe import Mix
from skindx.training.tasks.losses import as_probabilities

# B = this rank's images, L = the images it loads (B and borrowed ones), S = side, C = classes

_STREAM = 0x6D6978
"""Keeps these draws apart from those that order the images, which have the same seeds."""


@dataclass(frozen=True)
class Mixture:
    """How one rank mixes one step."""

    borrowed: NDArray[np.int64]
    """Numbers of the images to load after the rank's own ones."""
    partner_B: NDArray[np.int64]
    """Position of each image's partner among the loaded ones."""
    kept_B: NDArray[np.float32]
    """Share of the image outside its rectangle: 1 for CutMix."""
    box_B4: NDArray[np.float32]
    """The rectangle that shows the partner: top, left, bottom, right as shares of the side."""


def draw_mixture(
    mix: Mix, shares: Sequence[NDArray[np.int64]], rank: int, seeds: Sequence[int], *, sharded: bool
) -> Mixture:
    """Return a rank's mixture of the step whose images are `shares`, one array a rank."""
    if sharded:
        shares, rank, seeds = [shares[rank]], 0, (*seeds, rank)
    step = np.concatenate(shares)
    first = sum(len(share) for share in shares[:rank])
    places_B = np.arange(first, first + len(shares[rank]))
    partner_B = np.where(places_B ^ 1 < len(step), places_B ^ 1, np.maximum(places_B - 1, 0))
    outside = sorted(set(partner_B.tolist()) - set(places_B.tolist()))
    loaded = {place: at for at, place in enumerate([*places_B.tolist(), *outside])}
    kept, box = _draw(mix, -(-len(step) // 2), np.random.default_rng((*seeds, _STREAM)))
    return Mixture(
        step[outside],
        np.array([loaded[place] for place in partner_B.tolist()]),
        kept[places_B // 2],
        box[places_B // 2],
    )


def _draw(
    mix: Mix, pairs: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Draw what an image keeps and the rectangle it gives away, for each pair."""
    mixed, cut = rng.random(pairs) < mix.probability, rng.random(pairs) < _cut_share(mix)
    up_keep = rng.beta(mix.mixup, mix.mixup, pairs) if mix.mixup else np.ones(pairs)
    cut_keep = rng.beta(mix.cutmix, mix.cutmix, pairs) if mix.cutmix else np.ones(pairs)
    # CutMix eq. 2: a rectangle of the area 1 - lambda around a point anywhere, cut at the edges.
    side = np.where(mixed & cut, np.sqrt(1 - cut_keep), 0.0)[:, None]
    centre = rng.random((pairs, 2))
    box = np.concatenate([centre - side / 2, centre + side / 2], axis=1).clip(0, 1)
    kept = np.where(mixed & ~cut, up_keep, 1.0)
    return kept.astype(np.float32), box.astype(np.float32)


def _cut_share(mix: Mix) -> float:
    if not mix.cutmix:
        return 0.0
    return mix.cutmix_share if mix.mixup else 1.0


def blend(
    mixture: Mixture, images_LSS3: Tensor, labels_L: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Return mixed images, B x S x S x 3 float32 on the 0..255 scale, and their targets_BC.

    Works on the device of the images; `labels_L` lies there as well.
    """
    device, side, count = images_LSS3.device, images_LSS3.shape[1], len(mixture.partner_B)
    partner_B = torch.from_numpy(mixture.partner_B).to(device, non_blocking=True)
    kept_B = torch.from_numpy(mixture.kept_B).to(device, non_blocking=True)
    box_B4 = torch.from_numpy(mixture.box_B4).to(device, non_blocking=True)
    top_B, left_B, bottom_B, right_B = (box_B4 * side).round().unbind(1)
    at_S = torch.arange(side, device=device)
    rows_BS = (at_S >= top_B[:, None]) & (at_S < bottom_B[:, None])
    columns_BS = (at_S >= left_B[:, None]) & (at_S < right_B[:, None])
    inside_BSS1 = (rows_BS[:, :, None] & columns_BS[:, None, :])[..., None]

    all_LSS3 = images_LSS3.float()
    partner_BSS3 = all_LSS3[partner_B]
    kept_B111 = kept_B.view(-1, 1, 1, 1)
    blended_BSS3 = all_LSS3[:count] * kept_B111 + partner_BSS3 * (1 - kept_B111)
    # The label follows the pixels that are really seen, after rounding and cutting at the edges.
    area_B = (bottom_B - top_B).clamp_min(0) * (right_B - left_B).clamp_min(0) / side**2
    seen_B1 = (kept_B * (1 - area_B))[:, None]
    labels_LC = as_probabilities(labels_L, classes)
    targets_BC = labels_LC[:count] * seen_B1 + labels_LC[partner_B] * (1 - seen_B1)
    return torch.where(inside_BSS1, partner_BSS3, blended_BSS3), targets_BC
