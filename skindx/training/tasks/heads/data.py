"""Training data of heads: rows of a trunk's features, with their labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.training.config.run import MemberSettings

# P = images of train and val, N = those of one head, D = dimensions, C = classes

Halves = NDArray[np.float16]


@dataclass(frozen=True)
class HeadData:
    """One head: its settings, and which rows of the features are its own."""

    member: MemberSettings
    features: Sequence[Halves]
    """P x D of each view, memory-mapped, shared by all heads of the trunk."""
    labels_P: NDArray[np.int64]
    train_N: NDArray[np.int64]
    """Rows that it learns from."""
    val_N: NDArray[np.int64]
    """Rows that it is validated on."""
    classes: int
    targets_NC: NDArray[np.float32] | None = None
    """Soft targets of the training rows in place of their labels."""

    @property
    def dimensions(self) -> int:
        """Of the features."""
        return int(self.features[0].shape[1])

    def scale(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return mean and standard deviation of the training features, over all views."""
        parts = [rows_ND.astype(np.float64) for rows_ND in self._training_rows()]
        count = sum(len(part) for part in parts)
        mean_D = sum(part.sum(axis=0) for part in parts) / count
        variance_D = sum(((part - mean_D) ** 2).sum(axis=0) for part in parts) / count
        std_D = np.sqrt(variance_D)
        # A feature that never changes says nothing; dividing by its noise would make it loud.
        std_D = np.where(std_D < 1e-4 * max(float(std_D.max()), 1e-12), 1.0, std_D)
        return np.asarray(mean_D, np.float32), np.asarray(std_D, np.float32)

    def training_features(self) -> NDArray[np.float32]:
        """Return the training features of all views one after the other, V N x D."""
        return np.concatenate(list(self._training_rows())).astype(np.float32)

    def training_labels(self) -> NDArray[np.int64]:
        """Return the labels of `training_features`."""
        return np.tile(self.labels_P[self.train_N], len(self.features))

    def _training_rows(self) -> list[Halves]:
        return [view_PD[self.train_N] for view_PD in self.features]
