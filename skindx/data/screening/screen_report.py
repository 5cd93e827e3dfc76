"""Screening of a folder of images as a report, with the position of its limits."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count
from skindx.core.text import cell
from skindx.data.screening.image_measures import ImageMeasures, ScreenSettings, measure
from skindx.data.screening.screen import Screened, screen_files
from skindx.imaging.decode import decode
from skindx.imaging.hashes import grey, thumbnail
from skindx.imaging.image_formats import image_suffix
from skindx.imaging.skin_content import DESCRIPTIONS

if TYPE_CHECKING:
    from rich.console import Console

BLUR = 30
"""A copy blurred by 1/BLUR of the longer side (Gaussian, standard deviation) shows nothing."""
SHARES = (0.0, 0.001, 0.01, 0.5, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class ScreenReport:
    """Verdicts on a folder; the arrays hold what was measured of its sound images."""

    reasons: Counter[str]
    sound: int
    examples: dict[str, str]
    """One file name a reason."""
    measured_N3: NDArray[np.float64]
    blurred_M: NDArray[np.float64]
    """Sharpness of blurred copies of some of them."""
    min_detail: float
    """The limit that separates images from blurred copies best."""
    lost: tuple[float, float]
    """Shares of images refused and of blurred copies let pass at that limit."""
    not_skin: Counter[str]
    """Appearances that sound images show in the place of skin, with their numbers."""
    no_skin_example: str
    """The file name of one of these, or ""."""


def report(
    folder: Path,
    settings: ScreenSettings,
    *,
    blurred: int = 500,
    on_progress: Callable[[int, int], None] | None = None,
) -> ScreenReport:
    """Screen all images below a folder, and up to `blurred` blurred copies of sound ones.

    Raises UserError for a folder without a sound image.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give one that holds images.")
    files = sorted(path for path in folder.rglob("*") if _is_image(path))
    screened = screen_files(files, settings, (), workers=cpu_count(), on_progress=on_progress)
    sound = [path for path, verdict in zip(files, screened, strict=True) if verdict.reason is None]
    refused = [
        (path, verdict) for path, verdict in zip(files, screened, strict=True) if verdict.reason
    ]
    if not files:
        raise UserError(f"{folder} holds no image at any depth; give a folder of images.")
    if not sound:
        (why, _), *_ = Counter(str(verdict.reason) for _, verdict in refused).most_common(1)
        raise UserError(
            f"none of the {len(files)} images below {folder} passes (most often: {why}); look at "
            f"them, or change the limits with --set."
        )
    measured = [_measures(verdict) for verdict in screened if verdict.reason is None]
    copies = [_blurred(path).sharpness for path in sound[:: -(-len(sound) // blurred)]]
    measured_N3 = np.array(measured)
    other = {
        str(path.relative_to(folder)): verdict.shows
        for path, verdict in zip(files, screened, strict=True)
        if verdict.shows
    }
    min_detail, lost = fit_limit(measured_N3[:, 2], np.array(copies))
    return ScreenReport(
        Counter(str(verdict.reason) for _, verdict in refused),
        len(sound),
        {str(verdict.reason): str(path.relative_to(folder)) for path, verdict in reversed(refused)},
        measured_N3,
        np.array(copies),
        min_detail,
        lost,
        Counter(DESCRIPTIONS[shows] for shows in other.values()),
        next(iter(other), ""),
    )


def fit_limit(
    sharp_N: NDArray[np.float64], blurred_M: NDArray[np.float64]
) -> tuple[float, tuple[float, float]]:
    """Return the limit with the least (share of sharp below + share of blurred not below).

    It lies in the geometric middle between two measured values, for sharpness spans decades.
    """
    values = np.unique(np.concatenate([sharp_N, blurred_M]))
    limits = np.sqrt(values[:-1] * values[1:])
    lost = np.searchsorted(np.sort(sharp_N), limits) / len(sharp_N)
    lost = lost + 1 - np.searchsorted(np.sort(blurred_M), limits) / len(blurred_M)
    limit = float(limits[np.argmin(lost)])
    return limit, (float((sharp_N < limit).mean()), float((blurred_M >= limit).mean()))


def print_report(report: ScreenReport, settings: ScreenSettings, console: "Console") -> None:
    """Print verdicts, the spread of what was measured, and the fitted limit."""
    from rich.table import Table

    table = Table("measure", title=f"{report.sound} sound images", title_justify="left")
    for share in SHARES:
        table.add_column(f"{share:.1%}", justify="right")
    table.add_column("limits", justify="right")
    limits = (
        f"{settings.min_luminance:g} .. {settings.max_luminance:g}",
        f"{settings.min_contrast:g} ..",
        f"{settings.min_detail:g} ..",
    )
    names = ("luminance", "contrast", "sharpness")
    for name, column, limit in zip(names, report.measured_N3.T, limits, strict=True):
        table.add_row(name, *_quantiles(column), limit)
    title = f"sharpness of {len(report.blurred_M)} copies blurred by 1/{BLUR} of the side"
    table.add_row(title, *_quantiles(report.blurred_M), f"fitted: {report.min_detail:.2g}")
    console.print(table)
    refused, passed = report.lost
    kept = float((report.blurred_M >= settings.min_detail).mean())
    console.print(
        f"min_detail = {report.min_detail:.2g} separates them best: it refuses {refused:.2%} of "
        f"the images and lets {passed:.2%} of the blurred copies pass; {settings.min_detail:g} "
        f"lets {kept:.2%} of them pass."
    )
    for reason, count in report.reasons.most_common():
        example = cell(report.examples[reason])
        console.print(f"refused: {count} {reason}, such as {example}", highlight=False)
    for shows, count in report.not_skin.most_common():
        console.print(f"looks like no skin: {count} show {shows}", highlight=False)
    if report.not_skin:
        name = cell(report.no_skin_example)
        console.print(f"such as {name}; not_skin = {settings.not_skin}", highlight=False)


def _quantiles(values: NDArray[np.float64]) -> list[str]:
    return [f"{value:.4g}" for value in np.quantile(values, SHARES)]


def _measures(screened: Screened) -> tuple[float, float, float]:
    return screened.luminance, screened.contrast, screened.sharpness


def _blurred(sound: Path) -> ImageMeasures:
    import cv2

    grey_HW = grey(decode(sound.read_bytes()))
    blurred_HW = cv2.GaussianBlur(grey_HW, (0, 0), max(grey_HW.shape) / BLUR)
    return measure(blurred_HW, thumbnail(blurred_HW))


def _is_image(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return image_suffix(file.read(16)) is not None
