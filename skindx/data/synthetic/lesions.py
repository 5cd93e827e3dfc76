"""One recipe a class: lesions that differ by shape, border, texture and layout, never by colour.

A recipe draws into a square patch whose middle square [-1, 1] x [-1, 1] holds the lesion.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]
SIDE = 192
HALF = 1.35
"""The patch covers [-HALF, HALF]: room for halos around the lesion."""


@dataclass(frozen=True, slots=True)
class Lesion:
    """`ink` 0..1 is how much lesion hue, `relief` -1..1 darkens or lightens, `region` is the extent.

    All are (SIDE, SIDE); `region` is 0 or 1.
    """

    ink: Field
    relief: Field
    region: Field


@cache
def _grid() -> tuple[Field, Field, Field, NDArray[np.int32]]:
    """Return x, y, radius, and the angle in whole degrees of every patch pixel."""
    axis = np.linspace(-HALF, HALF, SIDE, dtype=np.float32)
    x, y = np.meshgrid(axis, axis)
    angle = np.degrees(np.arctan2(y, x)).astype(np.int32) % 360
    return x, y, np.hypot(x, y), angle


def noise(rng: np.random.Generator, cells: int, shape: tuple[int, int] = (SIDE, SIDE)) -> Field:
    """Return smooth noise, roughly normal, with about `cells` bumps along the shorter side."""
    height, width = shape
    step = min(height, width) / cells
    coarse = (max(2, round(height / step)), max(2, round(width / step)))
    grid = rng.standard_normal(coarse, dtype=np.float32)
    field: Field = cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC)
    return field


def _soft(depth: Field, width: float) -> Field:
    """Rise from 0 to 1 while `depth` goes from -width/2 to width/2."""
    ramp: Field = np.clip(depth / width + 0.5, 0, 1)
    return ramp * ramp * (3 - 2 * ramp)


def _inside(
    rng: np.random.Generator, rough: float, waves: tuple[int, int], radius: float = 0.9
) -> Field:
    """Return the depth inside a closed outline with `waves` lobes of relative height `rough`."""
    theta = np.radians(np.arange(360, dtype=np.float32))
    outline = np.ones(360, dtype=np.float32)
    for k in range(*waves):
        outline += rough * rng.uniform(0.5, 1) / np.sqrt(k) * np.cos(k * theta + rng.uniform(0, 7))
    _, _, distance, angle = _grid()
    depth: Field = (radius * outline / outline.max()).astype(np.float32)[angle] - distance
    return depth


def _scatter(rng: np.random.Generator, count: int, gap: float, reach: float) -> list[NDArray]:  # type: ignore[type-arg]
    """Return up to `count` points in the disc of radius `reach`, at least `gap` apart."""
    points: list[NDArray[np.float64]] = []
    for candidate in rng.uniform(-reach, reach, (count * 12, 2)):
        apart = all(np.hypot(*(candidate - point)) >= gap for point in points)
        if np.hypot(*candidate) <= reach and apart:
            points.append(candidate)
        if len(points) == count:
            break
    return points


def _pixels(points: NDArray[np.float64]) -> NDArray[np.int32]:
    """Turn patch coordinates into OpenCV fixed point with 4 fractional bits."""
    return np.round((points + HALF) / (2 * HALF) * (SIDE - 1) * 16).astype(np.int32)


def _disc(canvas: Field, centre: NDArray[np.float64], radius: float, value: float) -> None:
    x, y = (int(each) for each in _pixels(centre))
    size = round(radius / (2 * HALF) * SIDE * 16)
    cv2.circle(canvas, (x, y), size, value, -1, cv2.LINE_AA, 4)


def _stroke(canvas: Field, points: NDArray[np.float64], width: float, value: float = 1.0) -> None:
    thick = max(1, round(width / (2 * HALF) * SIDE))
    cv2.polylines(canvas, [_pixels(points)], False, value, thick, cv2.LINE_AA, 4)


def _blank() -> Field:
    return np.zeros((SIDE, SIDE), np.float32)


def _whole(ink: Field, relief: Field, depth: Field) -> Lesion:
    return Lesion(ink, relief, (depth > 0).astype(np.float32))


def papules(rng: np.random.Generator) -> Lesion:
    """Many small round bumps, each with a light head, scattered over a field (acne)."""
    ink, relief = _blank(), _blank()
    for point in _scatter(rng, int(rng.integers(9, 15)), 0.4, 0.85):
        radius = rng.uniform(0.12, 0.18)
        _disc(ink, point, radius, rng.uniform(0.8, 1.0))
        _disc(relief, point - radius * 0.2, radius * 0.45, 0.8)
    region = (ink > 0.5).astype(np.float32)
    return Lesion(cv2.GaussianBlur(ink, (0, 0), 1.5), cv2.GaussianBlur(relief, (0, 0), 1.0), region)


def flaky_patch(rng: np.random.Generator) -> Lesion:
    """A faint patch without an edge that carries large angular light scales (actinic keratosis)."""
    depth = _inside(rng, 0.18, (2, 6))
    relief = _blank()
    for point in _scatter(rng, int(rng.integers(9, 14)), 0.36, 0.72):
        turns = np.sort(rng.uniform(0, 2 * np.pi, int(rng.integers(3, 6))))
        corners = point + rng.uniform(0.15, 0.26) * np.stack([np.cos(turns), np.sin(turns)], 1)
        cv2.fillPoly(relief, [_pixels(corners + 0.035)], -0.6, cv2.LINE_AA, 4)
        cv2.fillPoly(relief, [_pixels(corners)], rng.uniform(0.75, 1.0), cv2.LINE_AA, 4)
    return _whole(0.5 * _soft(depth, 0.5), relief, depth)


def hatched_patch(rng: np.random.Generator) -> Lesion:
    """A patch without an edge, crossed by two families of thick skin lines (eczema)."""
    x, y, _, _ = _grid()
    depth = _inside(rng, 0.2, (2, 6), 0.95)
    bend = 0.06 * noise(rng, 5)
    pitch, first = rng.uniform(0.26, 0.34), rng.uniform(0, np.pi)
    lines = _blank()
    for turn in (first, first + rng.uniform(1.0, 1.5)):
        wave = np.cos(2 * np.pi / pitch * (x * np.cos(turn) + y * np.sin(turn) + bend))
        lines = np.maximum(lines, _soft(wave.astype(np.float32) - 0.55, 0.5))
    veil = _soft(depth, 0.5)
    return _whole(veil * (0.3 + 0.55 * lines), veil * (0.25 - 0.4 * lines), depth)


def pearly_nodule(rng: np.random.Generator) -> Lesion:
    """A dome lit from one side, one sharp highlight, a few branching vessels (basal cell)."""
    x, y, distance, _ = _grid()
    depth = _inside(rng, 0.05, (2, 4))
    edge = _soft(depth, 0.08)
    light = rng.uniform(0, 2 * np.pi)
    slope = -(x * np.cos(light) + y * np.sin(light)) * np.minimum(distance * 1.4, 1)
    shine = _blank()
    _disc(shine, 0.42 * -np.array([np.cos(light), np.sin(light)]), rng.uniform(0.17, 0.24), 1.0)
    vessels = _blank()
    for turn in light + rng.uniform(-1.2, 1.2, int(rng.integers(2, 5))):
        start = 0.85 * np.array([np.cos(turn), np.sin(turn)])
        for _ in range(2):
            _stroke(vessels, _walk(rng, start, turn + np.pi, 0.9), 0.04)
    relief = edge * (0.85 * slope) + 0.9 * cv2.GaussianBlur(shine, (0, 0), 5)
    return _whole(edge * np.maximum(0.4, vessels), np.clip(relief, -1, 1), depth)


def two_tone_mole(rng: np.random.Generator) -> Lesion:
    """A smooth symmetric oval, dark in its middle and half as dark around it (compound nevus)."""
    x, y, _, _ = _grid()
    oval: Field = 0.88 - np.hypot(x, y / rng.uniform(0.68, 0.9)).astype(np.float32)
    core = _soft(oval - rng.uniform(0.34, 0.44), 0.1)
    speckle = 0.06 * noise(rng, 40)
    ink = _soft(oval, 0.08) * (0.42 + 0.58 * core + speckle)
    return _whole(np.clip(ink, 0, 1), _blank() - 0.3 * core, oval)


def nail(rng: np.random.Generator) -> Lesion:
    """A plate with rounded corners and ridges along it, crumbling at its far end (onychomycosis)."""
    x, y, _, _ = _grid()
    wide = rng.uniform(0.58, 0.72)
    plate: Field = 1 - ((np.abs(x) / wide) ** 4 + (np.abs(y) / 0.92) ** 4).astype(np.float32) ** 0.25
    body = _soft(plate, 0.06)
    fold = np.exp(-((plate / 0.07) ** 2))
    ridges = np.cos(2 * np.pi * x / rng.uniform(0.15, 0.2) + noise(rng, 3)).astype(np.float32)
    crumbs = noise(rng, 14)
    rot = _soft(y - rng.uniform(-0.1, 0.2) + 0.22 * noise(rng, 5), 0.1) * body
    gloss = np.exp(-(((x + 0.25 * wide) / 0.12) ** 2)) * (1 - rot) * body
    ink = np.maximum(fold, body * 0.15 + rot * np.clip(0.6 + 0.4 * crumbs, 0, 0.85))
    relief = body * (1 - rot) * (0.25 + 0.22 * ridges) + 0.35 * gloss - 0.4 * fold
    return _whole(np.clip(ink, 0, 1), np.clip(relief + 0.25 * rot * crumbs, -1, 1), plate)


def vessel_net(rng: np.random.Generator) -> Lesion:
    """Winding branching thin lines over a faint blush without an edge (rosacea)."""
    depth = _inside(rng, 0.15, (2, 5), 0.95)
    lines = _blank()
    for turn in rng.uniform(0, 2 * np.pi) + np.arange(5) * (2 * np.pi / 5):
        start = rng.uniform(0.6, 0.85) * np.array([np.cos(turn), np.sin(turn)])
        trunk = _walk(rng, start, turn + np.pi + rng.uniform(-0.5, 0.5), 1.5)
        _stroke(lines, trunk, rng.uniform(0.055, 0.08))
        for at in rng.integers(4, len(trunk) - 4, 2):
            branch = turn + np.pi + rng.choice([-1, 1]) * rng.uniform(0.6, 1.1)
            _stroke(lines, _walk(rng, trunk[at], branch, 0.6), 0.04)
    lines *= _soft(depth + 0.08, 0.1)
    return _whole(np.maximum(0.25 * _soft(depth, 0.6), lines), -0.25 * lines, depth)


def stuck_on_plaque(rng: np.random.Generator) -> Lesion:
    """A lobed plaque with a crisp edge, its own shadow, and many plugs (seborrheic keratosis)."""
    depth = _inside(rng, 0.16, (3, 9))
    body = _soft(depth, 0.04)
    shadow = np.roll(body, (6, 6), (0, 1)) * (1 - body)
    plugs = _blank()
    for point in _scatter(rng, int(rng.integers(14, 22)), 0.24, 0.75):
        _disc(plugs, point, rng.uniform(0.055, 0.085), 1.0 if rng.random() < 0.6 else -0.9)
    plugs *= body
    relief = np.clip(0.12 * body * noise(rng, 20) - 0.8 * plugs - 0.6 * shadow, -1, 1)
    return _whole(np.maximum(0.6 * body, np.abs(plugs)), relief, depth)


def ulcer(rng: np.random.Generator) -> Lesion:
    """A ragged crater: sloped light rim, dark granular base with slough, halo (stasis ulcer)."""
    depth = _inside(rng, 0.14, (2, 7), 0.95)
    wide = rng.uniform(0.2, 0.28)
    crater = _soft(depth - wide, 0.07)
    rim = _soft(depth, 0.07) * (1 - crater)
    slough = _soft(noise(rng, 6) - 0.5, 0.4) * crater
    halo = 0.45 * _soft(depth + 0.1, 0.4) * (1 - rim)
    ink = np.maximum(halo, crater * (0.85 + 0.15 * noise(rng, 26)))
    relief = rim * (0.75 - 0.5 * depth / wide) - 0.3 * crater + 0.8 * slough
    return _whole(np.clip(ink - 0.6 * slough, 0, 1), np.clip(relief, -1, 1), depth)


def ring(rng: np.random.Generator) -> Lesion:
    """A raised scaly ring around skin that has cleared (ringworm)."""
    depth = _inside(rng, 0.09, (2, 6), 0.95)
    band = np.exp(-(((depth - 0.14) / rng.uniform(0.1, 0.13)) ** 2))
    beads = np.clip(0.85 + 0.25 * noise(rng, 12), 0.4, 1)
    scale = np.exp(-(((depth - 0.26) / 0.05) ** 2)) * _soft(noise(rng, 18) - 0.1, 0.5)
    ink = np.maximum(band * beads, 0.1 * _soft(depth, 0.1))
    return _whole(ink, np.clip(0.6 * scale, -1, 1).astype(np.float32), depth)


def _walk(
    rng: np.random.Generator, start: NDArray[np.float64], heading: float, length: float
) -> NDArray[np.float64]:
    """Return a winding line of 16 points that sets out from `start` towards `heading`."""
    swing = rng.normal(0, 0.35, 15).cumsum()
    turns = heading + swing - np.linspace(0, 1, 15) * swing[-1] * 0.7
    steps = length / 15 * np.stack([np.cos(turns), np.sin(turns)], 1)
    return np.vstack([start, start + steps.cumsum(0)])


RECIPES: dict[str, Callable[[np.random.Generator], Lesion]] = {
    "Acne_Vulgaris": papules,
    "Actinic_solar_Damage_Actinic_Keratosis": flaky_patch,
    "Atopic_Dermatitis_Eczema": hatched_patch,
    "Basal_Cell_Carcinoma": pearly_nodule,
    "Compound_Nevus": two_tone_mole,
    "Onychomycosis": nail,
    "Rosacea": vessel_net,
    "Seborrheic_Keratosis": stuck_on_plaque,
    "Stasis_Ulcer": ulcer,
    "Tinea_Corporis": ring,
}
