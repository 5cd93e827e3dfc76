"""How many lesions are found again in a second photo of a painted body.

Composites prove the pipeline, not medicine: a painted skin has the same pores in both photos.
"""

from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.data.synthetic.lesions import noise
from skindx.data.synthetic.painter import bare_skin
from skindx.metrics.share_intervals import proportion_interval
from skindx.scan.compare.changes import changes, match
from skindx.scan.compare.registration import ScanView, register
from skindx.scan.outputs.scan_result import PhotoSummary
from skindx_bench.harness.result import MEANS, Figure, Result

# N = lesions, H, W = rows and columns

_APART = 1.6
"""Between the middles of two lesions, in the sum of their diameters."""


@dataclass(frozen=True)
class Body:
    """A photo and the truth about it."""

    pixels_HW3: NDArray[np.uint8]
    centres_N2: NDArray[np.float64]
    sizes_N: NDArray[np.float64]
    """Diameters in pixels."""
    colours_N3: NDArray[np.float64]
    """CIELAB, lesion minus skin."""

    @property
    def boxes(self) -> NDArray[np.float64]:
        """Return boxes_N4: x1, y1, x2, y2."""
        half_N1 = self.sizes_N[:, None] / 2
        return np.hstack([self.centres_N2 - half_N1, self.centres_N2 + half_N1])

    def inside(self) -> NDArray[np.bool_]:
        """Return which lesions the photo shows whole."""
        height, width = self.pixels_HW3.shape[:2]
        within_N4 = (self.boxes >= 0) & (self.boxes < (width, height) * 2)
        return np.asarray(within_N4.all(axis=1))


@dataclass(frozen=True)
class Camera:
    """How a body is seen again."""

    turn: float = 0.0
    """Degrees."""
    scale: float = 1.0
    tilt: float = 0.0
    """How much nearer one side of the body is than the other, as a share."""
    warp: float = 0.0
    """Standard deviation of a smooth shift of the skin, as a share of the longer side."""
    light: float = 0.0
    """How much darker one side is than the other, as a share; colours change by a third of it."""
    noise: float = 0.01
    """Standard deviation, of a full range of 1."""


def paint_body(rng: np.random.Generator, lesions: int, size_wh: tuple[int, int]) -> Body:
    """Paint a body with about so many lesions, their sizes as a back has them: most are small."""
    width, height = size_wh
    unit = max(size_wh)
    centres: list[NDArray[np.float64]] = []
    sizes: list[float] = []
    for _ in range(30 * lesions):
        size = float(np.clip(unit * 0.012 * np.exp(rng.normal(0, 0.5)), 0.006 * unit, 0.06 * unit))
        centre = rng.uniform(size, np.array(size_wh) - size)
        if all(
            np.hypot(*(centre - other)) > _APART * (size + its)
            for other, its in zip(centres, sizes, strict=True)
        ):
            centres.append(centre)
            sizes.append(size)
        if len(sizes) == lesions:
            break
    colours_N3 = np.array([-22.0, 3, 3]) + rng.normal(0, (7, 2, 2), (len(sizes), 3))
    skin = bare_skin(rng, (height, width))
    body = Body(np.empty((0, 0, 3), np.uint8), np.array(centres), np.array(sizes), colours_N3)
    return replace(body, pixels_HW3=_bytes(_with_lesions(rng, skin, body)))


def with_other_skin(rng: np.random.Generator, body: Body) -> Body:
    """Return the same lesions on skin without a pore in common, as after years."""
    height, width = body.pixels_HW3.shape[:2]
    return replace(
        body, pixels_HW3=_bytes(_with_lesions(rng, bare_skin(rng, (height, width)), body))
    )


def _with_lesions(
    rng: np.random.Generator, skin_HW3: NDArray[np.float32], body: Body
) -> NDArray[np.float32]:
    """Paint dark blots of irregular outline, each about as large as its size says."""
    image = skin_HW3.copy()
    height, width = image.shape[:2]
    for centre, size, colour in zip(body.centres_N2, body.sizes_N, body.colours_N3, strict=True):
        low = np.maximum(np.floor(centre - size), 0).astype(int)
        high = np.minimum(np.ceil(centre + size), (width, height)).astype(int)
        y, x = np.mgrid[low[1] : high[1], low[0] : high[0]] - centre[::-1, None, None]
        angle, radius = np.arctan2(y, x), np.hypot(x, y)
        outline = 0.5 * size * np.ones_like(angle)
        for lobes in range(2, 6):
            outline *= 1 + rng.uniform(0, 0.08) * np.cos(lobes * angle + rng.uniform(0, 7))
        ink = np.clip((outline - radius) / (0.12 * size) + 0.5, 0, 1)
        mottled = 1 + 0.15 * np.cos(x * 7 / size + rng.uniform(0, 7)) * np.cos(y * 9 / size)
        ink = np.clip(ink * mottled, 0, 1)[..., None]
        share = np.clip(1 + colour[0] / 60, 0.2, 1) * np.array([1, 0.86, 0.82])
        part = image[low[1] : high[1], low[0] : high[0]]
        part *= (1 - ink * (1 - share)).astype(np.float32)
    return image


def seen_again(rng: np.random.Generator, body: Body, camera: Camera) -> Body:
    """Return the body as another camera sees it, in a photo of the same size."""
    height, width = body.pixels_HW3.shape[:2]
    map_33 = _homography(camera, width, height)
    shift_HW2 = np.stack(
        [camera.warp * max(width, height) * noise(rng, 3, (height, width)) for _ in range(2)],
        axis=-1,
    )
    y, x = np.mgrid[:height, :width].astype(np.float32)
    grid_HW2 = np.stack([x, y], axis=-1) - shift_HW2
    source_HW2 = cv2.perspectiveTransform(grid_HW2.reshape(1, -1, 2), np.linalg.inv(map_33))
    source_HW2 = source_HW2.reshape(height, width, 2).astype(np.float32)
    image = cv2.remap(
        body.pixels_HW3, source_HW2, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT
    )
    lit = image.astype(np.float32) / 255
    slope = 1 - camera.light * (x / width)
    lit *= slope[..., None] * (1 + camera.light / 3 * np.array([1, 0, -1], np.float32))
    lit += rng.normal(0, camera.noise, lit.shape).astype(np.float32)
    there_N2 = cv2.perspectiveTransform(body.centres_N2[None], map_33)[0]
    centres_N2 = there_N2 + _sampled(shift_HW2, there_N2)
    for _ in range(10):  # the shift is given at where a place comes to lie
        centres_N2 = there_N2 + _sampled(shift_HW2, centres_N2)
    beside_N2 = cv2.perspectiveTransform(body.centres_N2[None] + (1, 0), map_33)[0]
    below_N2 = cv2.perspectiveTransform(body.centres_N2[None] + (0, 1), map_33)[0]
    (a_N, b_N), (c_N, d_N) = (beside_N2 - there_N2).T, (below_N2 - there_N2).T
    area_N = np.abs(a_N * d_N - b_N * c_N)
    return Body(_bytes(lit), centres_N2, body.sizes_N * np.sqrt(area_N), body.colours_N3)


def _homography(camera: Camera, width: int, height: int) -> NDArray[np.float64]:
    turn = np.radians(camera.turn)
    cosine, sine = camera.scale * np.cos(turn), camera.scale * np.sin(turn)
    centre = np.array([[1, 0, -width / 2], [0, 1, -height / 2], [0, 0, 1.0]])
    turned = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
    tilted = np.array([[1, 0, 0], [0, 1, 0], [camera.tilt / width, 0, 1.0]])
    return np.asarray(np.linalg.inv(centre) @ tilted @ turned @ centre)


def _sampled(field_HW2: NDArray[np.float32], places_N2: NDArray[np.float64]) -> NDArray[np.float64]:
    places = places_N2.astype(np.float32)
    values = cv2.remap(
        field_HW2.astype(np.float32),
        places[None, :, 0],
        places[None, :, 1],
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REPLICATE,
    )
    sampled_N2: NDArray[np.float64] = values[0].astype(np.float64)
    return sampled_N2


def _bytes(image: NDArray[np.float32]) -> NDArray[np.uint8]:
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)


def view_of(
    rng: np.random.Generator, body: Body, jitter: float, name: str = "back.jpg"
) -> ScanView:
    """Return the photo with the outlines of a detector that finds every lesion in it.

    Edges are off by `jitter` of a lesion's size, as a standard deviation; `rank` of each row is
    the number of its lesion in the body, from 0.
    """
    height, width = body.pixels_HW3.shape[:2]
    numbers = np.flatnonzero(body.inside())
    off = rng.normal(0, jitter, (len(body.sizes_N), 4)) * body.sizes_N[:, None]
    boxes_N4 = body.boxes + off
    rows: list[dict[str, Any]] = [
        {
            "rank": int(number),
            "urgent": False,
            "urgent_risk": 0.01,
            **dict(zip(("x1", "y1", "x2", "y2"), boxes_N4[number].tolist(), strict=True)),
        }
        for number in numbers
    ]
    colours_N3 = body.colours_N3 + rng.normal(0, 1.0, body.colours_N3.shape)
    photo = PhotoSummary(
        name=name,
        sha256="00" * 32,
        width=width,
        height=height,
        mm_per_pixel=None,
        tiles=1,
        tiles_without_skin=0,
        failed_tiles=0,
        overview="",
    )
    return ScanView(photo, body.pixels_HW3, boxes_N4[numbers], colours_N3[numbers], tuple(rows))


SMALLEST = ("bodies=1", "lesions=20", "side=500")


class Config(Settings):
    """Painted bodies that a camera sees twice."""

    bodies: int = Field(20, ge=1)
    lesions: int = Field(60, ge=10)
    """On each body."""
    side: int = Field(1600, ge=400)
    """Pixels of the longer side."""
    jitter: float = Field(0.04, ge=0, le=0.2)
    """Standard deviation of a detector's edges, as a share of a lesion's size."""
    growth: float = Field(1.5, gt=1)
    """Of every tenth lesion, in diameter."""
    seed: int = 0


def cameras(rng: np.random.Generator) -> dict[str, Camera]:
    """Return the second photos: turned, nearer and tilted; or of skin that moved as well."""
    sign = rng.choice([-1, 1], 3)
    return {
        "camera": Camera(15.0 * sign[0], 1.2 ** float(sign[1]), 0.15 * float(sign[2]), noise=0.015),
        "warped": Camera(5.0 * sign[0], 1.1 ** float(sign[1]), 0.05, 0.012, 0.3, 0.03),
        "years": Camera(5.0 * sign[0], 1.1 ** float(sign[1]), 0.05, 0.004, 0.3, 0.03),
    }


def run(settings: Config) -> Result:
    """Paint, register and match; shares are over lesions that both photos show whole."""
    counts: dict[str, list[bool]] = {}

    def note(key: str, hits: list[bool]) -> None:
        counts.setdefault(key, []).extend(hits)

    for number in range(settings.bodies):
        rng = np.random.default_rng([settings.seed, number])
        size_wh = settings.side, 3 * settings.side // 4
        body = paint_body(rng, settings.lesions, size_wh)
        for name, camera in cameras(rng).items():
            later = with_other_skin(rng, body) if name == "years" else body
            for key, hits in _seen_again(rng, (body, later), camera, settings).items():
                note(f"{name}_{key}", hits)
        other = paint_body(rng, settings.lesions, size_wh)
        note("others_refused", [_refused(rng, body, other, settings)])
    figures = {key: _figure(hits) for key, hits in counts.items()}
    notes = (
        f"{settings.bodies} painted bodies with {settings.lesions} lesions, {settings.side} "
        f"pixels along the longer side, edges of outlines off by {settings.jitter:.0%}. Composites "
        f"prove the pipeline, not medicine.",
        "camera: turned by 15°, 20 % nearer or farther, tilted; warped: turned by 5°, 10 % nearer "
        "or farther, the skin moved smoothly, other light and noise; years: the same lesions on "
        "skin that has nothing else in common, moved less; others: another body.",
        "matched: share of lesions in both photos whose partner is the right one; wrong: "
        "share with a wrong partner; grown: every tenth lesion is "
        f"{settings.growth:g} times as wide.",
    )
    return Result("scan-compare", figures, notes=notes, headings=MEANS)


def _seen_again(
    rng: np.random.Generator, bodies: tuple[Body, Body], camera: Camera, settings: Config
) -> dict[str, list[bool]]:
    body, later = bodies
    again = seen_again(rng, later, camera)
    grows_N = np.arange(len(body.sizes_N)) % 10 == 0
    # Growth is in the outlines alone: where lesions lie does not depend on it.
    grown = replace(again, sizes_N=again.sizes_N * np.where(grows_N, settings.growth, 1))
    before = view_of(rng, body, settings.jitter)
    after = view_of(rng, grown, settings.jitter)
    shared = {row["rank"] for row in before.rows} & {row["rank"] for row in after.rows}
    try:
        matched = match(before, after, register(before, after))
    except UserError:
        return {"registered": [False], "matched": [False] * len(shared)}
    partners = {
        before.rows[own]["rank"]: after.rows[other]["rank"] for own, other in matched.pairs_N2
    }
    right = {lesion for lesion in shared if partners.get(lesion) == lesion}
    listed = {
        change.before["rank"]: change.kind
        for change in changes(before, after, matched)
        if change.before and change.after
    }
    return {
        "registered": [True],
        "matched": [lesion in right for lesion in shared],
        "wrong": [partners.get(lesion, lesion) != lesion for lesion in shared],
        "grown_found": [listed[lesion] == "grown" for lesion in right if grows_N[lesion]],
        "grown_wrongly": [listed[lesion] == "grown" for lesion in right if not grows_N[lesion]],
    }


def _refused(rng: np.random.Generator, body: Body, other: Body, settings: Config) -> bool:
    try:
        register(view_of(rng, body, settings.jitter), view_of(rng, other, settings.jitter))
    except UserError:
        return True
    return False


def _figure(hits: list[bool]) -> Figure:
    """Return a share in per cent with its exact 95 % interval."""
    share = proportion_interval(sum(hits) / len(hits) if hits else 0.0, len(hits))
    low, high = (100 * share.low, 100 * share.high) if hits else (0.0, 100.0)
    return Figure(100 * share.value if hits else 0.0, "%", len(hits), (low, high))
