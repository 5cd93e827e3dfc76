"""ViM: what the principal subspace leaves of the features, as one more logit.

Wang et al. 2022, arXiv 2203.10807, eq. 3 to 6: the score is alpha * |residual| - logsumexp, with
the origin of the features where all logits are equal to the bias-free ones.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.models.ood.energy import energy
from skindx.models.ood.features import Features, Floats, Learned, Singles
from skindx.models.ood.fitted import Fitted, Need

# M = members, N = images, D = dimensions, A = principal axes


class ViMSettings(Settings):
    """Energy and the norm of the features outside their principal subspace."""

    kind: Literal["vim"] = "vim"
    axes: int = Field(64, ge=1, le=10**6)
    """Dimension of the principal subspace; at most half of the features' and of the images'."""


@dataclass(frozen=True)
class ViM(Fitted):
    """Each member's origin, principal axes, and scale of the virtual logit."""

    needs: ClassVar[frozenset[Need]] = frozenset({"pooled", "logits"})

    origins_MD: tuple[Singles, ...]
    axes_MAD: tuple[Singles, ...]
    alphas_M: Singles

    @classmethod
    def fit(cls, settings: ViMSettings, learned: Learned) -> Self | None:
        """Fit on the pooled features and logits of training images."""
        origins, axes, alphas = [], [], []
        for pooled_ND, logits_NC, weight_CD, bias_C in zip(
            learned.features.pooled_MND,
            learned.features.logits_MNC,
            learned.weights_MCD,
            learned.biases_MC,
            strict=True,
        ):
            origin_D = -(np.linalg.pinv(weight_CD) @ bias_C)
            count = max(1, min(settings.axes, len(pooled_ND) // 2, pooled_ND.shape[1] // 2))
            off_ND = (pooled_ND - origin_D).astype(np.float64)
            axes_AD = np.linalg.eigh(off_ND.T @ off_ND).eigenvectors[:, -count:].T
            residual_N = _residuals(pooled_ND, origin_D, axes_AD)
            if not residual_N.mean() > 0:
                return None
            origins.append(origin_D.astype(np.float32))
            axes.append(axes_AD.astype(np.float32))
            alphas.append(logits_NC.max(axis=1).mean() / residual_N.mean())
        return cls(tuple(origins), tuple(axes), np.array(alphas, dtype=np.float32))

    def scores(self, features: Features) -> Floats:
        """Return virtual logits minus the logsumexp of the others, N, the mean over members."""
        members = zip(
            features.pooled_MND,
            features.logits_MNC,
            self.origins_MD,
            self.axes_MAD,
            self.alphas_M,
            strict=True,
        )
        mean_N: Floats = np.mean(
            [
                alpha * _residuals(pooled, origin, axes) + energy(logits)
                for pooled, logits, origin, axes, alpha in members
            ],
            axis=0,
        )
        return mean_N


def _residuals(pooled_ND: Singles, origin_D: Singles | Floats, axes_AD: Singles | Floats) -> Floats:
    off_ND = (pooled_ND - origin_D).astype(np.float64)
    squared_N = (off_ND**2).sum(axis=1) - ((off_ND @ axes_AD.T) ** 2).sum(axis=1)
    residuals_N: Floats = np.sqrt(np.maximum(squared_N, 0))
    return residuals_N
