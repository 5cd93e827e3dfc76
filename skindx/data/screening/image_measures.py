"""Limits and measures of screening: size, light, sharpness, and how many pixels an image is worth.

An enlargement shows no more than what it was made from. `effective_pixels` finds the frequency
above which the image holds only a small share of its own contrast. It does not depend on brightness
and contrast, and an enlargement holds nothing above the limit of its original, so both are worth
the same. A sharpened copy is worth more: to a spectrum, sharpening looks like detail.
"""

from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from skindx.core.settings_base import OFF, Settings
from skindx.imaging.decode import MAX_PIXELS
from skindx.workers.worker_process import SandboxLimits

# S = thumbnail side, H, W = pixels, L = sampled lines, N = pixels of a line


NotSkin = Annotated[Literal["review", "drop", "off"], OFF]

DETAIL_SIDE = 256
"""Detail is measured at this length of the longer side, whatever camera took the image."""


class ScreenSettings(Settings):
    """Requirements that an image must meet; luminances are means on 0..255.

    The limits only take away what shows nothing. On 2,359 dermoscopic images of the ISIC archive
    (all sound) and 855 strongly augmented ones (15 burnt out above 250, one black below 20, looked
    at): luminance 75..227 and 23..250, contrast 5.8..90 and 7.1..87, sharpness 12..7,696 and
    3.3..745. Copies blurred by 1/30 of the side have at most 2.2 and 1.9: any limit between 2.3 and
    3.3 separates all 3,198 sound images from all 892 copies.
    """

    removed_from: ClassVar[str] = "recipe screen."

    min_side: int = Field(default=64, ge=8, le=10**6, description="pixels")
    max_aspect: float = Field(default=4.0, ge=1, le=1e12, description="longer side / shorter side")
    min_luminance: float = Field(default=20.0, ge=0, le=255)
    max_luminance: float = Field(default=250.0, ge=0, le=255)
    min_contrast: float = Field(
        default=1.0,
        ge=0,
        le=1e6,
        description="standard deviation of the luminance at 72 x 72 pixels",
    )
    min_detail: float = Field(
        default=2.5, ge=0, le=1e6, description="variance of the Laplacian at 256 pixels"
    )
    not_skin: NotSkin = Field(
        default="review",
        description="images whose pixels look like no skin: flag them, drop them, or do not ask",
    )
    max_pixels: int = Field(default=MAX_PIXELS, gt=0, le=10**12)
    timeout_s: int = Field(default=30, ge=1, le=3600)
    """Time limit for one image; a slower decoder is ended."""
    memory_mb: int = Field(default=550, ge=200, le=10**8)
    """Memory limit of one decoding process, without the code of its libraries."""

    @property
    def limits(self) -> SandboxLimits:
        """Return what a decoding process may use."""
        return SandboxLimits(timeout_s=self.timeout_s, memory_mb=self.memory_mb)

    @model_validator(mode="after")
    def _dark_below_bright(self) -> Self:
        if self.min_luminance >= self.max_luminance:
            raise ValueError(
                f"min_luminance={self.min_luminance:g} must be below "
                f"max_luminance={self.max_luminance:g}, because otherwise every image is excluded"
            )
        return self


class ImageMeasures(NamedTuple):
    """Measurements of an image of valid size."""

    luminance: float
    """Mean, 0..255."""
    contrast: float
    """Standard deviation of the thumbnail's luminance."""
    sharpness: float
    """Variance of the Laplacian with the longer side at DETAIL_SIDE."""


def measure(grey_HW: NDArray[np.uint8], thumb_SS: NDArray[np.float32]) -> ImageMeasures:
    """Measure an image, given its thumbnail.

    Its longer side is first brought down to DETAIL_SIDE pixels, so that detail does not depend on
    the camera's resolution: by whole steps of area means, then by less than 2 linearly.
    """
    import cv2

    longer = max(grey_HW.shape)
    step = longer // DETAIL_SIDE
    if step > 1:
        size = (max(1, grey_HW.shape[1] // step), max(1, grey_HW.shape[0] // step))
        whole_HW = grey_HW[: size[1] * step, : size[0] * step]
        grey_HW = cv2.resize(whole_HW, size, interpolation=cv2.INTER_AREA)
    if step:
        scale = DETAIL_SIDE / max(grey_HW.shape)
        grey_HW = cv2.resize(grey_HW, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    edges_HW = cv2.Laplacian(grey_HW, cv2.CV_16S)
    mean = cv2.mean(edges_HW)[0]
    sharpness = cv2.norm(edges_HW, cv2.NORM_L2SQR) / edges_HW.size - mean * mean
    luminance, contrast = cv2.meanStdDev(thumb_SS)
    return ImageMeasures(float(luminance[0, 0]), float(contrast[0, 0]), float(sharpness))


def judge_shape(width: int, height: int, settings: ScreenSettings) -> tuple[str, str] | None:
    """Return (reason, sentence) for an image of no use by its size, None for a sound one."""
    size = f"{width} x {height} pixels"
    if min(width, height) < settings.min_side:
        return "too-small", f"{size}; each side needs {settings.min_side}"
    if max(width, height) > settings.max_aspect * min(width, height):
        return "bad-aspect", f"{size}; one side is more than {settings.max_aspect:g} x the other"
    return None


def judge_content(measured: ImageMeasures, settings: ScreenSettings) -> tuple[str, str] | None:
    """Return (reason, sentence) for an image that shows nothing of use, None for a sound one."""
    luminance, contrast, sharpness = measured
    if luminance < settings.min_luminance:
        return "too-dark", f"mean luminance {luminance:.1f}, at least {settings.min_luminance:g}"
    if luminance > settings.max_luminance:
        return "too-bright", f"mean luminance {luminance:.1f}, at most {settings.max_luminance:g}"
    if contrast < settings.min_contrast:
        return (
            "blank",
            f"one even tone: contrast {contrast:.2f}, at least {settings.min_contrast:g}",
        )
    if sharpness < settings.min_detail:
        return "blurred", f"variance of Laplacian {sharpness:.2f}, at least {settings.min_detail:g}"
    return None


_LINES = 48
"""Rows and columns that are looked at, evenly spread over the image."""
_LOSS = 2e-3
"""Share of the lines' variance that does not matter: 27 dB below it."""
_ROUNDING = 0.05
"""Grey levels squared that do not matter either; rounding to whole levels adds 1/12."""
_PERIODS = (2, 3, 4, 5, 6, 7, 9, 10)
"""Pixels after which enlargements by repeated pixels repeat their pattern: 5 for 2.5 and 1.25.

Without 8, the side of JPEG's blocks. A texture of exactly such a period is taken for one."""
_FEWEST_PERIODS = 8
_REPEATED = 0.4
"""Squared differences of repeated pixels, as a share of any others; JPEG adds some.

Of 40 dermoscopic and 12 clinical originals none had such a pattern at 0.4, some clinical at 0.5."""
EMPTY_PIXELS = 0.5
"""Exponent by which pixels that carry nothing count against an image."""
NOISE = 0.1
"""Two images whose `worth` differs by less than this share are worth the same."""


def effective_pixels(grey_HW: NDArray[np.uint8]) -> float:
    """Return the number of pixels that an image of the same detail needs, at least 1.

    That is the product over both axes of the frequency (in half cycles an image) above which the
    cosine spectrum of sampled lines holds no more than _LOSS of their variance.
    """
    height, width = grey_HW.shape
    rows = grey_HW[np.linspace(0, height - 1, min(_LINES, height)).astype(int)]
    columns = grey_HW[:, np.linspace(0, width - 1, min(_LINES, width)).astype(int)].T
    return _cut_off(rows) * _cut_off(columns)


def worth(effective: float, pixels: int) -> float:
    """Return what duplicates are compared by: detail, less for pixels that carry none.

    Of an enlargement and its original, which have the same detail but for what interpolation and
    JPEG add, the original is worth more; of a sharp image and a smaller copy, the larger one.
    """
    return float(effective * (effective / pixels) ** EMPTY_PIXELS)


def _cut_off(lines: NDArray[np.uint8]) -> float:
    import cv2

    lines_LN = _without_repeated(lines.astype(np.float32))
    length = lines_LN.shape[1] // 2 * 2  # OpenCV transforms even lengths
    if length < 2:
        return 1.0
    lines_LN = np.ascontiguousarray(lines_LN[:, :length])
    power_N = np.square(cv2.dct(lines_LN, flags=cv2.DCT_ROWS)).mean(axis=0) / length
    above_N = np.cumsum(power_N[::-1])[::-1]  # energy of this frequency and all higher ones
    loss = _LOSS * above_N[1] + _ROUNDING
    return float(max(1, np.searchsorted(-above_N, -loss)))


def _without_repeated(lines_LN: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the lines without pixels that only repeat the one before, as far as they do so evenly.

    Nearest-neighbour enlargements have no limit of frequency, so they are undone. The median over
    all periods finds their pattern whatever single edges an image has.
    """
    differences_N = np.square(np.diff(lines_LN, axis=1)).mean(axis=0)
    sorted_N = np.sort(differences_N)
    repeated = np.zeros(1, bool)
    for period in _PERIODS:
        whole = len(differences_N) // period
        if whole < _FEWEST_PERIODS:
            break
        # Half of a phase lies on either side of its median, so at least as many of all do.
        half = (whole - 1) // 2
        if sorted_N[half] >= _REPEATED * sorted_N[-1 - half]:
            continue  # as mostly where all pixels are alike: no phase repeats
        by_phase = _medians(differences_N[: whole * period].reshape(whole, period).T)
        low = by_phase < _REPEATED * by_phase.max()
        if not low.any() or low.mean() <= repeated.mean():
            continue
        apart = by_phase[low].max() <= _REPEATED * by_phase[~low].min()
        # With a wrong period pixels that differ would go as well, single edges among them.
        low_N = np.resize(low, len(differences_N))
        lost = differences_N[low_N].sum() / low_N.sum()
        apart = apart and lost <= _REPEATED * differences_N[~low_N].mean()
        gaps = np.diff(np.flatnonzero(~np.tile(low, 2)))  # an enlargement spreads pixels evenly
        if apart and np.ptp(gaps) <= 1:
            repeated = low
    if not repeated.any():
        return lines_LN
    kept_N = np.ones(lines_LN.shape[1], bool)
    kept_N[1:] = ~np.resize(repeated, len(differences_N))
    return lines_LN[:, kept_N]


def _medians(rows_PW: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the median of each row; `np.median` takes six times as long on such short ones."""
    middle = rows_PW.shape[1] // 2
    below = middle if rows_PW.shape[1] % 2 else middle - 1
    ordered_PW = np.partition(rows_PW, (below, middle), axis=1)
    return (ordered_PW[:, below] + ordered_PW[:, middle]) / np.float32(2)
