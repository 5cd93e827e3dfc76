"""What a training run is: members, engine, detector; see recipe.py for how one is trained."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from skindx.config import Settings
from skindx.data.loader.settings import LoaderSettings
from skindx.models.classifier import ClassifierSettings
from skindx.training.engine import EngineSettings
from skindx.training.recipe import Recipe


class MemberSettings(ClassifierSettings):
    """One member of the ensemble."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    weights: Path | None = None
    """Start from these tensors (safetensors or a plain state dict) instead of random ones."""
    pretrained: bool = False
    """Start from timm's own weights, fetched once; training itself reaches no network."""
    seed: int = 0
    recipe: Recipe | None = None
    """Instead of the run's own."""

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if self.pretrained and self.weights:
            raise ValueError("give weights, or pretrained: true, not both")
        return self


class DetectorSettings(Settings):
    """The lesion detector (ultralytics), trained on the manifest's boxes."""

    model: str = "yolov8n.yaml"
    size: int = Field(320, ge=64, le=1280, multiple_of=32)
    batch: int = Field(16, ge=1)
    epochs: int = Field(50, ge=1)
    learning_rate: float = Field(0.001, gt=0)
    stop_map50: float = Field(1.0, gt=0, le=1)
    """Stop as soon as mAP50 on the validation split reaches this."""
    limit_s: float = Field(3600, gt=0)
    """Stop after the epoch that passes this many seconds."""
    seed: int = 0


class TrainSettings(Settings):
    """A training run: `skindx train DATASET --config FILE`."""

    name: str = "skindx"
    members: tuple[MemberSettings, ...] = Field(
        (MemberSettings(name="resnet18", model="resnet18"),), min_length=1
    )
    recipe: Recipe = Recipe()
    engine: EngineSettings = EngineSettings()
    detector: DetectorSettings | None = None
    loader: LoaderSettings = LoaderSettings()

    @model_validator(mode="after")
    def _distinct_names(self) -> Self:
        names = [member.name for member in self.members]
        if len(set(names)) < len(names):
            raise ValueError("every member needs a name of its own")
        return self

    @model_validator(mode="after")
    def _resizing_grows(self) -> Self:
        for member in self.members:
            resize, size = self.recipe_of(member).resize, member.preprocess.size
            if resize and resize.start >= size:
                raise ValueError(
                    f"{member.name}: resize.start={resize.start} must be below its size of {size}"
                )
        return self

    def recipe_of(self, member: MemberSettings) -> Recipe:
        """Return the member's own recipe, or the run's."""
        return member.recipe or self.recipe

    def starting_from(self, weights: Path) -> Self:
        """Return these settings with `weights` for every member that names none itself."""
        members = tuple(
            member
            if member.weights or member.pretrained
            else member.model_copy(update={"weights": weights})
            for member in self.members
        )
        return self.model_copy(update={"members": members})
