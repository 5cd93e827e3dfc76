"""Several classifiers that answer as one: calibrated probabilities, combined."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.models.calibration import apply_temperature
from skindx.models.classifier import Classifier
from skindx.models.combination import EQUAL, Combination, combine
from skindx.models.preprocess import Preprocess, centre_square
from skindx.models.views import Views, views_of

# M = members, N = pictures, C = classes, B = batch, S = side


@dataclass(frozen=True)
class Member:
    """One trained classifier in evaluation mode, with its temperature (Guo et al. 2017)."""

    name: str
    classifier: Classifier
    preprocess: Preprocess
    temperature: float = 1.0
    views: Views = 1
    """It sees each picture so often, flipped and turned, and answers with the mean probability."""

    def log_probabilities(
        self, pictures: Sequence[NDArray[np.uint8]], batch: int = 64
    ) -> NDArray[np.float64]:
        """Return uncalibrated log-probabilities N x C of decoded pictures (H x W x 3 uint8)."""
        return self.judge(
            np.stack([centre_square(each, self.preprocess) for each in pictures[at : at + batch]])
            for at in range(0, len(pictures), batch)
        )

    @torch.inference_mode()
    def judge(self, batches: Iterable[NDArray[np.uint8]]) -> NDArray[np.float64]:
        """Return uncalibrated log-probabilities N x C of central squares, B x S x S x 3 uint8."""
        device = next(self.classifier.parameters()).device
        rows = []
        for squares_BSS3 in batches:
            squares = torch.from_numpy(squares_BSS3).to(device)
            seen = [self._look(view_BSS3) for view_BSS3 in views_of(squares, self.views)]
            # The log of the mean probability; one view is left as it is, to the bit.
            log_BC = torch.stack(seen).logsumexp(0) - math.log(self.views) if seen[1:] else seen[0]
            rows.append(log_BC.cpu().numpy())
        return np.concatenate(rows)

    def _look(self, squares_BSS3: Tensor) -> Tensor:
        return torch.log_softmax(self.classifier(squares_BSS3).double(), dim=1)


@dataclass(frozen=True)
class Ensemble:
    """Members whose calibrated probabilities are combined, then sharpened by one temperature."""

    members: tuple[Member, ...]
    temperature: float = 1.0
    combination: Combination = EQUAL

    def probabilities(
        self, pictures: Sequence[NDArray[np.uint8]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the ensemble's probabilities N x C, and each member's M x N x C."""
        member_MNC = np.stack(
            [
                apply_temperature(member.log_probabilities(pictures), member.temperature)
                for member in self.members
            ]
        )
        return combine(member_MNC, self.temperature, self.combination), member_MNC
