"""The two loops that `skindx bench trainer` compares, over the same images and settings.

`python -m skindx_bench.trainer.loops FOLDER MODEL SIZE BATCH` runs the bare one, an epoch for each
line on standard input.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from skindx.core.machine import go_offline
from skindx.data.layout import store_bytes
from skindx.data.loader.source import InMemory
from skindx.data.manifest import Record
from skindx.models.classifier.classifier import build_classifier
from skindx.training.callbacks import Silent
from skindx.training.config.run import TrainSettings
from skindx.training.feeding.images import TrainingSet, class_numbers, training_batches
from skindx.training.feeding.loading import Reading, memory_for, threads_for
from skindx.training.feeding.reading import TrainingData
from skindx.training.loop import take_steps
from skindx.training.parallel.mesh import Mesh
from skindx.training.tasks.classifier_job import setup_member
from skindx.training.tasks.losses import build_loss
from skindx.training.tasks.optimizer import build_optimizer
from skindx_bench.data.images import HEIGHT, WIDTH

CLASSES = tuple(f"class{number}" for number in range(8))


@dataclass(frozen=True)
class Job:
    """A dataset folder with its records, and what to train on it."""

    folder: Path
    records: Sequence[Record]
    settings: TrainSettings


def job(
    folder: Path, files: Sequence[bytes], model: str, size: int, batch: int, **more: Any
) -> Job:
    """Put JPEG files into a dataset folder's store and return a job that trains on them."""
    records = []
    for number, data in enumerate(files):
        sha256, path = store_bytes(folder, data, ".jpg")
        label = CLASSES[number % len(CLASSES)]
        records.append(Record(path, sha256, "", WIDTH, HEIGHT, label, sha256, "train"))
    settings = TrainSettings.parse(
        {
            # The schedule never ends within a bench; its length does not matter for the time.
            "recipe": {"epochs": 1000, "batch": batch, "augment": {"scale": [0.4, 1.0]}},
            "members": [{"name": "bench", "model": model, "preprocess": {"size": size}}],
            **more,
        }
    )
    return Job(folder, records, settings)


class TrainerLoop:
    """Our trainer's steps, an epoch at a call."""

    def __init__(self, work: Job, mesh: Mesh) -> None:
        data = TrainingData(work.folder, work.records, work.records[:1], CLASSES)
        member = work.settings.members[0]
        self._silent = Silent()
        self.training = setup_member(work.settings, member, data, mesh, self._silent.line)
        self.waits: list[float] = []
        """Seconds that each epoch waited for its batches."""

    def epoch(self) -> None:
        """Take an epoch's steps."""
        position = self.training.position
        take_steps(self.training, self._silent, lambda training: None)
        position.epoch, position.step = position.epoch + 1, 0
        self.waits.append(self.training.waiting.seconds)

    def close(self) -> None:
        """Release the engine."""
        self.training.engine.close()


class BareLoop:
    """The same forward, backward and update in plain PyTorch, an epoch at a call."""

    def __init__(self, work: Job, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.settings, self.member = work.settings, work.settings.members[0]
        recipe = self.settings.recipe_of(self.member)
        self.classifier = build_classifier(self.member, len(CLASSES)).to(device)
        self.optimizer = build_optimizer(self.classifier, recipe, [])
        labels_N = class_numbers(work.records, CLASSES)
        self.loss: nn.Module = build_loss(labels_N, len(CLASSES), recipe).to(device)
        loader = self.settings.loader
        self.images = TrainingSet(
            InMemory(work.folder, work.records),
            labels_N,
            sharded=False,
            reading=Reading(threads_for("auto", 1), loader.prefetch, memory_for(device)),
        )
        self.epochs = 0

    def epoch(self) -> None:
        """Take an epoch's steps."""
        recipe = self.settings.recipe_of(self.member)
        order = np.random.default_rng(self.epochs).permutation(len(self.images))
        batches = training_batches(
            self.images,
            np.array_split(order, len(order) // recipe.batch),
            recipe.augment,
            side=self.member.preprocess.size,
            seed=0,
            epoch=self.epochs,
        )
        self.classifier.train()
        for images_BSS3, labels_B in batches:
            logits_BC = self.classifier(images_BSS3.to(self.device))
            loss = self.loss(logits_BC, labels_B.to(self.device)) / len(labels_B)
            loss.backward()
            nn.utils.clip_grad_norm_(self.classifier.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            loss.item()
        self.epochs += 1


def main(arguments: list[str]) -> None:
    """Run the bare loop with memory settings as they are."""
    folder, model, size, batch = arguments
    go_offline()
    files = sorted(Path(folder).glob("store/**/*.jpg"))
    work = job(Path(folder), [file.read_bytes() for file in files], model, int(size), int(batch))
    loop = BareLoop(work, torch.device("cpu"))
    for _ in sys.stdin:
        loop.epoch()
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
