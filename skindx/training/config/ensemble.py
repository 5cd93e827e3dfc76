"""Settings of a bundle's parts: combiners, members of other runs, the detector."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from skindx.core.settings_base import OFF, Settings
from skindx.data.loader.settings import Augment
from skindx.models.combination import Space
from skindx.models.ood.ood_check import AnyDetector
from skindx.models.ood.ood_detectors import DEFAULT

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
"""Pattern of a member's name, which also names a folder: at most 255 characters."""


class Mean(Settings):
    """All members weigh the same."""

    kind: Literal["mean"] = "mean"
    space: Space = "auto"
    """auto: the mean of probabilities, or of logarithms where their log loss on validation,
    cross-fitted, is lower by more than chance."""


class MajorityVote(Settings):
    """A majority vote; the mean probability decides ties."""

    kind: Literal["vote"] = "vote"


Combiner = Annotated[Mean | MajorityVote, Field(discriminator="kind")]


class EnsembleSettings(Settings):
    """How the members are combined, and what is fitted beside them."""

    removed_from: ClassVar[str] = "train ensemble."

    combine: Combiner = Mean()
    metadata: Annotated[Literal["auto", "off"], OFF] = Field(
        "auto", exclude_if=lambda metadata: metadata == "auto"
    )
    """auto: age, sex and place, where the dataset says them, are learned from on validation, and
    answers use them if the log loss is lower for it by more than chance."""
    ood: tuple[AnyDetector, ...] = Field(
        DEFAULT, min_length=1, exclude_if=lambda detectors: detectors == DEFAULT
    )
    """Detectors of the out-of-distribution check, by their `kind`; the highest score counts. A
    bundle is opened only where all of its kinds are installed."""
    ood_changes: Augment | None = Field(None, exclude_if=lambda changes: changes is None)
    """The detectors are fitted on each training image as it is and once more changed so: what the
    networks learned to ignore, such as another camera's colours, is then no reason to refuse."""

    @field_validator("combine", mode="before")
    @classmethod
    def _older(cls, combine: Any) -> Any:
        """Read what 0.2 took: `auto` chose the mean on all images of skin that were tried."""
        kind = combine.get("kind") if isinstance(combine, dict) else combine
        return {"kind": "mean"} if kind == "auto" else combine


class PackSettings(Settings):
    """What the bundle stores, and how finely: all of it is so before anything is fitted to it."""

    weights: Literal["as_trained", "fp16"] = "as_trained"
    """fp16: rounded to half precision, which halves the bundle; answers are computed in single
    precision. A tensor that loses its range by it stays as it is."""
    gallery: bool = True
    """Keep embeddings and small copies of training images, of which a diagnosis shows the most
    similar."""
    ood_features: Literal["training", "calibration"] = "training"
    """Whose features lie beside the out-of-distribution check. training: `skindx remove` can fit
    the detectors again without an image. calibration: a hundredth of the bytes, the same answers; a
    removed training image stays in the detectors' means, as it stays in the weights."""


class ReusedSettings(Settings):
    """A member that lies in another run, trained there on the same dataset."""

    run: Path
    member: str = Field(pattern=NAME)
    name: str | None = Field(None, pattern=NAME)
    """Name of the member in this run; none: the same."""
    config: Path | None = None
    """The settings to train that run with, if it was not started yet."""

    @property
    def known_as(self) -> str:
        """Name of the member in this run."""
        return self.name or self.member


class BoxAugment(Settings):
    """Random changes of a training image and its boxes, drawn again in each epoch.

    Where an image shows one or two lesions, a detector's street-scene defaults (mosaic, half and
    double size) slow learning down.
    """

    flip: bool = True
    """Mirror and quarter turns: skin has no upright."""
    scale: float = Field(0.2, ge=0, lt=1)
    """Largest change of size, as a share of it."""
    translate: float = Field(0.05, ge=0, lt=1)
    """Largest shift, as a share of the square's side."""
    hue: float = Field(0.015, ge=0, le=0.5)
    """Largest change, as a share of the colour circle."""
    saturation: float = Field(0.7, ge=0, lt=1)
    """Largest change, as a share of it."""
    brightness: float = Field(0.4, ge=0, lt=1)
    """Largest change, as a share of it."""


class DetectorSettings(Settings):
    """The lesion detector (ultralytics), trained on the manifest's boxes; or another run's."""

    model_config = ConfigDict(
        validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )

    from_run: Path | None = Field(None, alias="from")
    """Take the finished detector of this run instead of training one."""
    model: str = "yolov8n.yaml"
    size: int = Field(320, ge=64, le=1280, multiple_of=32)
    batch: int = Field(16, ge=1, le=10**7)
    """Images in a step, over all ranks."""
    epochs: int = Field(50, ge=1, le=10**6)
    learning_rate: float = Field(0.001, gt=0, le=1e6)
    weight_decay: float = Field(0.0005, ge=0, le=1e3)
    warmup_epochs: float = Field(1.0, ge=0, le=1e6)
    """Epochs in which the rate rises linearly; then it falls along a cosine to zero."""
    augment: BoxAugment = BoxAugment()
    stop_map50: float = Field(1.0, gt=0, le=1)
    """Stop as soon as mAP50 on the validation split reaches this."""
    limit_s: float = Field(3600, gt=0, le=1e9)
    """Stop after the epoch that passes this many seconds."""
    seed: int = Field(0, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _warm_in_time(self) -> Self:
        if self.warmup_epochs > self.epochs:
            raise ValueError(
                f"warmup_epochs={self.warmup_epochs:g} is longer than the training of "
                f"epochs={self.epochs}, so the learning rate would never reach its peak; lower "
                "warmup_epochs"
            )
        return self

    @model_validator(mode="after")
    def _from_alone(self) -> Self:
        given = sorted(self.model_fields_set - {"from_run"})
        changed = [
            name for name in given if getattr(self, name) != type(self).model_fields[name].default
        ]
        if self.from_run and changed:
            raise ValueError(
                f"the detector of `detector.from` is already trained, so {', '.join(changed)} "
                "would have no effect; remove these settings"
            )
        return self


class FusionSettings(Settings):
    """Classify the crop around the best box beside the whole image; needs a detector.

    Its weight is fitted on validation. It doubles the work of a diagnosis.
    """

    margin: float = Field(1.5, ge=1, le=4)
    """Side of the crop over the longer side of the box."""
