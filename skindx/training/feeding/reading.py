"""Open a member's pictures, the same on all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skindx.data.loader.settings import LoaderSettings
from skindx.data.loader.source import Files
from skindx.data.manifest import Record
from skindx.training.config.run import MemberSettings
from skindx.training.feeding.cache_policy import Place, Say, keep, node_of
from skindx.training.feeding.images import (
    Reading,
    TrainingSet,
    ValidationSet,
    class_numbers,
    memory_for,
    threads_for,
)
from skindx.training.parallel.mesh import Cluster


@dataclass(frozen=True)
class TrainingData:
    """A dataset folder, its training and validation rows, and the class keys in order."""

    dataset: Path
    train: Sequence[Record]
    val: Sequence[Record]
    classes: tuple[str, ...]


def open_sets(
    data: TrainingData, member: MemberSettings, loader: LoaderSettings, cluster: Cluster, say: Say
) -> tuple[TrainingSet, ValidationSet]:
    """Return the training pictures and this rank's validation pictures; every rank calls this.

    `say` is told, in one line, what takes time or changes the order of the pictures. Raises
    UserError for a picture that is gone and for a cache that cannot be written.
    """
    node = node_of(cluster)
    threads = threads_for(loader.threads, node.ranks)
    reading = Reading(threads, loader.prefetch, memory_for(cluster.device))
    kept = keep(Files(data.dataset, data.train), member, Place(loader, node, cluster, say))
    own_val = data.val[cluster.rank :: cluster.world]
    return (
        TrainingSet(
            kept.source,
            class_numbers(data.train, data.classes),
            kept.sharded,
            reading,
            redrawn=kept.redrawn,
            exchange=kept.exchange,
        ),
        ValidationSet(
            Files(data.dataset, own_val),
            class_numbers(own_val, data.classes),
            member.preprocess,
            reading,
            keep=loader.cache.kind != "none",
        ),
    )
