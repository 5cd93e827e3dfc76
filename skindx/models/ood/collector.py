"""Features gathered while a run is packed, from passes over images that are made anyway."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from skindx.data.manifest import Record
from skindx.models.ensemble.ensemble import Ensemble, EnsembleOutput
from skindx.models.ood.extraction import features_of, last_layers
from skindx.models.ood.features import Features
from skindx.models.ood.fitted import Need
from skindx.models.ood.images import OodImages, OodRow
from skindx.models.ood.kinds import DEFAULT, DETECTORS, AnyDetector
from skindx.models.ood.stored import OodPart

CAP = 5_000
"""Training images that a check is fitted on: more change its figures little and its size much."""


class Collector:
    """Collects what some detectors need of training and of calibration images."""

    def __init__(
        self,
        ensemble: Ensemble,
        learned: Collection[str],
        detectors: Sequence[AnyDetector] = DEFAULT,
    ) -> None:
        """Take of the training images those whose SHA-256 is in `learned`."""
        self._ensemble, self._learned, self._detectors = ensemble, learned, detectors
        self._needs: set[Need] = set()
        self._needs.update(*(DETECTORS[own.kind].needs for own in detectors))
        self._rows: list[OodRow] = []
        self._features: list[Features] = []

    def train(
        self, records: Sequence[Record], photos: Sequence[NDArray[np.uint8]], output: EnsembleOutput
    ) -> None:
        """Take a batch of training images that the ensemble looked at."""
        mine_N = np.array([record.sha256 in self._learned for record in records], dtype=bool)
        if mine_N.any():
            self._add(
                "train", records, mine_N, features_of(self._ensemble, photos, output, self._needs)
            )

    def calibration(
        self, records: Sequence[Record], photos: Sequence[NDArray[np.uint8]], output: EnsembleOutput
    ) -> None:
        """Take a batch of calibration images that the ensemble looked at."""
        all_N = np.ones(len(records), dtype=bool)
        self._add(
            "calibration", records, all_N, features_of(self._ensemble, photos, output, self._needs)
        )

    def part(self) -> OodPart | None:
        """Return the fitted check; None for too few images."""
        images = self.images()
        return None if images is None else OodPart.fit(self._detectors, images)

    def _add(
        self, split: str, records: Sequence[Record], mine_N: NDArray[np.bool_], found: Features
    ) -> None:
        self._features.append(found.of(mine_N))
        self._rows += [
            OodRow(record.sha256, record.label, record.group, split)
            for record, mine in zip(records, mine_N, strict=True)
            if mine
        ]

    def images(self) -> OodImages | None:
        """Return all that was collected; None for nothing."""
        if not self._rows:
            return None
        weights, biases = last_layers(self._ensemble)
        return OodImages(tuple(self._rows), Features.join(self._features), weights, biases)
