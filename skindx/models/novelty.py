"""Whether a photo is of a kind that the networks know: out-of-distribution detection.

The score of a photo is its distance to the k-th nearest picture of the gallery (deep nearest
neighbours, Sun et al. 2022), on features of length 1. How calibration pictures score, which
nothing was trained on, makes a p-value of it (conformal anomaly detection, Laxhammar and Falkman
2011; Bates et al. 2023): whatever the networks are like, a photo that is drawn as those were is
called far no more often than the stated rate.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from safetensors.torch import load_file, save_file

from skindx.config import Settings
from skindx.models.gallery import Gallery

SCORES = "novelty.safetensors"

NEIGHBOURS = 10
RATE = 0.01
FEWEST = 19
"""With fewer calibration pictures more than every twentieth familiar photo would be refused."""

# Q = photos, N = calibration pictures, D = dimensions

Floats = NDArray[np.float64]


class NoveltySpec(Settings):
    """What a bundle's index says of its novelty score."""

    neighbours: int = Field(NEIGHBOURS, ge=1)
    """The distance is that to the so many-th nearest picture."""
    pictures: int = Field(ge=FEWEST)
    """Calibration pictures whose scores are known."""

    @property
    def rate(self) -> float:
        """How often a photo like the calibration pictures is called far, at most."""
        return max(RATE, 1 / (self.pictures + 1))


@dataclass(frozen=True)
class Novelty:
    """Distances of calibration pictures, ascending, and the gallery that they were measured to."""

    spec: NoveltySpec
    scores_N: Floats
    gallery: Gallery

    def familiarity(self, embeddings_QD: NDArray[np.float32]) -> Floats:
        """Return the share of calibration pictures that lie as far from the gallery or farther.

        The photo itself counts as one of them, which makes the share a p-value, never 0.
        """
        scores_Q = distances(self.gallery, embeddings_QD, self.spec.neighbours)
        nearer_Q = np.searchsorted(self.scores_N, scores_Q, side="left")
        share_Q: Floats = (len(self.scores_N) - nearer_Q + 1) / (len(self.scores_N) + 1)
        return share_Q

    def is_far(self, familiarity: float) -> bool:
        """Tell whether a photo is too far from all that is known to be judged."""
        return familiarity <= self.spec.rate

    def save(self, folder: Path) -> None:
        """Write the scores into a bundle's folder."""
        save_file({"scores": torch.from_numpy(self.scores_N)}, folder / SCORES)

    @classmethod
    def load(cls, folder: Path, spec: NoveltySpec, gallery: Gallery) -> Self:
        """Read the scores from a bundle's folder."""
        return cls(spec, load_file(folder / SCORES)["scores"].numpy(), gallery)


def fit_novelty(gallery: Gallery, embeddings_ND: NDArray[np.float32]) -> Novelty | None:
    """Score calibration pictures against a gallery without them; None if there are too few."""
    if len(embeddings_ND) < FEWEST or not len(gallery):
        return None
    spec = NoveltySpec(pictures=len(embeddings_ND))
    scores_N = np.sort(distances(gallery, embeddings_ND, spec.neighbours))
    return Novelty(spec, scores_N, gallery)


def distances(gallery: Gallery, embeddings_QD: NDArray[np.float32], neighbours: int) -> Floats:
    """Return 1 - cosine to the k-th nearest picture, or to the farthest of fewer, Q."""
    cosine_QN = gallery.cosines(embeddings_QD)
    place = cosine_QN.shape[1] - min(neighbours, cosine_QN.shape[1])
    nearest_Q = np.partition(cosine_QN, place, axis=1)[:, place]
    return 1 - nearest_Q.astype(np.float64)
