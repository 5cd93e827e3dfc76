"""Features of images about three corners, and a detector that scores all images alike."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from skindx.models.ood.ood_features import Features, Floats, Need, OodDetector, TrainingFeatures

Singles = NDArray[np.float32]
LABELS = ("a", "b", "c")


@dataclass(frozen=True)
class Alike(OodDetector):
    """Every image scores 0."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    @classmethod
    def fit(cls, settings: Any, learned: TrainingFeatures) -> Self:
        return cls()

    def scores(self, features: Features) -> Floats:
        return np.zeros(len(features))


def points(n: int, seed: int, far: float = 0.0) -> Singles:
    """Return points about three corners; `far` moves them into another direction."""
    random = np.random.default_rng(seed)
    vectors_ND = random.normal(scale=0.1, size=(n, 24)) * np.linspace(2, 0.5, 24)
    vectors_ND[np.arange(n), np.arange(n) % 3] += 1
    vectors_ND[:, 10] += far
    return vectors_ND.astype(np.float32)


HEAD = np.eye(3, 24, dtype=np.float32), np.array([0.1, 0.0, -0.1], np.float32)


def features(n: int, seed: int, far: float = 0.0) -> Features:
    """Return features of two members, and image statistics."""
    first, second = points(n, seed, far), 2 * points(n, seed + 10_000, far)
    logits = tuple(10 * (part @ HEAD[0].T + HEAD[1]) for part in (first, second))
    return Features((first, second), logits, points(n, seed + 30_000, far))


def learned(n: int = 400) -> TrainingFeatures:
    labels_N = np.array([LABELS[i % 3] for i in range(n)])
    return TrainingFeatures(features(n, 0), labels_N, (HEAD[0], HEAD[0]), (HEAD[1], HEAD[1]))
