"""The steps of an epoch: mixed pictures forward, gradients backward, weights and average moved."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.training.feeding.batches import step_seed
from skindx.training.feeding.images import training_batches
from skindx.training.feeding.upload import on_device
from skindx.training.recipes.mixing import Mixture, blend, draw_mixture
from skindx.training.recipes.schedule import mix_at, rate_of, side_at
from skindx.training.task import MemberTraining

# B = batch, L = a rank's part of it with what it borrows, S = side


def take_steps(training: MemberTraining) -> Iterator[tuple[float | None, int, int]]:
    """Take the steps that are left of an epoch.

    Yields this rank's summed loss, or None when the step was skipped; its pictures; all ranks'.
    """
    recipe, seed, rank = training.recipe, training.member.seed, training.cluster.rank
    epoch, first = training.position.epoch, training.position.step
    plan = training.pictures.plan(recipe.batch, seed, epoch, training.cluster)
    mixtures = _mixtures(training, plan[first:])
    with training.waiting.counted():
        training.pictures.enter(seed, epoch)
    loaded = training_batches(
        training.pictures,
        [
            np.concatenate([shares[rank], mixture.borrowed]) if mixture else shares[rank]
            for shares, mixture in zip(plan[first:], mixtures, strict=True)
        ],
        recipe.augment,
        side=side_at(recipe, training.member.preprocess.size, epoch),
        seed=seed,
        epoch=epoch,
    )
    training.engine.train()
    loaded = on_device(loaded, training.cluster.device)
    batches = enumerate(training.waiting.over(loaded), start=first)
    for step, (pictures_LSS3, labels_L) in batches:
        torch.manual_seed(step_seed(seed, epoch, step, rank))
        inputs, targets = _mixed(training, pictures_LSS3, labels_L, mixtures[step - first])
        count = sum(len(share) for share in plan[step])
        loss_sum = _backward(training, inputs, targets, count)
        if loss_sum is not None and not _update(training, epoch * len(plan) + step, len(plan)):
            training.statistics.go_back()
            loss_sum = None
        yield loss_sum, len(inputs), count


def _update(training: MemberTraining, done: int, per_epoch: int) -> bool:
    """Move the weights, and their average, after `done` steps in all; False: see `Engine.step`."""
    engine = training.engine
    if not engine.step(rate_of(training.recipe, done, per_epoch)):
        return False
    if training.average:
        # `whole` copies a compiled network; its weights are in the module itself below ZeRO 3.
        source = engine.whole() if engine.cluster.settings.zero == 3 else engine.module
        training.average.update(source, done + 1)
    return True


def _mixtures(
    training: MemberTraining, plan: list[list[NDArray[np.int64]]]
) -> list[Mixture | None]:
    """Return how this rank mixes each step that is left of the epoch."""
    position, sharded = training.position, training.pictures.sharded
    mix = mix_at(training.recipe, position.epoch)
    if mix is None:
        return [None] * len(plan)
    return [
        draw_mixture(
            mix,
            shares,
            training.cluster.rank,
            (training.member.seed, position.epoch, step),
            sharded=sharded,
        )
        for step, shares in enumerate(plan, start=position.step)
    ]


def _mixed(
    training: MemberTraining, pictures_LSS3: Tensor, labels_L: Tensor, mixture: Mixture | None
) -> tuple[Tensor, Tensor]:
    """Return this rank's pictures and their targets, mixed."""
    if mixture is None:
        return pictures_LSS3, labels_L
    return blend(mixture, pictures_LSS3, labels_L, training.classes)


def _backward(
    training: MemberTraining, inputs: Tensor, targets: Tensor, count: int
) -> float | None:
    """Accumulate the gradients of this rank's part of `count` pictures; return its summed loss.

    None, and nothing has changed on any rank, when the loss is not finite on one of them.
    """
    total, pieces = 0.0, training.recipe.accumulate
    parts = zip(inputs.tensor_split(pieces), targets.tensor_split(pieces), strict=True)
    training.statistics.remember()
    for number, (inputs_BSS3, part) in enumerate(parts, start=1):
        logits_BC = training.engine(inputs_BSS3)
        loss_sum = training.loss(logits_BC.float(), part)
        value = training.watch.look(loss_sum)
        if value is None:
            training.engine.discard()
            training.statistics.go_back()
            return None
        training.engine.backward(loss_sum, count, last=number == pieces)
        total += value
    return total
