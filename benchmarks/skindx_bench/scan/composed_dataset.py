"""Composed photos as a dataset that `skindx train` reads, and augmented lesions and skin.

Blending takes the colour of the skin around a lesion, so what varies is the lesion's difference
from its skin: its strength, its hue and its outline. Skin varies in tone and in the size and the
strength of its texture.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.data.box import Box
from skindx.data.layout import TAXONOMY, store_bytes
from skindx.data.manifest import Record, Split, write_issues, write_manifest
from skindx.taxonomy import Taxonomy
from skindx_bench.scan.material import CutOut, Material

# H, W = image


def split_of(draw: float, below: Iterable[tuple[Split, float]]) -> Split:
    """Return the split of a draw in 0..1: the first whose bound lies above it, or test."""
    return next((name for name, bound in below if draw < bound), "test")


def composed_record(
    out: Path,
    image_HW3: NDArray[np.uint8],
    suffix: str,
    *,
    label: str,
    group: str,
    split: Split,
    boxes: tuple[Box, ...] | None = None,
    quality: int = 95,
) -> Record:
    """Store an image and return its line of the manifest; `quality` is a JPEG's."""
    flags = [cv2.IMWRITE_JPEG_QUALITY, quality] if suffix == ".jpg" else []
    image = cv2.cvtColor(image_HW3, cv2.COLOR_RGB2BGR)
    sha256, path = store_bytes(out, cv2.imencode(suffix, image, flags)[1].tobytes(), suffix)
    return Record(
        *(path, sha256, sha256[:16]),
        *(image_HW3.shape[1], image_HW3.shape[0]),
        label=label,
        group=group,
        split=split,
        boxes=boxes,
        source="composed",
    )


def write_dataset(out: Path, made: Iterable[Record], taxonomy: Taxonomy) -> list[Record]:
    """Write manifest, issues and taxonomy; return the records, equal images once."""
    unique = {record.sha256: record for record in made}
    records = sorted(unique.values(), key=lambda record: (record.label, record.sha256))
    write_manifest(out, records)
    write_issues(out, [])
    taxonomy.save(out / TAXONOMY)
    return records


# H, W = cut-out; S = side of a patch of skin

_STRENGTH = (0.6, 1.3)
"""Factors on a lesion's difference from its skin, in CIELAB."""
_HUE = 20.0
"""Most turn of that difference between red and yellow, in degrees."""
_STRETCH = (0.75, 1.33)
"""Factors on a cut-out's height."""
_TONE = (10.0, 5.0, 6.0)
"""Deviations of L*, a* and b* that a patch of skin moves by."""
_TEXTURE = (0.6, 1.6)
"""Factors on the texture of a patch of skin."""
_ZOOM = 1.5
"""Most magnification of a patch of skin."""


def varied(material: Material, lesions: int, skins: int, rng: np.random.Generator) -> Material:
    """Return at most so many lesions and patches of skin of a material, each varied."""
    chosen = rng.permutation(len(material.lesions))[:lesions]
    patches = rng.permutation(len(material.skins))[:skins]
    return Material(
        tuple(varied_lesion(material.lesions[number], rng) for number in chosen),
        tuple(varied_skin(material.skins[number], rng) for number in patches),
    )


def varied_lesion(cut: CutOut, rng: np.random.Generator) -> CutOut:
    """Return a cut-out mirrored or not, stretched, with a stronger, weaker or turned colour."""
    pixels_HW3, (x1, y1, x2, y2) = cut.pixels_HW3, cut.box
    height, width = pixels_HW3.shape[:2]
    if rng.random() < 0.5:
        pixels_HW3, x1, x2 = pixels_HW3[:, ::-1], width - x2, width - x1
    high = max(1, round(height * math.exp(rng.uniform(*np.log(_STRETCH)))))
    pixels_HW3 = cv2.resize(np.ascontiguousarray(pixels_HW3), (width, high))
    box = (x1, y1 * high / height, x2, y2 * high / height)
    lab_HW3 = _lab(pixels_HW3)
    around_HW = np.ones((high, width), bool)
    around_HW[round(box[1]) : round(box[3]), round(x1) : round(x2)] = False
    if around_HW.any():
        skin_3 = np.median(lab_HW3[around_HW], axis=0)
        turn = math.radians(rng.uniform(-_HUE, _HUE))
        cos, sin = math.cos(turn), math.sin(turn)
        change_33 = np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]], np.float32)
        change_33 *= rng.uniform(*_STRENGTH, (3, 1)).astype(np.float32)
        lab_HW3 = (skin_3 + (lab_HW3 - skin_3) @ change_33.T).astype(np.float32)
    return replace(cut, pixels_HW3=_rgb(lab_HW3), box=box)


def varied_skin(skin_SS3: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a patch of the same side: a part of it, magnified, of another tone and texture."""
    side = len(skin_SS3)
    part = round(side / rng.uniform(1, _ZOOM))
    top, left = rng.integers(side - part + 1, size=2)
    part_PP3 = np.ascontiguousarray(skin_SS3[top : top + part, left : left + part])
    lab_SS3 = _lab(cv2.resize(part_PP3, (side, side), interpolation=cv2.INTER_CUBIC))
    mean_3 = lab_SS3.mean(axis=(0, 1))
    lab_SS3 = (lab_SS3 - mean_3) * np.float32(rng.uniform(*_TEXTURE)) + mean_3
    return _rgb(lab_SS3 + rng.normal(0, _TONE).astype(np.float32))


def _lab(pixels_HW3: NDArray[np.uint8]) -> NDArray[np.float32]:
    lab_HW3: NDArray[np.float32] = cv2.cvtColor(
        pixels_HW3.astype(np.float32) / 255, cv2.COLOR_RGB2LAB
    )
    return lab_HW3


def _rgb(lab_HW3: NDArray[np.float32]) -> NDArray[np.uint8]:
    rgb_HW3 = cv2.cvtColor(lab_HW3.astype(np.float32), cv2.COLOR_LAB2RGB) * 255
    pixels_HW3: NDArray[np.uint8] = np.clip(rgb_HW3.round(), 0, 255).astype(np.uint8)
    return pixels_HW3
