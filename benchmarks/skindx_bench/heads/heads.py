"""Many heads on features computed once, beside as many runs that each compute them."""

import os
import tempfile
from pathlib import Path

import numpy as np
from pydantic import Field

from skindx.core.machine import free_port
from skindx.core.measurement import interleave
from skindx.core.settings_base import Settings
from skindx_bench.data.images import describe, noisy_jpegs
from skindx_bench.harness.clock import Figure, median, ratio
from skindx_bench.harness.result import Result

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
    from skindx_bench.heads.arms import Arms

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
