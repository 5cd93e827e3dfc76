"""Train one member on all ranks: exact epochs, gradients weighted by true sample counts."""

import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from skindx.errors import UserError
from skindx.metrics import balanced_accuracy
from skindx.models.classifier import Classifier, build_classifier, load_weights
from skindx.models.ensemble import Member
from skindx.training.engine import Cluster, Engine
from skindx.training.member import FinishedMember
from skindx.training.pictures import TrainingSet, ValidationSet, training_batches
from skindx.training.reading import TrainingData, open_sets
from skindx.training.schedule import build_optimizer, rate_at
from skindx.training.settings import MemberSettings, Recipe, TrainSettings

# N = pictures, B = batch, C = classes


class Progress(Protocol):
    """Where a member's progress is shown: once a step, and once an epoch."""

    def step(self, loss: float) -> None:
        """One step is done; `loss` is this rank's mean."""

    def line(self, text: str) -> None:
        """One epoch is done; `text` has its figures."""


def train_member(
    settings: TrainSettings,
    member: MemberSettings,
    data: TrainingData,
    cluster: Cluster,
    progress: Progress,
) -> tuple[FinishedMember, list[dict[str, Any]]]:
    """Train `member` and return it with one history row an epoch; every rank calls this."""
    recipe = settings.recipe_of(member)
    torch.manual_seed(member.seed)  # every rank starts from the same weights
    classifier = build_classifier(member, len(data.classes))
    fresh = [f"net.{name}" for name, _ in classifier.net.named_parameters()]
    if member.weights:
        fresh = [f"net.{name}" for name in load_weights(classifier, member.weights)]
    classifier.to(cluster.device)
    optimizer = build_optimizer(classifier, recipe, fresh)
    engine = Engine(classifier, optimizer, cluster, recipe.batch)

    pictures, validation = open_sets(data, member, settings.loader, cluster, progress.line)
    weights_C = class_weights(pictures.labels_N, len(data.classes), recipe).to(cluster.device)

    run = _Run(engine, cluster, member, recipe, pictures, weights_C, progress)
    history = []
    for epoch in range(recipe.epochs):
        started = time.monotonic()
        loss = run.epoch(epoch)
        engine.average_buffers()
        finished = _validate(engine, member, validation, cluster)
        predicted_N = finished.validation_NC.argmax(axis=1)
        score = balanced_accuracy(np.exp(finished.validation_NC), finished.truth_N)
        row = {
            "epoch": epoch + 1,
            "loss": round(loss, 5),
            "val_top1": round(float((predicted_N == finished.truth_N).mean()), 4),
            "val_balanced": round(float(score), 4),
            "pictures_per_s": round(len(pictures) / (time.monotonic() - started), 1),
        }
        history.append(row)
        progress.line(
            f"epoch {row['epoch']:>3}  loss {row['loss']:.3f}  val top-1 {row['val_top1']:.3f}  "
            f"balanced {row['val_balanced']:.3f}  {row['pictures_per_s']:.0f} pictures/s"
        )
    engine.close()
    return finished, history


@dataclass
class _Run:
    """One member's training loop."""

    engine: Engine
    cluster: Cluster
    member: MemberSettings
    recipe: Recipe
    pictures: TrainingSet
    weights_C: Tensor
    progress: Progress

    def epoch(self, epoch: int) -> float:
        """Train on every picture once; return the mean loss over all ranks."""
        plan = self.pictures.plan(self.recipe.batch, self.member.seed, epoch, self.cluster)
        loaded = training_batches(
            self.pictures,
            [shares[self.cluster.rank] for shares in plan],
            self.recipe.augment,
            side=self.member.preprocess.size,
            seed=self.member.seed,
            epoch=epoch,
        )
        loss_function = nn.CrossEntropyLoss(
            weight=self.weights_C, label_smoothing=self.recipe.label_smoothing, reduction="sum"
        )
        per_epoch = len(plan)
        steps, warmup = per_epoch * self.recipe.epochs, int(per_epoch * self.recipe.warmup_epochs)
        total = 0.0
        self.engine.train()
        for index, (pictures_BSS3, labels_B) in enumerate(loaded):
            logits_BC = self.engine(pictures_BSS3.to(self.cluster.device))
            loss_sum = loss_function(logits_BC.float(), labels_B.to(self.cluster.device))
            self.engine.backward(loss_sum, sum(len(each) for each in plan[index]))
            step = epoch * per_epoch + index
            self.engine.step(rate_at(step, steps, warmup, self.recipe.learning_rate))
            total += loss_sum.item()
            self.progress.step(loss_sum.item() / len(labels_B))
        mean = float(sum(self.cluster.gather(total))) / len(self.pictures)
        if not np.isfinite(mean):
            raise UserError(
                f"{self.member.name}: the loss became {mean} in epoch {epoch + 1}; "
                "lower recipe.learning_rate."
            )
        return mean


def class_weights(labels_N: np.ndarray[Any, Any], classes: int, recipe: Recipe) -> Tensor:
    """Return the loss weight of each class: N / (C n_c), its square root, or one."""
    counts_C = np.maximum(np.bincount(labels_N, minlength=classes), 1)
    balanced_C = len(labels_N) / (classes * counts_C)
    power = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}[recipe.class_weights]
    return torch.from_numpy(balanced_C**power).float()


def _validate(
    engine: Engine, member: MemberSettings, own: ValidationSet, cluster: Cluster
) -> FinishedMember:
    """Predict this rank's share of the validation pictures and put all shares together."""
    engine.train(False)
    classifier = engine.module
    assert isinstance(classifier, Classifier)
    judge = Member(member.name, classifier, member.preprocess)
    log_NC = judge.judge(own.squares()) if len(own) else None
    parts = cluster.gather((log_NC, own.labels_N))
    count = sum(len(labels) for _, labels in parts)
    classes = next(log.shape[1] for log, _ in parts if log is not None)
    validation_NC = np.empty((count, classes))
    truth_N = np.empty(count, dtype=np.int64)
    for rank, (log, labels) in enumerate(parts):
        if log is not None:
            # Rank r took rows r, r + P, … of the manifest: put them back in their places.
            validation_NC[rank :: cluster.world] = log
            truth_N[rank :: cluster.world] = labels
    state = {name: tensor.detach().clone() for name, tensor in classifier.net.state_dict().items()}
    return FinishedMember(state, validation_NC, truth_N)
