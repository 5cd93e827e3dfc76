"""Open a member's images, the same on all ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.state_checks import UnfitStateError, check_finite, check_like
from skindx.data.loader.settings import LoaderSettings
from skindx.data.loader.source import Files
from skindx.data.manifest import Record
from skindx.models.bounded_files import load_tensors
from skindx.training.config.run import MemberSettings
from skindx.training.feeding.cache_policy import CacheContext, Say, node_of, open_cached
from skindx.training.feeding.images import TrainingSet, ValidationSet, class_numbers
from skindx.training.feeding.loading import Reading, memory_for, threads_for
from skindx.training.parallel.mesh import Mesh


@dataclass(frozen=True)
class TrainingData:
    """A dataset folder, its training and validation rows, and the class keys in order."""

    dataset: Path
    train: Sequence[Record]
    val: Sequence[Record]
    classes: tuple[str, ...]


OpenImages = Callable[
    [TrainingData, MemberSettings, LoaderSettings, Mesh, Say], tuple[TrainingSet, ValidationSet]
]
"""Opens what a member learns from and is validated on."""


def open_sets(
    data: TrainingData, member: MemberSettings, loader: LoaderSettings, mesh: Mesh, say: Say
) -> tuple[TrainingSet, ValidationSet]:
    """Return the training images and this rank's validation images; every rank calls this.

    `say` gets a line for what takes time or changes the order of the images. Raises
    UserError for an image that is gone and for a cache that cannot be written.
    """
    node = node_of(mesh)
    threads = threads_for(loader.threads, node.ranks)
    reading = Reading(threads, loader.prefetch, memory_for(mesh.device))
    cached = open_cached(
        Files(data.dataset, data.train), member, CacheContext(loader, node, mesh, say)
    )
    own_val = data.val[mesh.data.rank :: mesh.data.size]
    return (
        TrainingSet(
            cached.source,
            class_numbers(data.train, data.classes),
            cached.sharded,
            reading,
            targets_NC=targets_of(member, data),
            redrawn=cached.redrawn,
            shuffler=cached.shuffler,
        ),
        ValidationSet(
            Files(data.dataset, own_val),
            class_numbers(own_val, data.classes),
            member.preprocess,
            reading,
            keep=loader.cache.kind != "none",
        ),
    )


def targets_of(member: MemberSettings, data: TrainingData) -> NDArray[np.float32] | None:
    """Return the soft targets that a member learns from; none: it learns the labels."""
    if member.targets is None:
        return None
    return load_targets(member.targets, data.train, len(data.classes))


def load_targets(file: Path, records: Sequence[Record], classes: int) -> NDArray[np.float32]:
    """Read the soft targets of these training images, N x C of `classes`. Raises UserError."""
    try:
        found = load_tensors(file)
        like_NC = torch.empty(len(records), classes, device="meta")
        check_like(found, {"targets": like_NC}, "it")
        check_finite(found, "it")
    except (UserError, UnfitStateError) as error:
        raise UserError(
            f"{file} does not hold soft targets for {len(records)} training images and {classes} "
            f"classes ({str(error).rstrip('.')}); remove it and distil again on this dataset."
        ) from None
    targets_NC: NDArray[np.float32] = found["targets"].numpy()
    return targets_NC
