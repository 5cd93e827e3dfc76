"""Inputs of out-of-distribution detectors: one pass of each image through the networks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from skindx.core.settings_base import Settings
from skindx.models.classifier.preprocess import Preprocess, framed_square

# N = images, M = members, D = dimensions of one member's pooled features, E = of all members',
# C = classes, F = image statistics, S = side, B = band

Singles = NDArray[np.float32]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Features:
    """Features of N images."""

    pooled_MND: tuple[Singles, ...]
    """Each member's input of its last layer, as it is (D differs between members)."""
    logits_MNC: tuple[Singles, ...]
    """Each member's logits, without a temperature."""
    image_NF: Singles
    """Statistics of the image itself, see `image_statistics`."""

    def __len__(self) -> int:
        return len(self.image_NF)

    @property
    def embeddings(self) -> Singles:
        """Return the members' pooled features, each of length 1, side by side, of length 1."""
        parts = [pooled / _lengths(pooled) for pooled in self.pooled_MND]
        joined_ND: Singles = np.concatenate(parts, axis=1) / np.sqrt(len(parts))
        return joined_ND.astype(np.float32)

    def select(self, rows: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Self:
        return type(self)(
            tuple(part[rows] for part in self.pooled_MND),
            tuple(part[rows] for part in self.logits_MNC),
            self.image_NF[rows],
        )

    @classmethod
    def join(cls, parts: Sequence["Features"]) -> Self:
        """Return the features of all images of the parts, in their order; at least one part."""
        return cls(
            _joined([part.pooled_MND for part in parts]),
            _joined([part.logits_MNC for part in parts]),
            np.concatenate([part.image_NF for part in parts]),
        )


SKETCH, _SEED = 8, 19
"""Random projections of the embedding (Johnson and Lindenstrauss 1984): they show that photos
differ, and no photo can be made from so few numbers."""


def sketch(embeddings_ND: Singles) -> Singles:
    """Return N x SKETCH random projections."""
    random = np.random.default_rng(_SEED)
    projection_DS = random.standard_normal((embeddings_ND.shape[1], SKETCH))
    return (embeddings_ND @ projection_DS).astype(np.float32)


def _joined(parts: Sequence[tuple[Singles, ...]]) -> tuple[Singles, ...]:
    return tuple(np.concatenate(same) for same in zip(*parts, strict=True))


def _lengths(pooled_ND: Singles) -> Singles:
    lengths: Singles = np.linalg.norm(pooled_ND, axis=1, keepdims=True)
    return np.maximum(lengths, np.float32(1e-12))


@dataclass(frozen=True)
class TrainingFeatures:
    """Features on which a detector is fitted: of training images only."""

    features: Features
    labels_N: NDArray[np.str_]
    weights_MCD: tuple[Singles, ...]
    """Each member's last layer."""
    biases_MC: tuple[Singles, ...]


Need = Literal["pooled", "logits", "image"]


@dataclass(frozen=True)
class OodDetector(ABC):
    """A fitted detector; its fields are arrays, numbers, or tuples of arrays (one a member)."""

    needs: ClassVar[frozenset[Need]]
    """The parts of `Features` that `scores` reads."""

    @classmethod
    @abstractmethod
    def fit(cls, settings: Any, learned: TrainingFeatures) -> Self | None:
        """Fit on training images; None where they are too few or do not differ."""

    @abstractmethod
    def scores(self, features: Features) -> Floats:
        """Return N scores, higher for images that are less like the training images."""

    def tensors(self) -> dict[str, Any]:
        """Return the fields as arrays by name; the parts of a tuple as NAME.0, NAME.1, ..."""
        tensors: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                tensors |= {f"{field.name}.{n}": part for n, part in enumerate(value)}
            else:
                tensors[field.name] = np.asarray(value)
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> Self:
        """Return the detector that `tensors` was called on. Raises KeyError for a missing one."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            if field.name in tensors:
                array = tensors[field.name]
                values[field.name] = array if array.ndim else array.item()
            else:
                parts: list[Any] = []
                while f"{field.name}.{len(parts)}" in tensors:
                    parts.append(tensors[f"{field.name}.{len(parts)}"])
                if not parts:
                    raise KeyError(field.name)
                values[field.name] = tuple(parts)
        return cls(**values)


class OodDetectorSettings(Settings):
    """Base of a detector's settings: `kind` names it, `detector` is what they fit."""

    kind: str
    detector: ClassVar[type[OodDetector]]


SIDE = 128
"""Side in pixels to which each photo is reduced, so that bands mean the same in all photos."""
LEVELS = 4

_VIEW = Preprocess(size=SIDE)
_OPPONENT = np.array([[1, 1, 1], [1, -1, 0], [0.5, 0.5, -1]], dtype=np.float32).T / np.float32(3)
"""Brightness, red against green, yellow against blue."""


def image_statistics(photos: Sequence[NDArray[np.uint8]], *, whole: bool = False) -> Singles:
    """Return F statistics of each decoded photo (H x W x 3 RGB uint8), N x F; at least one.

    They are of its central square, or of the `whole` photo, which is squeezed: bars beside it would
    tell its aspect alone.

    Colour, and contrast in bands of detail: another camera, lens, lamp or software changes these,
    which deep features are trained to ignore. The bands follow the statistics of natural scenes by
    which image quality is judged without a reference (Mittal et al. 2013, NIQE): here of Haar
    wavelets (Mallat 1989). They need the pixels alone, so every runtime delivers them.
    """
    if not whole:
        return np.stack([_statistics(framed_square(photo, _VIEW)) for photo in photos])
    import cv2

    squeezed = [cv2.resize(photo, (SIDE, SIDE), interpolation=cv2.INTER_AREA) for photo in photos]
    return np.stack([_statistics(square_SS3.astype(np.uint8)) for square_SS3 in squeezed])


def _statistics(square_SS3: NDArray[np.uint8]) -> Singles:
    values: list[float] = []
    opponent_SS3 = np.sqrt(square_SS3.astype(np.float32) / 255) @ _OPPONENT
    for channel in range(3):
        plane_SS = np.ascontiguousarray(opponent_SS3[..., channel])
        values += [float(plane_SS.mean()), _log(float(plane_SS.std()))]
        for _ in range(LEVELS):
            plane_SS, *bands = _haar(plane_SS)
            for band in bands:
                size = float(np.abs(band).mean())
                # Heavier tails than a Gaussian's: hairs and edges; lighter: noise and blur.
                shape = float(np.sqrt((band**2).mean())) / (size + 1e-4)
                values += [_log(size), _log(shape)]
    return np.array(values, dtype=np.float32)


def _log(value: float) -> float:
    # The offset is below what 8 bits can show: a flat image is far off, but not infinitely.
    return float(np.log(value + 1e-4))


def _haar(plane_SS: Any) -> tuple[Any, Any, Any, Any]:
    """Return the halved plane, and differences across, down and crosswise."""
    a, b = plane_SS[0::2, 0::2], plane_SS[0::2, 1::2]
    c, d = plane_SS[1::2, 0::2], plane_SS[1::2, 1::2]
    return (a + b + c + d) / 4, (a - b + c - d) / 4, (a + b - c - d) / 4, (a - b - c + d) / 4
