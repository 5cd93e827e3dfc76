"""The index of a bundle: what is in it, and the hash of every file."""

from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from skindx.core.settings_base import Settings
from skindx.data.origin import ImageOrigin
from skindx.models.calibration.conformal import Conformal
from skindx.models.calibration.urgent_risk import UrgentRisk
from skindx.models.classifier.classifier import ClassifierSettings
from skindx.models.classifier.preprocess import Views
from skindx.models.detector.detector import DetectorSpec
from skindx.models.detector.recall import DetectorRecall
from skindx.models.embedding_index.index import EmbeddingIndexSpec
from skindx.models.ensemble.combination import EQUAL, Combination
from skindx.models.ensemble.crop_fusion import FusionSpec
from skindx.models.ood.check import OodSpec
from skindx.models.ood.version_0_1 import OodSpecV01
from skindx.models.towers.origin import TowerOrigin


class MemberSpec(Settings):
    """One member: how to rebuild it, how it looks at an image, and its temperature."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    classifier: ClassifierSettings
    temperature: float = Field(1.0, gt=0)
    views: Views = 1
    tower: TowerOrigin | None = None
    """Whose weights it started from, where they were a tower's."""
    trunk: str = Field("", pattern="^([0-9a-f]{16})?$")
    """Which file of the folder `trunks` holds the weights below its head; empty: its own does."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # What bundles had no need of before is written where it is used.
        parts: dict[str, Any] = write(self)
        unused = {key for key in ("tower", "trunk") if not parts[key]}
        return {key: value for key, value in parts.items() if key not in unused}


class BundleSpec(Settings):
    """The index of a bundle, `bundle.json`."""

    format: Literal[1] = 1
    name: str = Field(max_length=256)
    created: str = Field(max_length=64)
    skindx: str = Field(max_length=64)
    temperature: float = Field(1.0, gt=0)
    combination: Combination = EQUAL
    members: tuple[MemberSpec, ...] = Field(min_length=1)
    detector: DetectorSpec | None = None
    detector_recall: DetectorRecall | None = None
    """How many lesions of each size the detector finds on validation images; None for an older
    bundle, and where no validation image has boxes."""
    fusion: FusionSpec | None = None
    """How the crop around the best box is judged beside the whole image; none: it is not."""
    conformal: Conformal | None = None
    """Thresholds of the sets of classes; None where there was no calibration split to fit on."""
    whole_conformal: Conformal | None = None
    """Those of answers by the whole image alone, where `conformal` is of answers with a crop."""
    urgent_risk: UrgentRisk | None = None
    """From which risk the next step is urgent; None for an older bundle, and where there were too
    few calibration images of urgent classes. The next step then follows the set of classes."""
    whole_urgent_risk: UrgentRisk | None = None
    """That of answers by the whole image alone, where `urgent_risk` is of answers with a crop."""
    gallery: EmbeddingIndexSpec | None = None
    ood: OodSpec | None = None
    """Whether a photo is out of distribution; None without enough calibration images."""
    novelty: OodSpecV01 | None = None
    """The same in bundles of version 0.1."""
    images: ImageOrigin | None = Field(None, exclude_if=lambda images: images is None)
    """What the images are that it learned from; None for an older bundle."""
    provenance: dict[str, Any] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of every file of the bundle, by its path inside it."""

    @model_validator(mode="after")
    def _a_weight_each(self) -> Self:
        weights = self.combination.weights
        if weights is not None and len(weights) != len(self.members):
            raise ValueError(f"{len(weights)} weights for {len(self.members)} members")
        return self


DEMO = "skindx-demo"
"""The name of the demo's bundle, by which one of an older version is recognised."""


def origin_of_bundle(spec: BundleSpec) -> ImageOrigin:
    """Return what the images are that a bundle learned from, as far as it says."""
    if spec.images is None and spec.name == DEMO:
        return ImageOrigin(painted="all")
    return spec.images or ImageOrigin()


def largest_crop(spec: BundleSpec) -> float:
    """Return the share of a photo's shorter side that the member sees which sees most."""
    return max(member.classifier.preprocess.crop for member in spec.members)
