"""The check of a bundle: detectors, and how images score that nothing was trained on.

The score of a photo among those of the calibration images gives a conformal p-value (Laxhammar
and Falkman 2011; Bates et al. 2023, arXiv 2104.08279): whatever the detectors are like, of photos
that are drawn as the calibration images were, at most the stated rate is refused.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.models.bounded_files import AGAIN, load_tensors
from skindx.models.ensemble import Ensemble, EnsembleOutput
from skindx.models.ood.ood_detectors import DETECTORS, Mahalanobis
from skindx.models.ood.ood_features import (
    Features,
    Floats,
    Need,
    OodDetector,
    OodDetectorSettings,
    Singles,
    TrainingFeatures,
    image_statistics,
)

if TYPE_CHECKING:
    AnyDetector = OodDetectorSettings
else:
    AnyDetector = DETECTORS.union()

RATE = 0.01
FEWEST = 19
"""Fewest calibration images; with less, the check would refuse over one in twenty such photos."""
_TAIL = 0.95

# Q = photos, N = calibration images, K = detectors


class OodSpec(Settings):
    """A bundle's index entry of its out-of-distribution check."""

    detectors: tuple[AnyDetector, ...] = Field(min_length=1)
    images: int = Field(ge=FEWEST)
    """Calibration images whose scores are known."""

    @property
    def rate(self) -> float:
        """Share of photos like the calibration images that is refused, at most."""
        return rate_of(self.images)


def rate_of(images: int) -> float:
    """Return the rate that this many calibration images allow: 1 %, or the share of one of them."""
    return max(RATE, 1 / (images + 1))


def rate_interval(images: int) -> tuple[float, float]:
    """Return between which shares of photos like the calibration images are refused, at 95 %.

    The rate holds on average over calibration splits; with one of N images it is distributed as
    Beta(k, N + 1 - k), where k is the rate times N + 1 rounded down (Vovk 2012, arXiv 1209.2673).
    """
    from scipy.stats import beta

    k = math.floor(rate_of(images) * (images + 1) + 1e-9)
    low, high = (float(beta.ppf(share, k, images + 1 - k)) for share in (0.025, 0.975))
    return low, high


@dataclass(frozen=True)
class OodCheck:
    """Fitted detectors and the scores of the calibration images."""

    detectors: tuple[OodDetector, ...]
    scores_NK: Floats

    @property
    def images(self) -> int:
        """Calibration images."""
        return len(self.scores_NK)

    @property
    def rate(self) -> float:
        """Share of photos like the calibration images that is refused, at most."""
        return rate_of(self.images)

    @property
    def needs(self) -> frozenset[Need]:
        """The parts of `Features` that the detectors read."""
        return frozenset(need for detector in self.detectors for need in detector.needs)

    def scores(self, features: Features) -> Floats:
        """Return each detector's scores Q x K."""
        return np.stack([detector.scores(features) for detector in self.detectors], axis=1)

    def p_values(self, features: Features) -> Floats:
        """Return the share of calibration images that score as high or higher, Q.

        The photo itself counts as one of them: (r + 1) / (N + 1), never 0.
        """
        return p_values(self.scores_NK, self.scores(features))

    def combined(self, features: Features) -> Floats:
        """Return one score of each photo by the calibration images' scales, Q; for rankings."""
        return combine(self.scores(features), self.scores_NK)

    def is_out(self, p_value: float) -> bool:
        """Tell whether a photo is out of distribution, so that it is refused."""
        return p_value <= self.rate


SERVED: frozenset[Need] = frozenset({"pooled", "logits", "image"})
"""Features of every runtime: an export ends in the last map; torch computes the others."""


def features_of(
    ensemble: Ensemble,
    photos: Sequence[NDArray[np.uint8]],
    output: EnsembleOutput,
    needs: Collection[Need] = SERVED,
    places: slice = slice(None),
) -> Features:
    """Return what `needs` names of decoded photos that `output` holds at `places`."""
    whole = all(member.preprocess.frame == "whole" for member in ensemble.members)
    nothing_N0 = np.zeros((len(photos), 0), dtype=np.float32)
    return Features(
        tuple(part[places] for part in output.pooled_MND) if "pooled" in needs else (),
        _logits(ensemble, output, places) if "logits" in needs else (),
        image_statistics(photos, whole=whole) if "image" in needs else nothing_N0,
    )


def p_values_of(
    check: OodCheck,
    ensemble: Ensemble,
    photos: Sequence[NDArray[np.uint8]],
    output: EnsembleOutput,
    first: int = 0,
) -> NDArray[np.float64]:
    """Return the p-value of each photo, N; `output` holds them from `first` on.

    One by one: products of matrices round otherwise for another number of rows.
    """
    places = [slice(n, n + 1) for n in range(first, first + len(photos))]
    return np.concatenate(
        [
            check.p_values(features_of(ensemble, [photo], output, check.needs, place))
            for photo, place in zip(photos, places, strict=True)
        ]
    )


def try_check(check: OodCheck, ensemble: Ensemble) -> None:
    """Raise UserError for a check whose numbers do not belong to these networks.

    A blank image shows it here, not in the first diagnosis.
    """
    blank_SS3 = np.zeros((64, 64, 3), dtype=np.uint8)
    try:
        with np.errstate(all="ignore"):
            features = features_of(
                ensemble, [blank_SS3], ensemble.predict_with_features([blank_SS3]), check.needs
            )
            finite = bool(np.isfinite(check.scores(features)).all())
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"the out-of-distribution check of the bundle does not fit its networks ({reason}); "
            f"{AGAIN}."
        ) from None
    if not finite:
        raise UserError(
            "the out-of-distribution check of the bundle gives invalid scores (NaN or infinite); "
            f"{AGAIN}."
        )


def _logits(ensemble: Ensemble, output: EnsembleOutput, places: slice) -> tuple[Singles, ...]:
    with torch.inference_mode():
        return tuple(
            member.classifier.forward_head(map_[places]).float().cpu().numpy()
            for member, map_ in zip(ensemble.members, output.maps, strict=True)
        )


def p_values(known_NK: Floats, queries_QK: Floats) -> Floats:
    """Return conformal p-values Q of photos among calibration images, by the combined score.

    Detectors are combined by scales of the calibration images and the photo together: all N + 1
    are treated alike, so that the p-value holds exactly.
    """
    if known_NK.shape[1] == 1:
        ordered_N = np.sort(known_NK[:, 0])
        lower_Q = np.searchsorted(ordered_N, queries_QK[:, 0], side="left")
        shares_Q: Floats = (len(ordered_N) - lower_Q + 1) / (len(ordered_N) + 1)
        return shares_Q
    values_Q = np.empty(len(queries_QK))
    for q, query_K in enumerate(queries_QK):
        all_NK = np.vstack([known_NK, query_K])
        combined_N = combine(all_NK, all_NK)
        values_Q[q] = (combined_N >= combined_N[-1]).mean()
    return values_Q


def combine(scores_NK: Floats, by_NK: NDArray[np.float64]) -> Floats:
    """Return the highest of each image's scores, on scales that the images `by` define, N.

    A scale runs from the median, 0, to the 95th percentile, 1.
    """
    middle_K, tail_K = np.quantile(by_NK, [0.5, _TAIL], axis=0)
    scale_K = np.where(tail_K > middle_K, tail_K - middle_K, 1.0)
    combined_N: Floats = ((scores_NK - middle_K) / scale_K).max(axis=1)
    return combined_N


def fit_check(
    settings: Sequence[AnyDetector], learned: TrainingFeatures, calibration: Features
) -> OodCheck | None:
    """Fit detectors on training images and score the calibration images, which they never saw.

    None where either has too few images for one of the detectors. Raises UserError for a detector
    of another distribution that fails.
    """
    if len(calibration) < FEWEST:
        return None
    fitted = []
    for one in settings:
        fit = _fit_added if one.kind in DETECTORS.added else _fit
        detector_and_scores = fit(one, learned, calibration)
        if detector_and_scores is None:
            return None
        fitted.append(detector_and_scores)
    detectors, scores = zip(*fitted, strict=True)
    return OodCheck(detectors, np.stack(scores, axis=1))


def _fit(
    settings: OodDetectorSettings, learned: TrainingFeatures, calibration: Features
) -> tuple[OodDetector, Floats] | None:
    detector = settings.detector.fit(settings, learned)
    return None if detector is None else (detector, detector.scores(calibration))


def _fit_added(
    settings: OodDetectorSettings, learned: TrainingFeatures, calibration: Features
) -> tuple[OodDetector, Floats] | None:
    """Do so with code of another distribution. Raises UserError for whatever it does wrong."""
    try:
        fitted = _fit(settings, learned, calibration)
        if fitted is None:
            return None
        detector, scores_N = fitted
        kept = detector.tensors()
        type(detector).from_tensors(kept)  # as a bundle will read it
        if np.shape(scores_N) != (len(calibration),):
            raise ValueError(f"{np.shape(scores_N)} scores of {len(calibration)} images")
        if not all(np.isfinite(array).all() for array in (scores_N, *kept.values())):
            raise ValueError("scores or fields are not finite")
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(
            f"the out-of-distribution detector {settings.kind!r} cannot be fitted ({reason}); "
            "update its package or remove it from ensemble.ood, and run the same command again, "
            "which keeps the trained members."
        ) from error
    return detector, scores_N


STATISTICS = "novelty.safetensors"

_TENSORS = {
    "means": ("F32", 2),
    "axes": ("F32", 2),
    "variances": ("F32", 1),
    "rest": ("F64", 0),
    "scores": ("F64", 1),
}


class OodSpecV01(Settings):
    """The index entry of the check in a bundle of version 0.1: `novelty`."""

    pictures: int = Field(ge=FEWEST)
    """Calibration images whose scores are known."""

    @property
    def rate(self) -> float:
        """Share of photos like the calibration images that is refused, at most."""
        return rate_of(self.pictures)


def load_check_v0_1(folder: Path, spec: OodSpecV01) -> OodCheck:
    """Read it from the folder of a bundle of version 0.1: Mahalanobis distance, alone.

    Raises UserError for numbers that make no check.
    """
    tensors = load_tensors(folder / STATISTICS, _TENSORS)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    means_CD, axes_AD, variances_A = (arrays[name] for name in ("means", "axes", "variances"))
    scores_N = arrays["scores"]
    if (
        len(means_CD) == 0
        or axes_AD.shape != (len(variances_A), means_CD.shape[1])
        or len(scores_N) != spec.pictures
        or not all(bool(np.isfinite(array).all()) for array in arrays.values())
        or not (variances_A > 0).all()
        or not arrays["rest"] > 0
        or (np.diff(scores_N) < 0).any()
    ):
        raise UserError(
            f"{folder / STATISTICS} lacks the arrays of an out-of-distribution check, or they are "
            "damaged; "
            f"{AGAIN}."
        )
    distance = Mahalanobis(means_CD, axes_AD, variances_A, float(arrays["rest"]))
    return OodCheck((distance,), scores_N[:, None])
