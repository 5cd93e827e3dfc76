"""The base of all detectors: a frozen set of arrays that scores features and can be stored."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np

from skindx.models.ood.features import Features, Floats, Learned

# N = images

Need = Literal["pooled", "logits", "image", "layers"]


@dataclass(frozen=True)
class Fitted(ABC):
    """A fitted detector; its fields are arrays, numbers, or tuples of arrays (one a member)."""

    needs: ClassVar[frozenset[Need]]
    """The parts of `Features` that `scores` reads."""

    @classmethod
    @abstractmethod
    def fit(cls, settings: Any, learned: Learned) -> Self | None:
        """Fit on training images; None where they are too few or do not differ."""

    @abstractmethod
    def scores(self, features: Features) -> Floats:
        """Return N scores, higher for images that are less like the training images."""

    def tensors(self) -> dict[str, Any]:
        """Return the fields as arrays by name; the parts of a tuple as NAME.0, NAME.1, ..."""
        found: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                found |= {f"{field.name}.{n}": part for n, part in enumerate(value)}
            else:
                found[field.name] = np.asarray(value)
        return found

    @classmethod
    def of(cls, tensors: Mapping[str, Any]) -> Self:
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
