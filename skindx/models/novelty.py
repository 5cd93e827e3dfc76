"""Whether a photo is of a kind that the networks know: out-of-distribution detection.

The score of a photo is the Mahalanobis distance of its embedding to the nearest class, with one
covariance for all classes (Lee et al. 2018). The covariance is that of probabilistic principal
components (Tipping and Bishop 1999): 64 axes have their own variance, all others the same one,
which a few hundred pictures bear out and which keeps a bundle small. How calibration pictures
score, which nothing was trained on, makes a p-value of it (Laxhammar and Falkman 2011; Bates et
al. 2023): whatever the networks are like, a photo that is drawn as those were is called far no
more often than the stated rate.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from skindx.config import Settings
from skindx.errors import UserError
from skindx.models.gallery import Gallery
from skindx.models.saving import save_tensors
from skindx.models.tensors import load_tensors

STATISTICS = "novelty.safetensors"

_TENSORS = {
    "means": ("F32", 2),
    "axes": ("F32", 2),
    "variances": ("F32", 1),
    "rest": ("F64", 0),
    "scores": ("F64", 1),
}

AXES = 64
RATE = 0.01
FEWEST = 19
"""With fewer calibration pictures more than every twentieth familiar photo would be refused."""

# Q = photos, N = calibration pictures, P = pictures of the gallery
# C = classes that it has, D = dimensions, A = axes with a variance of their own

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]


class NoveltySpec(Settings):
    """What a bundle's index says of its novelty score."""

    pictures: int = Field(ge=FEWEST)
    """Calibration pictures whose scores are known."""

    @property
    def rate(self) -> float:
        """How often a photo like the calibration pictures is called far, at most."""
        return max(RATE, 1 / (self.pictures + 1))


@dataclass(frozen=True)
class Familiar:
    """Where the embeddings of pictures that the networks learned from lie."""

    means_CD: Singles
    axes_AD: Singles
    """Orthonormal directions in which pictures differ most from their class's mean."""
    variances_A: Singles
    rest: float
    """Variance along every other direction."""

    def distances(self, embeddings_QD: Singles) -> Floats:
        """Return the squared Mahalanobis distance to the nearest class, Q."""
        if embeddings_QD.shape[1] != self.means_CD.shape[1]:
            raise UserError(
                "the bundle's novelty score is not of its networks (it knows embeddings of "
                f"{self.means_CD.shape[1]} numbers, theirs have {embeddings_QD.shape[1]}); "
                "pack the bundle again."
            )
        nearest_Q = np.full(len(embeddings_QD), np.inf)
        for mean_D in self.means_CD:
            off_QD = embeddings_QD.astype(np.float64) - mean_D
            along_QA = off_QD @ self.axes_AD.T
            within_Q = (along_QA**2 / self.variances_A).sum(axis=1)
            beside_Q = (off_QD**2).sum(axis=1) - (along_QA**2).sum(axis=1)
            nearest_Q = np.minimum(nearest_Q, within_Q + beside_Q / self.rest)
        return nearest_Q


@dataclass(frozen=True)
class Novelty:
    """The score, and the scores of calibration pictures, ascending."""

    spec: NoveltySpec
    familiar: Familiar
    scores_N: Floats

    def familiarity(self, embeddings_QD: Singles) -> Floats:
        """Return the share of calibration pictures that lie as far off or farther.

        The photo itself counts as one of them, which makes the share a p-value, never 0.
        """
        scores_Q = self.familiar.distances(embeddings_QD)
        nearer_Q = np.searchsorted(self.scores_N, scores_Q, side="left")
        share_Q: Floats = (len(self.scores_N) - nearer_Q + 1) / (len(self.scores_N) + 1)
        return share_Q

    def is_far(self, familiarity: float) -> bool:
        """Tell whether a photo is too far from all that is known to be judged."""
        return familiarity <= self.spec.rate

    def save(self, folder: Path) -> None:
        """Write it into a bundle's folder."""
        arrays = {
            "means": self.familiar.means_CD,
            "axes": self.familiar.axes_AD,
            "variances": self.familiar.variances_A,
            "rest": np.array(self.familiar.rest),
            "scores": self.scores_N,
        }
        tensors = {
            name: torch.from_numpy(np.array(each, order="C")) for name, each in arrays.items()
        }
        save_tensors(tensors, folder / STATISTICS)

    @classmethod
    def load(cls, folder: Path, spec: NoveltySpec) -> Self:
        """Read it from a bundle's folder. Raises UserError for figures that make no score."""
        tensors = load_tensors(folder / STATISTICS, _TENSORS)
        arrays = {name: each.numpy() for name, each in tensors.items()}
        means_CD, axes_AD, variances_A = (arrays[name] for name in ("means", "axes", "variances"))
        scores_N = arrays["scores"]
        if (
            len(means_CD) == 0
            or axes_AD.shape != (len(variances_A), means_CD.shape[1])
            or len(scores_N) != spec.pictures
            or not all(bool(np.isfinite(each).all()) for each in arrays.values())
            or not (variances_A > 0).all()
            or not arrays["rest"] > 0
            or (np.diff(scores_N) < 0).any()
        ):
            raise UserError(
                f"{folder / STATISTICS} does not hold the statistics of one novelty score; copy or "
                "pack the bundle again."
            )
        familiar = Familiar(means_CD, axes_AD, variances_A, float(arrays["rest"]))
        return cls(spec, familiar, scores_N)


def fit_novelty(gallery: Gallery, embeddings_ND: Singles) -> Novelty | None:
    """Fit the score on a gallery, and score calibration pictures, which it does not hold.

    None if either has too few pictures.
    """
    familiar = fit_familiar(
        gallery.embeddings_ND.float().numpy(), np.array([row.label for row in gallery.rows])
    )
    if familiar is None or len(embeddings_ND) < FEWEST:
        return None
    scores_N = np.sort(familiar.distances(embeddings_ND))
    return Novelty(NoveltySpec(pictures=len(embeddings_ND)), familiar, scores_N)


def fit_familiar(embeddings_PD: Singles, labels_P: NDArray[np.str_]) -> Familiar | None:
    """Fit means and covariance; None for pictures that do not differ within their classes."""
    from sklearn.utils.extmath import randomized_svd

    if len(embeddings_PD) == 0:
        return None
    _, class_P = np.unique(labels_P, return_inverse=True)
    means_CD = np.stack([embeddings_PD[class_P == c].mean(axis=0) for c in np.unique(class_P)])
    off_PD = embeddings_PD - means_CD[class_P]
    pictures, dimensions = off_PD.shape
    # Of few pictures the last axes are noise, and would leave nothing for the rest.
    axes = max(1, min(AXES, pictures // 4, dimensions // 2))
    _, spread_A, axes_AD = randomized_svd(off_PD, axes, random_state=0)
    variances_A = spread_A**2 / pictures
    rest = (float((off_PD**2).sum()) / pictures - float(variances_A.sum())) / (dimensions - axes)
    # Rounding alone leaves so much where the axes hold all there is.
    if not rest > 1e-9 * float(variances_A.sum()) or not variances_A.min() > 0:
        return None
    return Familiar(means_CD, axes_AD.astype(np.float32), variances_A.astype(np.float32), rest)
