"""Features of all layers of a network, with colours: what the last layer alone has lost.

The mean and standard deviation of each channel over the positions of a feature map (Gatys, Ecker,
Bethge 2015, arXiv 1505.07376, describe textures by such sums) tell colours and textures apart that
a last layer trained on objects treats alike.

N = images, B = batch, S = side, D = channels, P = positions, F = numbers of one part
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.core.errors import UserError
from skindx.models.classifier.classifier import Classifier
from skindx.models.classifier.preprocess import Views, views_of

_QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
_LEAST = 1e-6


def last_layer(net: Classifier, squares_BSS3: Tensor, views: Views) -> list[Tensor]:
    """Return one part: the network's output, the mean over views."""
    return [torch.stack([net(view) for view in views_of(squares_BSS3, views)]).mean(0).flatten(1)]


def all_layers(net: Classifier, squares_BSS3: Tensor, views: Views) -> list[Tensor]:
    """Return the parts B x F: colours, each stage's channels, the last layer; the mean over views.

    Raises UserError for a network without stages.
    """
    if not hasattr(net.net, "forward_intermediates"):
        raise UserError(
            f"{type(net.net).__name__} has no stages to read; use `layers: last` or another model."
        )
    by_view = []
    for view in views_of(squares_BSS3, views):
        pooled_BD, maps = net.forward_stages(view)
        by_view.append([*map(channel_statistics, maps), pooled_BD])
    parts = [torch.stack(same).mean(0) for same in zip(*by_view, strict=True)]
    return [colour_statistics(squares_BSS3), *parts]


def channel_statistics(map_BDhw: Tensor) -> Tensor:
    """Return the mean, then the standard deviation, of each channel over positions: B x 2D."""
    flat_BDP = map_BDhw.flatten(2)
    return torch.cat([flat_BDP.mean(2), flat_BDP.std(2, correction=0)], 1)


def colour_statistics(squares_BSS3: Tensor) -> Tensor:
    """Return quantiles, mean and standard deviation of colours: B x 126, on the 0..1 scale.

    Of red, green, blue, their largest, saturation, red - green and green - blue, over the square
    and over its central half.
    """
    rgb = squares_BSS3.float() / 255
    red, green, blue = rgb.unbind(-1)
    largest, smallest = rgb.amax(-1), rgb.amin(-1)
    saturation = (largest - smallest) / largest.clamp(min=1 / 255)
    colours = (red, green, blue, largest, saturation, red - green, green - blue)
    all_BSS7 = torch.stack(colours, -1)
    quarter = all_BSS7.shape[1] // 4
    inside = slice(quarter, all_BSS7.shape[1] - quarter)
    found = []
    for part in (all_BSS7, all_BSS7[:, inside, inside]):
        flat_BP7 = part.flatten(1, 2)
        quantiles = torch.quantile(flat_BP7, torch.tensor(_QUANTILES), dim=1)
        found += [*quantiles, flat_BP7.mean(1), flat_BP7.std(1, correction=0)]
    return torch.cat(found, 1)


def join_parts(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the parts N x F side by side, standardised over the images, all of equal weight.

    A single part stays as it is.
    """
    if len(parts) == 1:
        return parts[0]
    joined = []
    for part_NF in parts:
        spread_F = part_NF.std(axis=0)
        scaled_NF = (part_NF - part_NF.mean(axis=0)) / np.where(spread_F > _LEAST, spread_F, 1)
        joined.append(scaled_NF / part_NF.shape[1] ** 0.5)
    return np.concatenate(joined, axis=1)
