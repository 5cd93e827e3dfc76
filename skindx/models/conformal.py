"""Conformal sets: the classes that an image may show, with a guaranteed coverage.

The thresholds are fitted on calibration images, which nothing else looked at.
"""

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from skindx.core.settings_base import Settings
from skindx.data.manifest import Record
from skindx.metrics import proportion_interval, share_interval
from skindx.taxonomy import Taxonomy

LEVEL = 0.9
URGENT_LEVEL = 0.95
ALL = "all"

# N = images, C = classes


def skin_type_group(skin_type: int) -> str:
    """Name the group of images of a Fitzpatrick type."""
    return f"skin type {skin_type}"


class Share(Settings):
    """A measured share with its 95 % interval."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    value: float = Field(ge=0, le=1)
    low: float = Field(ge=0, le=1)
    high: float = Field(ge=0, le=1)
    pictures: int = Field(ge=1)
    """The number of images that were counted."""

    @property
    def rest(self) -> Self:
        """The share of the other images among the same ones."""
        ends = {"low": 1 - self.high, "high": 1 - self.low}
        return self.model_copy(update={"value": 1 - self.value, **ends})

    def with_width(self) -> Self:
        """Return the share with the exact interval where its own has no width.

        Older versions wrote such an interval at 0 or 1.
        """
        if self.high > self.low:
            return self
        exact = proportion_interval(self.value, self.pictures)
        return self.model_copy(update={"low": exact.low, "high": exact.high})


class Conformal(Settings):
    """Split-conformal sets by the least ambiguous rule (LAC; Sadinle, Lei and Wasserman 2019).

    A set holds every class of at least the threshold's probability, and always the likeliest one.
    Of all rules with the same coverage this one gives the smallest sets on average; it is
    not randomised, so an image has the same set each time.
    The thresholds are Mondrian (Vovk et al. 2005, section 4.5): urgent classes have their own, so
    that the promise holds for their images by themselves, and so have skin types of which there
    are enough images.
    """

    level: float = Field(LEVEL, gt=0, lt=1)
    """The share of images whose set holds the true class."""
    pictures: int = Field(ge=0)
    """Calibration images that the thresholds were fitted on."""
    thresholds: dict[str, float]
    """Least probability of a class in a set, by group of images; `all` applies to any image."""
    urgent: dict[str, float] = Field(default_factory=dict)
    """Least probability of an urgent class, by the same groups; empty: no limits of its own."""
    urgent_columns: tuple[int, ...] = ()
    """Urgent classes, by their places in the taxonomy."""
    urgent_level: float | None = Field(None, gt=0, lt=1)
    """The share of images of urgent classes whose set holds the true class: 0.95, or what so few
    calibration images can support; None where urgent classes have no threshold of their own."""
    urgent_missed: Share | None = None
    """How often a calibration image of an urgent class has a set without any urgent class.

    None: there was no such image, or the bundle is of an older version.
    """
    urgent_raised: Share | None = None
    """How often a calibration image of another class has a set with an urgent class.

    None: there was no such image, or the bundle is of an older version.
    """
    group_pictures: dict[str, int] = Field(default_factory=dict)
    """Calibration images of each skin type that has thresholds of its own."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # An older bundle lacks it, and its version must stay.
        parts: dict[str, Any] = write(self)
        return {key: value for key, value in parts.items() if key != "urgent_raised" or value}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if ALL not in self.thresholds:
            raise ValueError(f"thresholds must have an entry {ALL!r}, the threshold for any image")
        for group, threshold in (*self.thresholds.items(), *self.urgent.items()):
            if not 0 <= threshold <= 1:
                raise ValueError(f"the threshold of {group} must be in 0..1, not {threshold}")
        if self.urgent and self.urgent.keys() != self.thresholds.keys():
            raise ValueError("urgent must have the same groups as thresholds, or no group")
        if any(column < 0 for column in self.urgent_columns):
            raise ValueError("urgent_columns must be class numbers from 0")
        return self

    @property
    def least_probability(self) -> float:
        """The threshold of any image, for classes that are not urgent; 0 takes in all classes."""
        return self.thresholds[ALL]

    def group(self, skin_type: int | None) -> str:
        """Return whose thresholds an image is judged by: a skin type's, or `all`."""
        name = ALL if skin_type is None else skin_type_group(skin_type)
        return name if name in self.thresholds else ALL

    def images_of(self, group: str) -> int:
        """Return how many calibration images stand behind a group's thresholds."""
        return self.group_pictures.get(group, self.pictures)

    def least_probabilities(self, group: str, classes: int) -> NDArray[np.float64]:
        """Return the threshold of each class, C, for a group of images.

        Raises ValueError when an urgent class is beyond the last one.
        """
        if any(column >= classes for column in self.urgent_columns):
            raise ValueError(
                f"the urgent columns {self.urgent_columns} do not fit {classes} classes"
            )
        least_C = np.full(classes, self.thresholds[group])
        if self.urgent:
            least_C[list(self.urgent_columns)] = self.urgent[group]
        return least_C

    def sets(
        self, probabilities_NC: NDArray[np.float64], skin_types: Sequence[int | None] | None = None
    ) -> NDArray[np.bool_]:
        """Return which classes are in each image's set, N x C.

        `skin_types` are Fitzpatrick 1..6, None where unknown, one an image.
        """
        images, classes = probabilities_NC.shape
        known = skin_types if skin_types is not None else [None] * images
        if len(known) != images:
            raise ValueError(
                f"{len(known)} skin types were given for {images} images; give one for each image"
            )
        groups = [self.group(skin_type) for skin_type in known]
        least = {group: self.least_probabilities(group, classes) for group in {ALL, *groups}}
        least_NC = np.array([least[group] for group in groups]).reshape(images, classes)
        sets_NC: NDArray[np.bool_] = probabilities_NC >= least_NC
        sets_NC[np.arange(images), probabilities_NC.argmax(axis=1)] = True
        return sets_NC


ENOUGH = 50
"""A skin type of fewer calibration images is judged by the thresholds of all."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def fit_on_records(
    probabilities_NC: Floats, records: Sequence[Record], taxonomy: Taxonomy, level: float = LEVEL
) -> Conformal:
    """Fit on the probabilities of calibration images, by urgency and by skin type."""
    number = {key: index for index, key in enumerate(taxonomy.keys)}
    return fit_conformal(
        probabilities_NC,
        np.array([number[record.label] for record in records], dtype=np.intp),
        level,
        urgent_C=np.array([skin_class.urgency == "urgent" for skin_class in taxonomy.classes]),
        skin_types=[record.skin_type for record in records],
        groups=[record.group for record in records],
    )


def fit_conformal(
    probabilities_NC: Floats,
    truth_N: NDArray[np.integer],
    level: float = LEVEL,
    *,
    urgent_C: Bools | None = None,
    skin_types: Sequence[int | None] | None = None,
    groups: ArrayLike | None = None,
) -> Conformal:
    """Fit the thresholds; a group's images are those whose true class, or skin type, is of it.

    Of n true classes' probabilities a threshold is the ceil((n + 1) level)-th greatest: with this
    correction a new image's set holds its true class with at least the probability `level`,
    if it is drawn as those were (Vovk et al. 2005). Too few images for the level, 8 or fewer
    at 0.9, put every class into every set. `groups` say which images are of one lesion or
    patient, and so no independent evidence. Raises ValueError for what does not fit.
    """
    if probabilities_NC.ndim != 2 or truth_N.shape != probabilities_NC.shape[:1]:
        raise ValueError(
            "probabilities must have the shape (N, C) and truth (N), but have "
            f"{probabilities_NC.shape} and {truth_N.shape}"
        )
    if not np.isfinite(probabilities_NC).all():
        raise ValueError("probabilities must be finite")
    n, classes = probabilities_NC.shape
    urgent_C = np.zeros(classes, dtype=bool) if urgent_C is None else urgent_C
    true_N = probabilities_NC[np.arange(n), truth_N]
    pressing_N: Bools = urgent_C[truth_N]
    types_N = np.array(
        [skin_type or 0 for skin_type in skin_types] if skin_types is not None else [0] * n
    )
    some = {ALL: np.ones(n, dtype=bool)}
    for skin_type in np.unique(types_N[types_N > 0]).tolist():
        if _enough(types_N == skin_type, pressing_N, urgent=bool(urgent_C.any())):
            some[skin_type_group(skin_type)] = types_N == skin_type
    pairs = {g: _pair(true_N[of_N], pressing_N[of_N], level) for g, of_N in some.items()}
    fitted = Conformal(
        level=level,
        pictures=n,
        thresholds={group: pair[0] for group, pair in pairs.items()},
        urgent={g: pair[1] for g, pair in pairs.items()} if pressing_N.any() else {},
        urgent_columns=tuple(np.flatnonzero(urgent_C).tolist()),
        urgent_level=_borne_out(int(pressing_N.sum())) if pressing_N.any() else None,
        group_pictures={g: int(of_N.sum()) for g, of_N in some.items() if g != ALL},
    )
    sets_NC = fitted.sets(probabilities_NC, skin_types)
    missed = urgent_missed(sets_NC, truth_N, urgent_C, groups)
    raised = urgent_raised(sets_NC, truth_N, urgent_C, groups)
    return fitted.model_copy(update={"urgent_missed": missed, "urgent_raised": raised})


def urgent_missed(
    sets_NC: Bools, truth_N: NDArray[np.integer], urgent_C: Bools, groups: ArrayLike | None = None
) -> Share | None:
    """Return how often the set of an image of an urgent class holds no urgent class.

    None without such an image.
    """
    pressing_N = urgent_C[truth_N]
    if not pressing_N.any():
        return None
    return _share(~np.asarray(sets_NC[:, urgent_C].any(axis=1)), pressing_N, groups)


def urgent_raised(
    sets_NC: Bools, truth_N: NDArray[np.integer], urgent_C: Bools, groups: ArrayLike | None = None
) -> Share | None:
    """Return how often the set of an image of another class holds an urgent class.

    None without such an image, and where no class is urgent.
    """
    other_N = ~urgent_C[truth_N]
    if not urgent_C.any() or not other_N.any():
        return None
    return _share(np.asarray(sets_NC[:, urgent_C].any(axis=1)), other_N, groups)


def _share(hits_N: Bools, among_N: Bools, groups: ArrayLike | None) -> Share:
    groups_N = np.arange(len(hits_N)) if groups is None else np.asarray(groups)
    share = share_interval(hits_N[among_N], groups_N[among_N])
    return Share(value=share.value, low=share.low, high=share.high, pictures=int(among_N.sum()))


def _pair(true_N: Floats, pressing_N: Bools, level: float) -> tuple[float, float]:
    """Return the thresholds of other classes and of urgent ones.

    A kind of too few images for the level has no threshold of its own. Both are then at most
    that of all images, so that its coverage still holds.
    """
    urgent_N, other_N = true_N[pressing_N], true_N[~pressing_N]
    together = _threshold(true_N, level)
    if not len(urgent_N):
        return together, together
    urgent = _threshold(urgent_N, _borne_out(len(urgent_N)))
    if min(len(urgent_N), len(other_N)) < _least(level):
        return together, min(together, urgent)
    return _threshold(other_N, level), urgent


def _threshold(true_N: Floats, level: float) -> float:
    place = _place(len(true_N), level)
    return float(np.sort(true_N)[::-1][place - 1]) if place <= len(true_N) else 0.0


def _place(n: int, level: float) -> int:
    # Rounded first: (9 + 1) * 0.9 is 9, and not a hair above it.
    return math.ceil(round((n + 1) * level, 9))


def _least(level: float) -> int:
    """Return the fewest images that bear a level out: 9 for 0.9, 19 for 0.95."""
    return math.ceil(round(level / (1 - level), 9))


def _borne_out(urgent: int) -> float:
    """Return the level of urgent classes, or the highest that so few images support."""
    return min(URGENT_LEVEL, urgent / (urgent + 1))


def _enough(of_N: Bools, pressing_N: Bools, *, urgent: bool) -> bool:
    return bool(
        of_N.sum() >= ENOUGH
        and (not urgent or (of_N & pressing_N).sum() >= _least(URGENT_LEVEL))
        and (of_N & ~pressing_N).sum() >= _least(LEVEL)
    )
