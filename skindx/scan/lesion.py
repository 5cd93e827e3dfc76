"""A lesion that a scan found, and the photo it stands on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.data.box import Box


@dataclass(frozen=True)
class Lesion:
    """One lesion on a photo of a body, and what the bundle's ensemble says of its crop."""

    box: Box
    """In pixels of the upright photo; its score is the detector's confidence."""
    probabilities_C: NDArray[np.float64]
    """Calibrated, in the order of the bundle's taxonomy."""
    urgent_risk: float | None
    """Probability of all urgent classes together, 0..1; None: the bundle has no urgent class."""
    urgent: bool | None
    """Whether the risk reaches the bundle's controlled threshold; None: the bundle has none."""
    possible: tuple[str, ...]
    """Keys of the classes in the conformal set; empty where the bundle has no such sets."""
    ood_p_value: float | None
    """Of the out-of-distribution check, 0..1, small for an unusual crop; None: no check."""
    embedding_D: NDArray[np.float32]
    """Unit length; of the ensemble's networks, as in the index of similar images."""
    colour_lab: tuple[float, float, float]
    """Median CIELAB colour inside the box minus that of the skin around it."""


@dataclass(frozen=True)
class ScannedPhoto:
    """Result of a scan of one photo."""

    name: str
    sha256: str
    """Of the file's bytes."""
    width: int
    height: int
    """Pixels of the upright photo."""
    tiles: int
    tiles_without_skin: int
    """How many of `tiles` were skipped because they show no skin."""
    failed_tiles: int
    """How many of `tiles` were set aside because they killed their workers."""
    lesions: tuple[Lesion, ...]
    """In no particular order; ranking is a step of its own."""
    mm_per_pixel: float | None = None
    """Given by the user or confirmed from a ruler; None: sizes are in pixels."""
