"""Gates without a model: what is wrong with a photo, by its pixels at one fixed scale.

`python -m skindx_bench.honesty.gates_study` measures their thresholds on real photos.

Below them: whether a photo was taken through a dermatoscope. A dermatoscope lights one patch of
skin evenly, from all around, and often shows its round rim; a camera shows shape, shadow, clothes
and background. 56 numbers of light, colours and coarse detail say so, and a small network weighs
them. `skindx bench honesty modality` fits the network and writes `modality.json`.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json
from skindx.imaging.resize import shrink

Fault = Literal["dark", "dim", "glaring", "pale", "no-skin", "blurred", "soft"]
"""Faults of a photo; the caller words them: a page gives advice, a dataset has a table."""

SIDE = 160
"""Pixels of the shorter side: less than the networks see, so what is lost here is lost to them."""


@dataclass(frozen=True)
class Reduced:
    """A photo whose shorter side measures 160 pixels, RGB uint8."""

    pixels_HWC: NDArray[np.uint8]

    @classmethod
    def from_pixels(cls, pixels_HWC: NDArray[np.uint8]) -> Self:
        """Reduce a photo; a smaller one is enlarged."""
        return cls(shrink(pixels_HWC, SIDE))

    @cached_property
    def luma(self) -> NDArray[np.float32]:
        """Brightness H x W on the 0..255 scale."""
        import cv2

        # Rounding again would look like detail in a dark photo, so floating point is used.
        luma_HW: NDArray[np.float32] = cv2.cvtColor(
            self.pixels_HWC.astype(np.float32), cv2.COLOR_RGB2GRAY
        )
        return luma_HW


@dataclass(frozen=True, slots=True)
class PhotoFault:
    fault: Fault
    fatal: bool
    """Whether no diagnosis should rest on the photo; otherwise it is a remark beside one."""


FLOOR = 0.3
"""Variance, in squared levels, that rounding and compression leave in the finest band."""
BRIGHT = 150.0
"""Brightness below which `FLOOR` is reduced, as detail of dark photos and dark skin is fainter."""
REFUSED, REMARKED = -0.5, -0.2


def sharpness(luma_HW: NDArray[np.float32]) -> float:
    """Return log10 of the finest band's variance over the next one's; -3 at the least."""
    import cv2

    fine_HW, coarse_HW = (cv2.GaussianBlur(luma_HW, (0, 0), sigma) for sigma in (1, 2))
    light = min(1.0, float(np.percentile(luma_HW, 95)) / BRIGHT)
    finest = float((luma_HW - fine_HW).var()) - FLOOR * light**2
    return math.log10(max(finest, 1e-3) / (float((fine_HW - coarse_HW).var()) + 1e-3))


def blurred(photo: Reduced) -> PhotoFault | None:
    """Detect a photo that is out of focus or shaken, by its finest detail relative to coarser one.

    The variance of the Laplacian alone would call smooth skin blurred. The ratio of two adjacent
    bands of a difference-of-Gaussians pyramid (Burt and Adelson 1983) is free of contrast and, at a
    fixed size of the photo, of scale; what 8-bit pixels and JPEG add to the fine band is taken off.
    Of 200 dermoscopic and 200 clinical photos none was refused, and 0.3 % with a tenth of their
    light; blurred by 1 pixel of the 160, where the networks begin to lose structures, 44 % were
    refused and 55 % remarked on, by 1.5 pixels 97 and 3 %, by 2 pixels 99 % were refused.
    """
    value = sharpness(photo.luma)
    if value >= REMARKED:
        return None
    return (
        PhotoFault("soft", fatal=False) if value >= REFUSED else PhotoFault("blurred", fatal=True)
    )


DARK, DIM = 24.0, 45.0
"""Brightness on the 0..255 scale that 95 % of a photo stay below."""
GLARING, PALE = 252.0, 235.0
"""Brightness that 95 % of a photo exceed."""


def badly_lit(photo: Reduced) -> PhotoFault | None:
    """Detect too little or too much light to see structures.

    It looks at the brightest and the darkest parts, never at their mean, so that neither dark skin
    nor the black rim of a dermoscope counts as bad light: of 800 real photos the darkest has 49 at
    the 95th percentile, the brightest 251 at the 5th.
    """
    darkest, brightest = np.percentile(photo.luma, [5, 95])
    if brightest < DIM:
        dark = brightest < DARK
        return PhotoFault("dark" if dark else "dim", fatal=bool(dark))
    if darkest > PALE:
        glaring = darkest > GLARING
        return PhotoFault("glaring" if glaring else "pale", fatal=bool(glaring))
    return None


HUES_DEGREES = (-75.0, 115.0)
"""Angle in CIELAB's a*b* plane."""
LEAST_CHROMA = 3.0
LEAST_SHARE = 0.1


def skin_mask(pixels_HW3: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return H x W: the pixel has a colour of skin."""
    import cv2

    lab_HW3 = cv2.cvtColor(pixels_HW3.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    a_HW, b_HW = lab_HW3[..., 1], lab_HW3[..., 2]
    hue_HW = np.degrees(np.arctan2(b_HW, a_HW))
    low, high = HUES_DEGREES
    coloured_HW = np.hypot(a_HW, b_HW) > LEAST_CHROMA
    mask_HW: NDArray[np.bool_] = coloured_HW & (hue_HW > low) & (hue_HW < high)
    return mask_HW


def skin_share(photo: Reduced) -> float:
    """Return the share of pixels that have a colour of skin."""
    return float(skin_mask(photo.pixels_HWC).mean())


def no_skin(photo: Reduced) -> PhotoFault | None:
    """Detect a photo that shows hardly anything of the colours of skin.

    Melanin and blood leave every skin type between violet red and greenish yellow, light or dark,
    and never quite grey; dermoscopes shift it within that range. So the hue of coloured pixels
    decides and brightness does not: light and dark skin are treated alike. Of 200 dermoscopic
    photos none was refused, of 200 clinical photos 1, at full and at a tenth of their light. The
    gate rejects painted documents, screens, landscapes, foliage, water and grey noise. Wood and
    colour noise pass it; the bundle's out-of-distribution detector handles them.
    """
    return None if skin_share(photo) >= LEAST_SHARE else PhotoFault("no-skin", fatal=True)


Gate = Literal["light", "no-skin", "blur"]

GATES: dict[Gate, Callable[[Reduced], PhotoFault | None]] = {
    "light": badly_lit,
    "no-skin": no_skin,
    "blur": blurred,
}
"""The order matters: a dark photo also counts as blurred, and that advice would not help."""


def inspect(pixels_HWC: NDArray[np.uint8]) -> list[tuple[Gate, PhotoFault]]:
    """Return what the gates detect in a photo, H x W x 3 RGB uint8; a fatal fault ends the list."""
    reduced = Reduced.from_pixels(pixels_HWC)
    faults: list[tuple[Gate, PhotoFault]] = []
    for name, gate in GATES.items():
        fault = gate(reduced)
        if fault:
            faults.append((name, fault))
            if fault.fatal:
                break
    return faults


# S = side, R = rings, F = features, H = hidden units

Kind = Literal["dermoscopic", "clinical"]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MODALITY_SIDE = 64
"""Side to which every image is reduced and blurred, so that its size and JPEG say little."""
_BLUR = 0.8
_RADII = (0.0, 0.35, 0.65, 0.95, 1.15, 2.0)
_WITH_DETAIL = 4
_CORNER = MODALITY_SIDE // 6
WEIGHTS = Path(__file__).parent / "modality.json"


@cache
def _rings() -> NDArray[np.bool_]:
    """Return which pixels lie in each ring around the centre, R x S x S."""
    places_S = (np.arange(MODALITY_SIDE) - (MODALITY_SIDE - 1) / 2) / (MODALITY_SIDE / 2)
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

    enlarged = min(pixels_HW3.shape[:2]) < MODALITY_SIDE
    filter_ = cv2.INTER_LINEAR if enlarged else cv2.INTER_AREA
    small_SS3 = cv2.resize(pixels_HW3, (MODALITY_SIDE, MODALITY_SIDE), interpolation=filter_)
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
    half, corner = MODALITY_SIDE // 2, _CORNER
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
    """One row per hidden unit: weights of the F scaled features, bias, output weight."""
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
    """Score from which a photo is refused, signed so that higher means the other kind."""
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
        return _SIGNS[self.kind] * scores_N >= self.threshold

    def refuses(self, pixels_HW3: NDArray[np.uint8]) -> bool:
        """Tell whether an image seems to be of the other kind."""
        return bool(self.refused(modality_features(pixels_HW3)[None])[0])


_SIGNS: dict[Kind, int] = {"dermoscopic": 1, "clinical": -1}
