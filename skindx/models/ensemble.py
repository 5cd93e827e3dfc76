"""Several classifiers that answer as one: calibrated probabilities, averaged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.models.calibration import apply_temperature
from skindx.models.classifier import Classifier
from skindx.models.preprocess import Preprocess, centre_square

# M = members, N = pictures, C = classes, B = batch, S = side


@dataclass(frozen=True)
class Member:
    """One trained classifier in evaluation mode, with its temperature (Guo et al. 2017)."""

    name: str
    classifier: Classifier
    preprocess: Preprocess
    temperature: float = 1.0

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
            logits_BC = self.classifier(torch.from_numpy(squares_BSS3).to(device))
            rows.append(torch.log_softmax(logits_BC.double(), dim=1).cpu().numpy())
        return np.concatenate(rows)


@dataclass(frozen=True)
class Ensemble:
    """Members whose calibrated probabilities are averaged, then sharpened by one temperature."""

    members: tuple[Member, ...]
    temperature: float = 1.0

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
        return combine(member_MNC, self.temperature), member_MNC


def combine(member_MNC: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Average members in probability space and apply the ensemble's own temperature.

    Averaging makes calibrated members under-confident, so the mean is calibrated again.
    """
    mean_NC = member_MNC.mean(axis=0)
    return apply_temperature(log(mean_NC), temperature)


def log(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the natural logarithm, finite also for a probability that underflowed to zero."""
    return np.log(np.maximum(probabilities, 1e-300))
