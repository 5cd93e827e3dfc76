"""Lesions that a scan detected: their files, how much they differ, and their rank.

The sign of the ugly duckling (Grob and Bonerandi 1998, "The 'ugly duckling' sign: identification of
the common characteristics of nevi in an individual as a basis for melanoma screening") compares a
lesion in appearance (its embedding), size and colour with the medians of the person's lesions. A
difference is measured in spreads (1.4826 times the median absolute deviation, the standard
deviation of normal values). The medians of few lesions say little of their spread: as many as
`_PRIOR_LESIONS` typical ones are averaged in.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.private_files import private_file
from skindx.data.box import Box
from skindx.imaging.cut_lesions import Cut
from skindx.imaging.photo_gates import skin_mask
from skindx.models.ood.ood_check import p_values_of
from skindx.models.urgent_risk import urgent_risks
from skindx.scan.pixel_store import Floats, Pixels, PixelStore

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor


@dataclass(frozen=True)
class ScannedLesion:
    """One lesion on a photo of a body, and what the bundle's ensemble says of its crop."""

    box: Box
    """Box in pixels of the upright photo; its score is the detector's confidence."""
    probabilities_C: Floats
    """Calibrated probability of each class, in the order of the bundle's taxonomy."""
    urgent_risk: float | None
    """Probability of all urgent classes together, 0..1; None: the bundle has no urgent class."""
    urgent: bool | None
    """Whether the risk reaches the bundle's controlled threshold; None: the bundle has none."""
    possible: tuple[str, ...]
    """Keys of the classes in the conformal set; empty where the bundle has no such sets."""
    ood_p_value: float | None
    """P-value of the out-of-distribution check, 0..1, small for an unusual crop; None: no check."""
    embedding_D: NDArray[np.float32]
    """Embedding of unit length by the ensemble's networks, as in the index of similar images."""
    colour_lab: tuple[float, float, float]
    """Median CIELAB colour inside the box minus that of the skin around it."""


AT_EDGE = 0.05
"""Share of a box's longer side within which it lies at the photo's edge: its crop is moved in, and
networks that see the central square of it do not see so much of the lesion."""


def cut_by(box: tuple[float, float, float, float], width: int, height: int) -> Cut:
    """Return what cuts off a lesion; its crop holds all of it except where the photo ends."""
    x1, y1, x2, y2 = box
    near, ends = AT_EDGE * max(x2 - x1, y2 - y1), min(x1, y1, width - x2, height - y2)
    return "edge" if ends <= near else ""


@dataclass(frozen=True)
class ScannedPhoto:
    """Result of a scan of one photo."""

    name: str
    sha256: str
    """SHA-256 of the file's bytes."""
    width: int
    height: int
    """Pixels of the upright photo."""
    tiles: int
    tiles_without_skin: int
    """How many of `tiles` were skipped because they show no skin."""
    failed_tiles: int
    """How many of `tiles` were set aside because they killed their workers."""
    lesions: tuple[ScannedLesion, ...]
    """Lesions in no particular order; ranking is a separate step."""
    mm_per_pixel: float | None = None
    """Scale given by the user or confirmed from a ruler; None: sizes are in pixels."""

    @property
    def facts(self) -> dict[str, Any]:
        """What files of results say of it."""
        names = ("name", "sha256", "width", "height", "tiles", "tiles_without_skin", "failed_tiles")
        return {name: getattr(self, name) for name in names}


def write_lesions(path: Path, lesions: Sequence[ScannedLesion]) -> None:
    """Write at least one lesion, whole or not at all; the same again changes nothing."""
    arrays: dict[str, Any] = {
        "boxes": np.array([[b.x1, b.y1, b.x2, b.y2, b.score or 0.0] for b in _boxes(lesions)]),
        "labels": np.array([box.label for box in _boxes(lesions)]),
        "probabilities": np.stack([lesion.probabilities_C for lesion in lesions]),
        "risks": np.array(
            [np.nan if x.urgent_risk is None else x.urgent_risk for x in lesions], np.float64
        ),
        "urgent": np.array([-1 if x.urgent is None else int(x.urgent) for x in lesions]),
        "possible": np.array(["\n".join(lesion.possible) for lesion in lesions]),
        "ood": np.array(
            [np.nan if x.ood_p_value is None else x.ood_p_value for x in lesions], np.float64
        ),
        "embeddings": np.stack([lesion.embedding_D for lesion in lesions]),
        "colours": np.array([lesion.colour_lab for lesion in lesions]),
    }
    with private_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_lesions(path: Path) -> list[ScannedLesion]:
    with np.load(path, allow_pickle=False) as file:
        a = {name: file[name] for name in file.files}
    return [_lesion({name: array[n] for name, array in a.items()}) for n in range(len(a["boxes"]))]


def _lesion(row: dict[str, Any]) -> ScannedLesion:
    x1, y1, x2, y2, score = (float(value) for value in row["boxes"])
    lightness, red, yellow = (float(value) for value in row["colours"])
    return ScannedLesion(
        box=Box(x1, y1, x2, y2, str(row["labels"]), "detector", score),
        probabilities_C=row["probabilities"],
        urgent_risk=None if np.isnan(row["risks"]) else float(row["risks"]),
        urgent=None if row["urgent"] < 0 else bool(row["urgent"]),
        possible=tuple(str(row["possible"]).split("\n")) if row["possible"] else (),
        ood_p_value=None if np.isnan(row["ood"]) else float(row["ood"]),
        embedding_D=row["embeddings"],
        colour_lab=(lightness, red, yellow),
    )


def _boxes(lesions: Sequence[ScannedLesion]) -> list[Box]:
    return [lesion.box for lesion in lesions]


# N = lesions of one person, D = features of the embedding, 3 = L, a, b

LEAST_LESIONS = 5
"""Fewest lesions of a person that allow a comparison among them."""
_PRIOR_LESIONS = 5
_SPREAD = 1.4826
_TYPICAL_SIZE, _TYPICAL_COLOUR, _TYPICAL_APPEARANCE = 0.3, 3.0, 0.3
"""Spreads of a person's lesions: of the logarithm of the size, of L, a and b, and of the distance
between embeddings as a share of its median."""
_LEAST_SHARE = 0.1
"""Least spread, as a share of the typical one."""
STANDS_OUT = 3.0
"""Difference from which a page marks the lesion."""


@dataclass(frozen=True)
class LesionDifference:
    """How far a lesion is from the person's other ones, in spreads; 0 is the middle."""

    appearance: float
    size: float
    """Difference in size; negative: smaller than the others."""
    colour: float
    compared_with: int
    """How many lesions it was compared with."""

    @property
    def score(self) -> float:
        """Root mean square of all three; above 3 the lesion stands out."""
        return float(np.sqrt((self.appearance**2 + self.size**2 + self.colour**2) / 3))

    @property
    def stands_out(self) -> bool:
        return self.score >= STANDS_OUT

    @property
    def mostly(self) -> str:
        """The largest difference: appearance, size or colour."""
        parts = {"appearance": self.appearance, "size": abs(self.size), "colour": self.colour}
        return max(parts, key=lambda name: parts[name])


def differences(
    lesions: Sequence[ScannedLesion], sizes_N: Floats
) -> tuple[LesionDifference | None, ...]:
    """Compare the lesions of one person; None for all of fewer than `LEAST_LESIONS`.

    `sizes_N` are diameters in any one unit.
    """
    if len(lesions) < LEAST_LESIONS:
        return (None,) * len(lesions)
    size_N = _size(sizes_N)
    colour_N = _colour(np.array([lesion.colour_lab for lesion in lesions], np.float64))
    appearance_N = _appearance(np.array([lesion.embedding_D for lesion in lesions], np.float64))
    return tuple(
        LesionDifference(float(appearance), float(size), float(colour), len(lesions) - 1)
        for appearance, size, colour in zip(appearance_N, size_N, colour_N, strict=True)
    )


def _size(sizes_N: Floats) -> Floats:
    """Lesions differ by factors, so logarithms are compared."""
    return _from_middle(np.log(sizes_N), _TYPICAL_SIZE)


def _colour(lab_N3: Floats) -> Floats:
    parts_N3 = np.stack([_from_middle(lab_N3[:, k], _TYPICAL_COLOUR) for k in range(3)], axis=1)
    colour_N: Floats = np.sqrt((parts_N3**2).mean(axis=1))
    return colour_N


def _appearance(embedding_ND: Floats) -> Floats:
    """Compare each lesion's median distance to the others; nearer than usual counts as 0."""
    lesions = len(embedding_ND)
    length_N1 = np.linalg.norm(embedding_ND, axis=1, keepdims=True)
    unit_ND = embedding_ND / np.where(length_N1 > 0, length_N1, 1)
    apart_NN = np.sqrt(np.clip(2 - 2 * unit_ND @ unit_ND.T, 0, 4))
    to_rest_NM = apart_NN[~np.eye(lesions, dtype=bool)].reshape(lesions, lesions - 1)
    distance_N = np.median(to_rest_NM, axis=1)
    typical = _TYPICAL_APPEARANCE * float(np.median(distance_N))
    if typical <= 1e-4:  # all lesions look the same to the networks, but for rounding
        typical = _TYPICAL_APPEARANCE
    return np.maximum(_from_middle(distance_N, typical), 0)


def _from_middle(values_N: Floats, typical: float) -> Floats:
    """Return distances from the median in spreads; the fewer values, the more typical a spread."""
    off_N = values_N - np.median(values_N)
    spread = _SPREAD * float(np.median(np.abs(off_N)))
    n = len(values_N)
    variance = (n * spread**2 + _PRIOR_LESIONS * typical**2) / (n + _PRIOR_LESIONS)
    spreads_N: Floats = off_N / max(np.sqrt(variance), _LEAST_SHARE * typical)
    return spreads_N


# N = lesions of all photos


@dataclass(frozen=True)
class RankedLesion:
    """A lesion with its place among all lesions of a person."""

    rank: int
    """Place in the ranking, from 1: the lesion to look at first."""
    photo: int
    """Number of its photo, from 0."""
    lesion: ScannedLesion
    difference: LesionDifference | None
    """Difference from the person's other lesions; None: there are too few of them."""
    diameter_mm: float | None
    """Diameter in millimetres; None: the photo has no scale."""

    @property
    def diameter_px(self) -> float:
        """Geometric mean of the box's sides, in pixels of the upright photo."""
        return diameter(self.lesion)


def rank(photos: Sequence[ScannedPhoto]) -> tuple[RankedLesion, ...]:
    """Rank the lesions on all photos of one person.

    First come lesions whose risk reaches the bundle's controlled threshold, then higher risks.
    Risks that read the same in whole per cent count as equal: among them a lesion comes first that
    differs more from the person's others, and then one of which the detector is more certain.
    The order of `photos` decides no rank but between lesions that are equal in all of it.
    """
    # The order is fixed, since a sum of floats depends on the order of its parts.
    placed = sorted(
        ((place, lesion) for place, photo in enumerate(photos) for lesion in photo.lesions),
        key=lambda item: (photos[item[0]].sha256, *_canonical(item[1]), item[0]),
    )
    lesions = [lesion for _, lesion in placed]
    compared = differences(lesions, _comparable_sizes(photos, placed))
    scored = list(zip(placed, compared, strict=True))
    scored.sort(key=lambda item: _urgency(item[0][1], item[1]))
    ranked = []
    for number, ((place, lesion), difference) in enumerate(scored, 1):
        scale = photos[place].mm_per_pixel
        millimetres = None if scale is None else diameter(lesion) * scale
        ranked.append(RankedLesion(number, place, lesion, difference, millimetres))
    return tuple(ranked)


def diameter(lesion: ScannedLesion) -> float:
    """Return the geometric mean of the box's sides, in pixels of the upright photo."""
    return math.sqrt((lesion.box.x2 - lesion.box.x1) * (lesion.box.y2 - lesion.box.y1))


def shown_percent(risk: float | None) -> int:
    """Return the risk as a page shows it: 0 stands for none and "< 1 %", 100 for "> 99 %"."""
    if risk is None:
        return 0
    if risk > 0.99:
        return 100
    return 0 if risk < 0.01 else round(100 * risk)


def _urgency(lesion: ScannedLesion, difference: LesionDifference | None) -> tuple[float, ...]:
    score = round(difference.score, 6) if difference else 0.0
    return (
        0 if lesion.urgent else 1,
        -shown_percent(lesion.urgent_risk),
        -score,
        -(lesion.box.score or 0.0),
        -round(lesion.urgent_risk or 0.0, 9),
    )


def _canonical(lesion: ScannedLesion) -> tuple[float, ...]:
    box = lesion.box
    return (box.y1, box.x1, box.y2, box.x2, lesion.urgent_risk or 0.0, *lesion.colour_lab)


def _comparable_sizes(
    photos: Sequence[ScannedPhoto], placed: Sequence[tuple[int, ScannedLesion]]
) -> Floats:
    """Return diameters of one unit: millimetres, or shares of their photo's median.

    Photos without a scale may have been taken from different distances.
    """
    sizes_N = np.array([diameter(lesion) for _, lesion in placed], np.float64)
    for place in {place for place, _ in placed}:
        of_photo_N = np.array([other == place for other, _ in placed])
        scale = photos[place].mm_per_pixel
        if scale is not None and all(photo.mm_per_pixel is not None for photo in photos):
            sizes_N[of_photo_N] *= scale
        else:
            sizes_N[of_photo_N] /= np.median(sizes_N[of_photo_N])
    return sizes_N


LEAST_SIDE = 32
"""Least pixels of a crop's side: around a smaller lesion more skin is shown."""
_RING = 1.15
"""Multiple of a lesion's box beyond which the skin around it begins."""


def lesion_crop(store: PixelStore, box: Box, margin: float, needed: int) -> tuple[Pixels, Box]:
    """Return a square around a box, S x S x 3, and the box in pixels of the square.

    Its side is `margin` times the box's longer side. It comes at the coarsest scale that has
    `needed` pixels, is moved in where it would stand out, and is never wider than the photo.
    """
    width, height = store.size()
    side = max(margin * max(box.x2 - box.x1, box.y2 - box.y1), LEAST_SIDE)
    side = min(side, width, height)
    level = 0
    while level + 1 < len(store.sizes) and side / (2 << level) >= needed:
        level += 1
    factor, dx, dy = store.to_full(level)
    small_width, small_height = store.size(level)
    pixels = max(1, min(round(side / factor), small_width, small_height))
    left = round((((box.x1 + box.x2) / 2 - dx) / factor) - pixels / 2)
    top = round((((box.y1 + box.y2) / 2 - dy) / factor) - pixels / 2)
    left, top = min(max(left, 0), small_width - pixels), min(max(top, 0), small_height - pixels)
    crop_SS3 = store.read(level, left, top, pixels, pixels)
    x1, x2 = ((x - dx) / factor - left for x in (box.x1, box.x2))
    y1, y2 = ((y - dy) / factor - top for y in (box.y1, box.y2))
    return crop_SS3, Box(x1, y1, x2, y2, box.label, box.drawn_by, box.score)


def colour_difference(crop_SS3: Pixels, box: Box) -> tuple[float, float, float]:
    """Return the median CIELAB colour inside a box minus that of the skin around it.

    Inside is the ellipse in the box; around is the rest of the crop that has a colour of skin, or
    all of it where nothing has. Zero where the box fills the crop.
    """
    import cv2

    rows_S1, columns_1S = np.mgrid[: len(crop_SS3), : crop_SS3.shape[1]] + 0.5
    x, y = (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2
    radius_x, radius_y = (box.x2 - box.x1) / 2, (box.y2 - box.y1) / 2
    across, down = np.abs(columns_1S - x) / radius_x, np.abs(rows_S1 - y) / radius_y
    inside_SS = across**2 + down**2 <= 1
    around_SS = np.maximum(across, down) > _RING
    skin_SS = around_SS & skin_mask(crop_SS3)
    ring_SS = skin_SS if skin_SS.any() else around_SS
    if not (inside_SS.any() and ring_SS.any()):
        return 0.0, 0.0, 0.0
    lab_SS3 = cv2.cvtColor(crop_SS3.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    difference = np.median(lab_SS3[inside_SS], axis=0) - np.median(lab_SS3[ring_SS], axis=0)
    lightness, red, yellow = (float(part) for part in difference)
    return lightness, red, yellow


def diagnose_lesions(
    predictor: "Predictor", store: PixelStore, boxes: Sequence[Box], margin: float
) -> list[ScannedLesion]:
    """Return what the ensemble says of each lesion; at least one.

    The detector has looked already, so thresholds are those that were fitted for whole images
    alone. Raises UserError for a bundle that gives no probabilities.
    """
    alone = replace(predictor, detector=None)
    needed = max(member.preprocess.margin_size for member in predictor.ensemble.members)
    cut = [lesion_crop(store, box, margin, needed) for box in boxes]
    crops = [crop_SS3 for crop_SS3, _ in cut]
    output = predictor.ensemble.predict_with_features(crops)
    probabilities_NC = output.probabilities_NC
    if not np.isfinite(probabilities_NC).all():
        raise UserError(
            f"bundle {predictor.bundle.path} gives invalid probabilities, so its weights are "
            "damaged; restore the bundle from a backup, or train it again."
        )
    ood = predictor.ood
    p_values_N = p_values_of(ood, predictor.ensemble, crops, output) if ood else None
    sets_NC = alone.conformal.sets(probabilities_NC) if alone.conformal else None
    rule = alone.urgent_risk
    threshold = rule.thresholds(rule.level(alone.miss_rate), [None])[0] if rule else None
    urgent_columns = _urgent_columns(predictor)
    risks_N = urgent_risks(probabilities_NC, urgent_columns)
    keys = predictor.taxonomy.keys
    return [
        ScannedLesion(
            box=box,
            probabilities_C=probabilities_NC[n],
            urgent_risk=float(risks_N[n]) if urgent_columns else None,
            urgent=bool(risks_N[n] >= threshold) if threshold is not None else None,
            possible=tuple(keys[c] for c in np.flatnonzero(sets_NC[n]))
            if sets_NC is not None
            else (),
            ood_p_value=float(p_values_N[n]) if p_values_N is not None else None,
            embedding_D=output.embeddings_ND[n],
            colour_lab=colour_difference(*cut[n]),
        )
        for n, box in enumerate(boxes)
    ]


def _urgent_columns(predictor: "Predictor") -> list[int]:
    """Return which classes are urgent: by the fitted rule where there is one."""
    rule = predictor.urgent_risk
    if rule:
        return list(rule.urgent_columns)
    classes = predictor.taxonomy.classes
    return [n for n, skin_class in enumerate(classes) if skin_class.urgency == "urgent"]
