"""Many heads on features computed once, beside as many runs that each compute them."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.machine import free_port
from skindx.core.measurement import interleave
from skindx.core.settings_base import Settings
from skindx.data.layout import store_bytes
from skindx.data.loader.batches import partition
from skindx.data.manifest import Record
from skindx.models.bounded_files import save_tensors
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.training.callbacks import Silent
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.loop import fit
from skindx.training.parallel.mesh import Mesh
from skindx.training.tasks.head_data import HeadData
from skindx.training.tasks.heads_job import FeatureFiles, Halves, load_trunk
from skindx.training.tasks.heads_task import setup_heads
from skindx.training.tasks.open_sets import class_numbers
from skindx_bench.harness.result import Figure, Result, median, ratio
from skindx_bench.harness.training import HEIGHT, WIDTH, describe, noisy_jpegs

_PASSES = 20
"""The cache is read so often in a timed round: once is too short to time."""

_RECIPES: tuple[dict[str, Any], ...] = (
    {},
    {"loss": {"kind": "logit_adjusted"}, "class_weights": "sqrt"},
    {"mix": {"mixup": 0.2}, "ema": {"decay": 0.95}},
)


@dataclass
class Arms:
    """A dataset, heads by their recipe, and what each arm answered last."""

    folder: Path
    records: Sequence[Record]
    settings: TrainSettings
    classes: tuple[str, ...]
    passes: int = _PASSES
    answers: dict[str, dict[str, NDArray[np.float64]]] = field(default_factory=dict)
    """Validation probabilities by the head's name."""

    @classmethod
    def prepared(
        cls,
        folder: Path,
        files: Sequence[bytes],
        *,
        model: str,
        size: int,
        count: int,
        folds: int,
        recipe: dict[str, int],
    ) -> "Arms":
        """Put images of `count` classes and a trunk of random weights into a folder.

        `recipe` is what all heads have in common: epochs and batch.
        """
        classes = tuple(f"class{number}" for number in range(count))
        records = []
        for number, data in enumerate(files):
            sha256, path = store_bytes(folder, data, ".jpg")
            label = classes[number % len(classes)]
            records.append(Record(path, sha256, "", WIDTH, HEIGHT, label, sha256, "train"))
        torch.manual_seed(0)
        weights = folder / "trunk.safetensors"
        net = build_classifier(ClassifierSettings(model=model), 1).net
        save_tensors(
            {name: value.contiguous() for name, value in net.state_dict().items()}, weights
        )
        members = [
            {
                "name": f"recipe{number}-fold{fold}",
                "model": model,
                "preprocess": {"size": size},
                "weights": weights,
                "trunk": "frozen",
                "fold": fold,
                "seed": fold,
                "recipe": {**recipe, **own},
            }
            for number, own in enumerate(_RECIPES)
            for fold in range(folds)
        ]
        settings = TrainSettings.parse(
            {
                "members": members,
                "folds": folds,
                "recipe": recipe,
            },
            expand=False,
        )
        return cls(folder, records, settings, classes)

    @property
    def members(self) -> tuple[MemberSettings, ...]:
        """All heads."""
        return self.settings.members

    def shared(self, mesh: Mesh) -> None:
        """Compute the features once, then train the heads of each recipe together."""
        features = self.features(mesh, fresh=True)
        groups: dict[str, list[MemberSettings]] = {}
        for member in self.members:
            groups.setdefault(self.settings.recipe_of(member).model_dump_json(), []).append(member)
        found: dict[str, NDArray[np.float64]] = {}
        for group in groups.values():
            found |= self._trained(group, features, mesh)
        self.answers["shared"] = found

    def separate(self, mesh: Mesh) -> None:
        """Compute the features again for each head and train it alone."""
        found: dict[str, NDArray[np.float64]] = {}
        for member in self.members:
            found |= self._trained([member], self.features(mesh, fresh=True), mesh)
        self.answers["separate"] = found

    def features(self, mesh: Mesh, *, fresh: bool) -> list[Halves]:
        """Return the features; `fresh`: the cache is emptied first."""
        first = self.members[0]
        cache = self.folder / "features"
        if fresh:
            shutil.rmtree(cache, ignore_errors=True)
        trunk = load_trunk(first)
        files = FeatureFiles(cache, self.folder, self.records, trunk, first.preprocess, 1)
        return files.open(mesh, lambda line: None)

    def read(self, mesh: Mesh) -> None:
        """Read all features from the cache in random batches, some times."""
        (features_ND,) = self.features(mesh, fresh=False)
        rng = np.random.default_rng(0)
        for _ in range(self.passes):
            order = rng.permutation(len(features_ND))
            for rows_B in np.array_split(order, -(-len(order) // 32)):
                features_ND[rows_B].astype(np.float32)

    def _trained(
        self, members: Sequence[MemberSettings], features: Sequence[Halves], mesh: Mesh
    ) -> Mapping[str, NDArray[np.float64]]:
        data = [self._data(member, features) for member in members]
        training = setup_heads(
            self.settings, data, label="bench", place="fc", mesh=mesh, say=lambda line: None
        )
        finished = fit(training, Silent())
        training.engine.close()
        return {
            member.name: np.exp(own.validation_NC)
            for member, own in zip(members, finished, strict=True)
        }

    def _data(self, member: MemberSettings, features: Sequence[Halves]) -> HeadData:
        number = {record.path: row for row, record in enumerate(self.records)}
        parts = partition(self.records, member.fold, self.settings.folds)
        train_N, val_N = (np.array([number[record.path] for record in part]) for part in parts)
        labels_P = class_numbers(self.records, self.classes)
        return HeadData(member, features, labels_P, train_N, val_N, len(self.classes))


SMALLEST = (
    *("model=test_resnet", "size=32", "images=48", "classes=2", "folds=2", "epochs=1", "batch=8"),
    "rounds=2",
)


class Config(Settings):
    """`folds` heads of each of three recipes, on one trunk with random weights."""

    model: str = "resnet18"
    size: int = Field(160, ge=32)
    images: int = Field(240, ge=24)
    classes: int = Field(6, ge=2)
    folds: int = Field(4, ge=2)
    epochs: int = Field(12, ge=1)
    batch: int = Field(32, ge=2)
    rounds: int = Field(3, ge=2)


def run(settings: Config) -> Result:
    """Time both arms in turn, in one process, each round with an empty cache of features.

    shared: features once, then the heads of each recipe as one batched product. separate: for each
    head the features, then that head alone. Both read features of half precision.
    """
    from skindx.training.deepspeed.ranks import join
    from skindx.training.parallel.mesh import leave

    with tempfile.TemporaryDirectory(prefix="skindx-bench-") as name:
        files = noisy_jpegs(settings.images)
        os.environ["MASTER_PORT"] = str(free_port())
        arms = Arms.prepared(
            Path(name),
            files,
            model=settings.model,
            size=settings.size,
            count=settings.classes,
            folds=settings.folds,
            recipe={"epochs": settings.epochs, "batch": settings.batch},
        )
        mesh = join(arms.settings.engine)
        try:
            seconds = interleave(
                {
                    "shared": lambda: arms.shared(mesh),
                    "separate": lambda: arms.separate(mesh),
                    "features": lambda: arms.features(mesh, fresh=True),
                },
                settings.rounds,
                0,
            )
            cached = interleave({"cached": lambda: arms.read(mesh)}, max(3, settings.rounds))
        finally:
            leave()
    count = len(arms.members)
    rows = settings.images
    own, other = arms.answers["shared"], arms.answers["separate"]
    gap = max(float(np.abs(own[key] - other[key]).max()) for key in own)
    figures = {
        "shared_over_separate": ratio(seconds["shared"], seconds["separate"]),
        "cached_over_recomputed": median(
            [
                whole / part
                for whole in seconds["features"]
                for part in (np.array(cached["cached"]) / arms.passes).tolist()
            ],
            "×",
        ),
        "largest_difference": Figure(gap, "of a probability", count, (gap, gap)),
    }
    baselines = {
        "shared, all heads": median(seconds["shared"], "s"),
        "separate, all heads": median(seconds["separate"], "s"),
        "computed features": median([rows / took for took in seconds["features"]], "images/s"),
        "cached features": median(
            [arms.passes * rows / took for took in cached["cached"]], "images/s"
        ),
    }
    return Result("heads", figures, baselines, notes=(describe(files), _note(settings, count)))


def _note(settings: Config, count: int) -> str:
    return (
        f"{count} linear heads (3 recipes x {settings.folds} folds) of {settings.epochs} epochs on "
        f"{settings.model} at {settings.size} px with random weights. largest_difference: of the "
        "validation probabilities of the two arms. cached features are read in random order as "
        "batches of single precision, as a training does; computed ones are decoded, passed "
        "through the trunk and written."
    )
