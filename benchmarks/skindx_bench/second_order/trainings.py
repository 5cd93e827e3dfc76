"""The trainings of the bench: each in this process, kept in a file so that a bench goes on."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from skindx.core.atomic_files import write_json
from skindx.core.untrusted import read_json
from skindx.data.manifest import read_manifest
from skindx.taxonomy import Taxonomy
from skindx.training.callbacks import Silent
from skindx.training.config.run import TrainSettings
from skindx.training.loop import train
from skindx.training.parallel.mesh import Mesh
from skindx.training.tasks.classifier_job import MemberJob, setup_member
from skindx_bench.second_order.arms import ARMS


@dataclass(frozen=True)
class Curve:
    """Validation accuracy after each epoch, and the seconds of training up to it."""

    balanced: tuple[float, ...]
    seconds: tuple[float, ...]
    """By the clock."""
    processor_seconds: tuple[float, ...]
    """Of all threads; on a GPU those that feed it."""

    @property
    def best(self) -> float:
        """The best balanced accuracy."""
        return max(self.balanced)

    def reaches(self, target: float) -> "Reached":
        """Return whether and when the target is reached.

        Where it never is, the whole training stands in for the time that is not known.
        """
        hits = [epoch for epoch, balanced in enumerate(self.balanced) if balanced >= target]
        last = hits[0] if hits else len(self.balanced) - 1
        return Reached(bool(hits), last + 1, self.seconds[last], self.processor_seconds[last])


@dataclass(frozen=True)
class Reached:
    """After how many epochs and seconds an accuracy was reached."""

    hit: bool
    epochs: int
    seconds: float
    processor_seconds: float


@dataclass(frozen=True)
class Trainings:
    """Shared inputs of all trainings: data, network, recipe, process."""

    dataset: Path
    member: Mapping[str, Any]
    recipe: Mapping[str, Any]
    folds: int
    out: Path
    mesh: Mesh

    def curve(self, arm: str, rate: float, fold: int, seed: int) -> Curve:
        """Return the curve of one training, which is trained unless it is kept in `out`."""
        settings = self._settings(arm, rate, fold, seed)
        plain = settings.model_dump(mode="json")
        file = self.out / "curves" / f"{arm}-{rate:g}-fold{fold}-seed{seed}.json"
        kept = read_json(file) if file.is_file() else {}
        if kept.get("settings") != plain or "processor_seconds" not in kept:
            history = self._train(settings, arm)
            kept = {
                "settings": plain,
                "balanced": [row["val_balanced"] for row in history],
                "seconds": [row["seconds"] for row in history],
                "processor_seconds": [row["processor_seconds"] for row in history],
            }
            write_json(file, kept)
        return Curve(*(tuple(kept[key]) for key in ("balanced", "seconds", "processor_seconds")))

    def _settings(self, arm: str, rate: float, fold: int, seed: int) -> TrainSettings:
        return TrainSettings.parse(
            {
                "name": arm,
                "folds": self.folds,
                "engine": self.mesh.settings.model_dump(mode="json"),
                "recipe": {**self.recipe, **ARMS[arm].recipe, "learning_rate": rate},
                "members": [{**self.member, "name": arm, "fold": fold, "seed": seed}],
            }
        )

    def _train(self, settings: TrainSettings, arm: str) -> list[dict[str, Any]]:
        records, taxonomy = (
            read_manifest(self.dataset),
            Taxonomy.load(self.dataset / "taxonomy.yaml"),
        )
        (member,) = settings.members
        job = MemberJob(self.out, self.dataset, settings, member, records, taxonomy.keys)
        training = setup_member(
            settings,
            member,
            job.data,
            self.mesh,
            lambda line: None,
            make_optimizer=ARMS[arm].build,
        )
        timed = _Timed(training.mesh.device)
        _, history = train(training, timed)
        return [
            {**row, "seconds": seconds, "processor_seconds": of_processor}
            for row, (seconds, of_processor) in zip(history, timed.seconds, strict=True)
        ]


class _Timed(Silent):
    """Takes the seconds of each epoch with its validation, to more digits than the history.

    By the clock, and of the processor, which other work on the machine does not lengthen.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.seconds: list[tuple[float, float]] = []
        self._device, self._began = device, (0.0, 0.0)

    def start(self, history: Any) -> None:
        self._began = self._now()

    def epoch(self, history: Any, line: str) -> None:
        clock, processor = self._now()
        self.seconds.append((clock - self._began[0], processor - self._began[1]))

    def _now(self) -> tuple[float, float]:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter(), time.process_time()
