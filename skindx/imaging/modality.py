"""Whether a photo was taken through a dermatoscope, by its light, its colours and coarse detail.

A dermatoscope lights one patch of skin evenly, from all around, and often shows its round rim; a
camera shows shape, shadow, clothes and background. 56 numbers of the image say so, and a small
network weighs them. `skindx bench honesty modality` fits the network and writes `modality.json`.
"""

import itertools
import math
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json
from skindx.imaging.photo_gates import HUES_DEGREES, LEAST_CHROMA

# S = side, R = rings, F = features, H = hidden units

Kind = Literal["dermoscopic", "clinical"]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SIDE = 64
"""Every image is reduced to so few pixels and blurred, so that its size and JPEG say little."""
_BLUR = 0.8
_RADII = (0.0, 0.35, 0.65, 0.95, 1.15, 2.0)
_WITH_DETAIL = 4
_CORNER = SIDE // 6
WEIGHTS = Path(__file__).parent / "modality.json"


@cache
def _rings() -> NDArray[np.bool_]:
    """Return which pixels lie in each ring around the centre, R x S x S."""
    places_S = (np.arange(SIDE) - (SIDE - 1) / 2) / (SIDE / 2)
    radius_SS = np.hypot(places_S[:, None], places_S[None])
    pairs = itertools.pairwise(_RADII)
    return np.stack([(radius_SS >= low) & (radius_SS < high) for low, high in pairs])


def modality_features(pixels_HW3: NDArray[np.uint8]) -> Floats:
    """Return F numbers of an image, H x W x 3 RGB uint8.

    Mean and spread of each CIELAB channel in five rings, its detail in four bands, how much its
    sides and its corners differ; then the spread of hue and chroma, and the shares of pixels that
    are dark, white, and of no colour of skin.
    """
    import cv2

    enlarged = min(pixels_HW3.shape[:2]) < SIDE
    filter_ = cv2.INTER_LINEAR if enlarged else cv2.INTER_AREA
    small_SS3 = cv2.resize(pixels_HW3, (SIDE, SIDE), interpolation=filter_)
    soft_SS3 = cv2.GaussianBlur(small_SS3.astype(np.float32) / 255, (0, 0), _BLUR)
    lab_SS3 = cv2.cvtColor(soft_SS3, cv2.COLOR_RGB2LAB)
    values: list[float] = []
    for ring_SS in _rings():
        ring_N3 = lab_SS3[ring_SS]
        values += [*ring_N3.mean(axis=0).tolist(), *np.log(ring_N3.std(axis=0) + 0.3).tolist()]
    for channel in range(3):
        values += _plane(np.ascontiguousarray(lab_SS3[..., channel]))
    light_SS, a_SS, b_SS = (lab_SS3[..., channel] for channel in range(3))
    chroma_SS, hue_SS = np.hypot(a_SS, b_SS), np.arctan2(b_SS, a_SS)
    together = abs((chroma_SS * np.exp(1j * hue_SS)).sum()) / (float(chroma_SS.sum()) + 1e-6)
    low, high = np.radians(HUES_DEGREES)
    skin_SS = (chroma_SS > LEAST_CHROMA) & (hue_SS > low) & (hue_SS < high)
    shares = [(light_SS < 12).mean(), (light_SS > 95).mean(), (~skin_SS).mean()]
    values += [math.log(max(1 - together, 0) + 0.01), math.log(float(chroma_SS.std()) + 0.3)]
    return np.array([*values, *np.sqrt(shares)], dtype=np.float64)


def _plane(plane_SS: Any) -> list[float]:
    half, corner = SIDE // 2, _CORNER
    sides = (
        plane_SS[:, :half].mean() - plane_SS[:, half:].mean(),
        plane_SS[:half].mean() - plane_SS[half:].mean(),
    )
    ends = (slice(None, corner), slice(-corner, None))
    corners = [float(plane_SS[rows, columns].mean()) for rows in ends for columns in ends]
    values = [math.log(abs(float(side)) + 0.5) for side in sides]
    values.append(math.log(float(np.std(corners)) + 0.5))
    for level in range(_WITH_DETAIL + 1):
        a, b = plane_SS[0::2, 0::2], plane_SS[0::2, 1::2]
        c, d = plane_SS[1::2, 0::2], plane_SS[1::2, 1::2]
        bands = (a - b + c - d, a + b - c - d, a - b - c + d)
        if level:  # the finest band would tell the size and the compression of the file
            values.append(math.log(float(np.mean([abs(band).mean() for band in bands])) / 4 + 0.05))
        plane_SS = (a + b + c + d) / 4
    return values


class ModalityNetwork(Settings):
    """Weights of a network with one hidden layer, and how other photos scored in its making."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    hidden: tuple[tuple[float, ...], ...]
    """Of each hidden unit: weights of the F scaled features, the bias, and its share."""
    bias: float
    medians: dict[Kind, float]
    """The middle score of each kind among the images that it was fitted on."""
    made: dict[str, Any] = Field(default_factory=dict)
    """Machine, date, versions and numbers of images."""

    def score(self, features_NF: Floats) -> Floats:
        """Return N log odds of clinical against dermoscopic."""
        scaled_NF = np.clip((features_NF - self.mean) / np.array(self.scale), -4, 4)
        units_HF = np.array(self.hidden)
        active_NH = np.maximum(scaled_NF @ units_HF[:, :-2].T + units_HF[:, -2], 0)
        scores_N: Floats = active_NH @ units_HF[:, -1] + self.bias
        return scores_N


@cache
def shipped() -> ModalityNetwork:
    return ModalityNetwork.model_validate(read_json(WEIGHTS))


RATE = 0.015
"""Share of photos of a bundle's own kind that are refused, at most: one or two in a hundred."""


class ModalityCheck(Settings):
    """A bundle's entry: of which kind its images are, and from which score a photo is refused."""

    kind: Kind
    threshold: float
    """Of the score, positive for the other kind."""
    images: int = Field(ge=1)
    """Calibration images whose scores the threshold leaves below it."""

    @classmethod
    def fit(
        cls, kind: str, features_NF: Floats, network: ModalityNetwork | None = None
    ) -> Self | None:
        """Return the check of calibration images of one kind.

        The threshold is a conformal quantile, as that of the out-of-distribution check. None for
        mixed or unknown images, for too few, and where the images look like the other kind: the
        check would then refuse less than half of what it is for.
        """
        own = next((one for one in _SIGNS if one == kind), None)
        if own is None or len(features_NF) < 1 / RATE - 1:
            return None
        network, sign = network or shipped(), _SIGNS[own]
        scores_N = np.sort(sign * network.score(features_NF))
        above = math.floor(RATE * (len(scores_N) + 1) + 1e-9)
        threshold = float(scores_N[-above])
        other = next(one for one in _SIGNS if one != own)
        if threshold >= sign * network.medians[other]:
            return None
        return cls(kind=own, threshold=threshold, images=len(scores_N))

    def refused(self, features_NF: Floats, network: ModalityNetwork | None = None) -> Bools:
        """Tell which images seem to be of the other kind, N."""
        scores_N = (network or shipped()).score(features_NF)
        out_N: Bools = _SIGNS[self.kind] * scores_N >= self.threshold
        return out_N

    def refuses(self, pixels_HW3: NDArray[np.uint8]) -> bool:
        """Tell whether an image seems to be of the other kind."""
        return bool(self.refused(modality_features(pixels_HW3)[None])[0])


_SIGNS: dict[Kind, int] = {"dermoscopic": 1, "clinical": -1}
