"""A predictor's answers on labelled images: the arrays that every figure is computed from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from skindx.data.manifest import Record
from skindx.models.conformal import ALL, Conformal
from skindx.models.ensemble import Prediction
from skindx.models.urgent_risk import UrgentRisk
from skindx.taxonomy import SkinClass, Urgency

# N = images, C = classes, M = members

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Strings = NDArray[np.str_]


@dataclass(frozen=True)
class Answers:
    """One row an image, classes and members in the predictor's order."""

    classes: tuple[SkinClass, ...]
    members: tuple[str, ...]
    truth_N: Ints
    groups_N: Strings
    sha256_N: Strings
    ensemble_NC: Floats
    members_NMC: Floats
    skin_types: tuple[int | None, ...]
    sources: tuple[str, ...]
    sets_NC: NDArray[np.bool_] | None = None
    """The classes in each image's conformal set; None for a bundle without any."""
    level: float | None = None
    """The share of images whose set should hold the true class."""
    urgent_level: float | None = None
    """The same of urgent classes; None where they have no threshold of their own."""
    fitted_types: tuple[int, ...] = ()
    """Skin types that have thresholds of their own."""
    urgent_risk: UrgentRisk | None = None
    """The thresholds of the urgent risk; None for a bundle without any."""
    miss_rate: float | None = None
    """The level of the urgent risk that the next steps go by; None: its default."""
    steps: tuple[Urgency, ...] | None = None
    """The urgency of each image's next step, as it is served; None: of an older version."""

    def with_sets(self, rule: Conformal) -> Self:
        """Return the same answers with the conformal sets of a rule."""
        return replace(
            self,
            sets_NC=rule.sets(self.ensemble_NC, self.skin_types),
            level=rule.level,
            urgent_level=rule.urgent_level,
            fitted_types=tuple(t for t in range(1, 7) if rule.group(t) != ALL),
        )

    @classmethod
    def of(
        cls,
        records: Sequence[Record],
        predictions: Sequence[Prediction],
        classes: Sequence[SkinClass],
        members: Sequence[str],
    ) -> Self:
        """Join predictions with the records they answer; every label must be a class's key."""
        number = {skin_class.key: i for i, skin_class in enumerate(classes)}
        return cls(
            classes=tuple(classes),
            members=tuple(members),
            truth_N=np.array([number[record.label] for record in records], dtype=np.intp),
            groups_N=np.array([record.group for record in records]),
            sha256_N=np.array([record.sha256 for record in records]),
            ensemble_NC=np.stack([prediction.probabilities_C for prediction in predictions]),
            members_NMC=np.stack(
                [prediction.member_probabilities_MC for prediction in predictions]
            ),
            skin_types=tuple(record.skin_type for record in records),
            sources=tuple(record.source for record in records),
        )

    def __len__(self) -> int:
        return len(self.truth_N)

    @property
    def predicted_N(self) -> Ints:  # noqa: N802
        """The likeliest class of each image."""
        index_N: Ints = self.ensemble_NC.argmax(axis=1)
        return index_N

    @property
    def right_N(self) -> NDArray[np.bool_]:  # noqa: N802
        """Whether the likeliest class is the true one."""
        right_N: NDArray[np.bool_] = self.predicted_N == self.truth_N
        return right_N

    def some(self, index: NDArray[Any]) -> Self:
        """Return the rows of an index array or a mask, in its order."""
        rows = np.arange(len(self))[index]
        return replace(
            self,
            truth_N=self.truth_N[rows],
            groups_N=self.groups_N[rows],
            sha256_N=self.sha256_N[rows],
            ensemble_NC=self.ensemble_NC[rows],
            members_NMC=self.members_NMC[rows],
            skin_types=tuple(self.skin_types[row] for row in rows),
            sources=tuple(self.sources[row] for row in rows),
            sets_NC=None if self.sets_NC is None else self.sets_NC[rows],
            steps=None if self.steps is None else tuple(self.steps[row] for row in rows),
        )
