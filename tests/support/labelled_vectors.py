"""Vectors of images with labels, in pairs that look alike."""

from typing import Any

import numpy as np


def labelled_vectors(count: int, seed: int) -> tuple[Any, Any, Any]:
    """Return vectors, labels and groups of two of three classes, the last of them rare."""
    random = np.random.default_rng(seed)
    labels_N = random.choice(3, count // 2, p=[0.55, 0.35, 0.1]).repeat(2)
    labels_N[:12] = np.arange(3).repeat(4)
    centres = np.random.default_rng(0).normal(0, 1, (3, 12))
    vectors = centres[labels_N] + random.normal(0, 0.9, (count // 2, 12)).repeat(2, axis=0)
    vectors += random.normal(0, 0.3, vectors.shape)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    groups_N = np.array([f"g{n // 2}" for n in range(count)])
    return vectors.astype(np.float32), labels_N, groups_N
