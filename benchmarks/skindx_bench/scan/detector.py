"""Our training of the detector beside ultralytics' own: same network, images and metric."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from skindx.core.errors import JobError, UserError
from skindx.core.settings_base import Settings
from skindx.data.loader.source import Files
from skindx.data.manifest import Record, read_manifest
from skindx.metrics import DetectionScore, mean_average_precision
from skindx.models.detector import load_detector
from skindx.training.checkpoint.finished import CHECKPOINT, FOLDER, load_parts
from skindx.training.checks import check_detector
from skindx.training.config.engine import EngineSettings
from skindx.training.config.ensemble import DetectorSettings
from skindx.training.config.run import SETTINGS, TrainSettings
from skindx.training.tasks.detector_data import looked_at
from skindx.training.tasks.detector_task import LEAST_CONFIDENCE
from skindx_bench.harness.result import Figure, Result, median, ratio

PEER = "skindx_bench.scan.ultralytics_peer"

SMALLEST = ("size=64", "epochs=1", "seeds=2")


class Config(Settings):
    """Inputs of both trainers."""

    dataset: Path | None = None
    """A dataset with boxes, as `skindx build data/lesion-boxes.yaml` writes it."""
    model: str = "yolov8n.yaml"
    size: int = Field(256, ge=64, multiple_of=32)
    batch: int = Field(16, ge=1)
    epochs: int = Field(40, ge=1)
    seeds: int = Field(3, ge=2)


def run(settings: Config) -> Result:
    """Train with every seed by both, in turns; score the test split by the same pycocotools."""
    if settings.dataset is None:
        raise UserError(
            "bench detector needs a dataset with boxes: --set dataset=runs/lesion-boxes, as "
            "`skindx build data/lesion-boxes.yaml` writes it."
        )
    records = read_manifest(settings.dataset)
    test = looked_at(records, "test")
    check_detector(_training(settings, 0), list(records), ranks=1)
    scores: dict[str, list[DetectionScore]] = {"ours": [], "ultralytics": []}
    seconds: dict[str, list[float]] = {"ours": [], "ultralytics": []}
    with tempfile.TemporaryDirectory(prefix="skindx-bench-") as name:
        for seed in range(settings.seeds):
            # The order changes each round, so that neither always follows the other.
            for trainer in sorted(scores, reverse=bool(seed % 2)):
                folder = Path(name) / f"{trainer}-{seed}"
                _training(settings, seed).save(folder / SETTINGS)
                started = time.monotonic()
                _train(trainer, folder, settings.dataset)
                seconds[trainer].append(time.monotonic() - started)
                scores[trainer].append(_score(folder, settings.dataset, test))
    ours, peer = scores["ours"], scores["ultralytics"]
    gap = [100 * (a.map50 - b.map50) for a, b in zip(ours, peer, strict=True)]
    wide = [100 * (a.map50_95 - b.map50_95) for a, b in zip(ours, peer, strict=True)]
    figures = {
        **_figures("", ours, seconds["ours"]),
        **_figures("ultralytics_", peer, seconds["ultralytics"]),
        "map50_minus_ultralytics": median(gap, "points"),
        "map50_95_minus_ultralytics": median(wide, "points"),
        "training_over_ultralytics": ratio(seconds["ours"], seconds["ultralytics"]),
    }
    return Result("detector", figures, notes=_notes(settings, records, test))


def _training(settings: Config, seed: int) -> TrainSettings:
    own = DetectorSettings(
        model=settings.model,
        size=settings.size,
        batch=settings.batch,
        epochs=settings.epochs,
        seed=seed,
        limit_s=1e9,
    )
    engine = EngineSettings(accelerator="cpu")
    return TrainSettings(engine=engine, detector=own)


def _train(trainer: str, folder: Path, dataset: Path) -> None:
    arguments = {
        "ours": ["skindx.training.launching.rank", str(folder), str(dataset.resolve()), CHECKPOINT],
        "ultralytics": [PEER, str(folder), str(dataset.resolve())],
    }[trainer]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        check=False,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "MASTER_PORT": port},
    )
    if done.returncode:
        raise JobError(f"the training by {trainer} ended with code {done.returncode}")


def _score(folder: Path, dataset: Path, test: Sequence[Record]) -> DetectionScore:
    detector = load_detector(folder / FOLDER, load_parts(folder).spec)
    files = Files(dataset, test)
    found = [
        detector.detect([files.image(number)], LEAST_CONFIDENCE)[0] for number in range(len(test))
    ]
    score = mean_average_precision([record.boxes or () for record in test], found)
    if score is None:
        raise UserError(f"no test image of {dataset} has a box; build it with more images.")
    return score


def _figures(
    prefix: str, scores: Sequence[DetectionScore], seconds: Sequence[float]
) -> dict[str, Figure]:
    return {
        f"{prefix}map50": median([score.map50 for score in scores], ""),
        f"{prefix}map50_95": median([score.map50_95 for score in scores], ""),
        f"{prefix}seconds": median(seconds, "s"),
    }


def _notes(settings: Config, records: Sequence[Record], test: Sequence[Record]) -> tuple[str, ...]:
    train = looked_at(records, "train")
    groups = len({record.group for record in test})
    return (
        f"{settings.model} at {settings.size} px from random weights, {settings.epochs} epochs of "
        f"{len(train)} images in batches of {settings.batch}; one seed is one sample.",
        f"mAP by pycocotools on the {len(test)} test images in {groups} groups, which neither "
        "trainer saw; each by the moving average of its last epoch.",
        "Both in one process; seconds are of all of it, with its validation after each epoch.",
    )
