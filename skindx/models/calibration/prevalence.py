"""Probabilities for another mix of diseases than that of the calibration images.

By Bayes' rule the probability of a class changes by the ratio of its shares in both mixes (Saerens,
Latinne and Decaestecker 2002, "Adjusting the outputs of a classifier to new a priori
probabilities", equation 4). It assumes that a disease looks the same in both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.untrusted import read_plain_yaml
from skindx.taxonomy import Taxonomy

_SUM_SLACK = 0.005
"""Shares with few digits do not add up to 1 exactly."""

# N = images, C = classes


@dataclass(frozen=True)
class Prevalence:
    """The mix of diseases that an operator sees, beside that of the calibration images."""

    shares_C: tuple[float, ...]
    """In the order of the taxonomy; they sum to 1."""
    calibration_C: tuple[float, ...]
    """The same of the calibration images."""

    @classmethod
    def of(cls, given: Mapping[str, float], counts: Mapping[str, int] | None) -> Self:
        """Take a share of each class, and the number of its calibration images.

        A class counts as one image more than there was: none is impossible because none was there.
        Raises UserError for a bundle that does not say how many there were.
        """
        if counts is None:
            raise UserError(
                "the bundle does not say how many calibration images each class had, so its "
                "probabilities cannot be corrected for another prevalence; pack it again with this "
                "version, or leave out --prevalence."
            )
        shares_C = np.array([given[key] for key in counts], np.float64)
        counts_C = np.array([*counts.values()], np.float64) + 1
        return cls(tuple(shares_C / shares_C.sum()), tuple(counts_C / counts_C.sum()))

    def correct(self, probabilities_NC: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probabilities for the operator's mix; rows sum to 1."""
        weighed_NC = probabilities_NC * (np.array(self.shares_C) / np.array(self.calibration_C))
        corrected_NC: NDArray[np.float64] = weighed_NC / weighed_NC.sum(axis=-1, keepdims=True)
        return corrected_NC


def read_prevalence(path: Path, taxonomy: Taxonomy) -> dict[str, float]:
    """Return the share of each class, by its key in the order of the taxonomy.

    The file is YAML or JSON with a line `class: share` for each class, by its key, name or a
    synonym. Raises UserError for what is no such file, and for shares that are none.
    """
    given: dict[str, float] = {}
    for label, value in read_plain_yaml(path).items():
        skin_class = taxonomy.find(str(label))
        if skin_class is None:
            raise UserError(
                f"{path}: {str(label)[:60]!r} is no class of this bundle; its classes are "
                f"{', '.join(taxonomy.keys[:20])}{' …' if len(taxonomy.keys) > 20 else ''}."
            )
        if skin_class.key in given:
            raise UserError(f"{path} names {skin_class.key} twice; keep one of the two lines.")
        given[skin_class.key] = _share(path, skin_class.key, value)
    missing = [key for key in taxonomy.keys if key not in given]
    if missing:
        raise UserError(
            f"{path} has no share of {', '.join(missing[:10])}{' …' if len(missing) > 10 else ''}; "
            "give one for each class."
        )
    total = math.fsum(given.values())
    if abs(total - 1) > _SUM_SLACK:
        raise UserError(
            f"{path}: the shares sum to {total:.4g}, not to 1; give the share of each class among "
            "all photos that are seen, such as 0.02 for 2 %."
        )
    return {key: given[key] for key in taxonomy.keys}


def _share(path: Path, key: str, value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= 1:
        raise UserError(
            f"{path}: the share of {key} is {str(value)[:40]!r}; give a number above 0 and at most "
            "1, a small one for a class that is rare, since none is impossible."
        )
    return float(value)
