"""Inputs of out-of-distribution detectors: one pass of each image through the networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

# N = images, M = members, D = dimensions of one member's pooled features, E = of all members',
# C = classes, F = image statistics, L = layers, K = channels of a layer

Singles = NDArray[np.float32]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Features:
    """Features of N images."""

    pooled_MND: tuple[Singles, ...]
    """Each member's input of its last layer, as it is (D differs between members)."""
    logits_MNC: tuple[Singles, ...]
    """Each member's logits, without a temperature."""
    image_NF: Singles
    """Statistics of the image itself, see `image_statistics`."""
    layers_LNK: tuple[Singles, ...] = ()
    """Channel means, then channel deviations, of hooked layers of all members; () if not asked."""

    def __len__(self) -> int:
        return len(self.image_NF)

    @property
    def embeddings(self) -> Singles:
        """Return the members' pooled features, each of length 1, side by side, of length 1."""
        parts = [pooled / _lengths(pooled) for pooled in self.pooled_MND]
        joined_ND: Singles = np.concatenate(parts, axis=1) / np.sqrt(len(parts))
        return joined_ND.astype(np.float32)

    def of(self, rows: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Self:
        """Return the features of some of the images."""
        return type(self)(
            tuple(part[rows] for part in self.pooled_MND),
            tuple(part[rows] for part in self.logits_MNC),
            self.image_NF[rows],
            tuple(part[rows] for part in self.layers_LNK),
        )

    @classmethod
    def join(cls, parts: Sequence["Features"]) -> Self:
        """Return the features of all images of the parts, in their order; at least one part."""
        return cls(
            _joined([part.pooled_MND for part in parts]),
            _joined([part.logits_MNC for part in parts]),
            np.concatenate([part.image_NF for part in parts]),
            _joined([part.layers_LNK for part in parts]),
        )


def _joined(parts: Sequence[tuple[Singles, ...]]) -> tuple[Singles, ...]:
    return tuple(np.concatenate(same) for same in zip(*parts, strict=True))


def _lengths(pooled_ND: Singles) -> Singles:
    lengths: Singles = np.linalg.norm(pooled_ND, axis=1, keepdims=True)
    return np.maximum(lengths, np.float32(1e-12))


@dataclass(frozen=True)
class Learned:
    """Features on which a detector is fitted: of training images only."""

    features: Features
    labels_N: NDArray[np.str_]
    weights_MCD: tuple[Singles, ...]
    """Each member's last layer."""
    biases_MC: tuple[Singles, ...]
