"""The index of a bundle: what is in it, and the hash of every file."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from skindx.config import Settings
from skindx.models.classifier import ClassifierSettings
from skindx.models.combination import EQUAL, Combination
from skindx.models.conformal import Conformal
from skindx.models.detector import DetectorSpec
from skindx.models.views import Views


class MemberSpec(Settings):
    """One member: how to rebuild it, how it looks at a picture, and its temperature."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    classifier: ClassifierSettings
    temperature: float = Field(1.0, gt=0)
    views: Views = 1


class BundleSpec(Settings):
    """The index of a bundle, `bundle.json`."""

    format: Literal[1] = 1
    name: str
    created: str
    skindx: str
    temperature: float = Field(1.0, gt=0)
    combination: Combination = EQUAL
    members: tuple[MemberSpec, ...] = Field(min_length=1)
    detector: DetectorSpec | None = None
    conformal: Conformal | None = None
    """Thresholds of the sets of classes; None where there was no calibration split to fit on."""
    provenance: dict[str, Any] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of every file of the bundle, by its path inside it."""

    @model_validator(mode="after")
    def _a_weight_each(self) -> Self:
        weights = self.combination.weights
        if weights is not None and len(weights) != len(self.members):
            raise ValueError(f"{len(weights)} weights for {len(self.members)} members")
        return self
