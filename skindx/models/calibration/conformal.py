"""Conformal sets: the classes that an image may show, with a guaranteed coverage."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from skindx.core.settings_base import Settings

LEVEL = 0.9
URGENT_LEVEL = 0.95
ALL = "all"

# N = images, C = classes


def skin_type_group(skin_type: int) -> str:
    """Name the group of images of a Fitzpatrick type."""
    return f"skin type {skin_type}"


class MeasuredShare(Settings):
    """A share that was counted, with its 95 % interval."""

    value: float = Field(ge=0, le=1)
    low: float = Field(ge=0, le=1)
    high: float = Field(ge=0, le=1)
    pictures: int = Field(ge=1)
    """Out of so many."""


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
    """Least probability of a class in a set, by group of images; `all` is any image's."""
    urgent: dict[str, float] = Field(default_factory=dict)
    """The same of an urgent class, for the same groups; empty: they have none of their own."""
    urgent_columns: tuple[int, ...] = ()
    """Urgent classes, by their places in the taxonomy."""
    urgent_level: float | None = Field(None, gt=0, lt=1)
    """The share of images of urgent classes whose set holds the true class: 0.95, or what so few
    calibration images can support; None where urgent classes have no threshold of their own."""
    urgent_missed: MeasuredShare | None = None
    """How often a calibration image of an urgent class has a set without any urgent class.

    None: there was no such image, or the bundle is of an older version.
    """
    urgent_raised: MeasuredShare | None = None
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
            raise ValueError(f"thresholds must hold {ALL!r}, the one for any image")
        for group, threshold in (*self.thresholds.items(), *self.urgent.items()):
            if not 0 <= threshold <= 1:
                raise ValueError(f"the threshold of {group} must be in 0..1, not {threshold}")
        if self.urgent and self.urgent.keys() != self.thresholds.keys():
            raise ValueError("urgent must name the same groups as thresholds, or none")
        if any(column < 0 for column in self.urgent_columns):
            raise ValueError("urgent_columns are places of classes, from 0")
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
            raise ValueError(f"urgent columns {self.urgent_columns} do not fit {classes} classes")
        least_C = np.full(classes, self.thresholds[group])
        if self.urgent:
            least_C[list(self.urgent_columns)] = self.urgent[group]
        return least_C

    def sets(
        self,
        probabilities_NC: NDArray[np.float64],
        skin_types: Sequence[int | None] | None = None,
    ) -> NDArray[np.bool_]:
        """Return which classes are in each image's set, N x C.

        `skin_types` are Fitzpatrick 1..6, None where unknown, one an image.
        """
        images, classes = probabilities_NC.shape
        known = skin_types if skin_types is not None else [None] * images
        if len(known) != images:
            raise ValueError(f"{len(known)} skin types for {images} images")
        groups = [self.group(skin_type) for skin_type in known]
        least = {group: self.least_probabilities(group, classes) for group in {ALL, *groups}}
        least_NC = np.array([least[group] for group in groups]).reshape(images, classes)
        sets_NC: NDArray[np.bool_] = probabilities_NC >= least_NC
        sets_NC[np.arange(images), probabilities_NC.argmax(axis=1)] = True
        return sets_NC
