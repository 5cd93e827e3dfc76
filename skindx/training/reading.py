"""Choose where a member's pictures are kept, the same on all ranks."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.dataset_folder import CACHE
from skindx.data.loader.budget import Node, free_memory, kept_share, wants_shards
from skindx.data.loader.pixels import open_pixels, pixels_bytes
from skindx.data.loader.settings import DiskCache, LoaderSettings, MemoryCache
from skindx.data.loader.source import Files, InMemory, Source
from skindx.data.manifest import Record
from skindx.training.batches import shard
from skindx.training.engine import Cluster
from skindx.training.pictures import (
    Reading,
    TrainingSet,
    ValidationSet,
    class_numbers,
    memory_for,
    threads_for,
)
from skindx.training.settings import MemberSettings

Say = Callable[[str], None]


class Shard:
    """Every `world`-th picture of a larger set, asked for by its number there."""

    def __init__(self, source: Source, world: int) -> None:
        self.source = source
        self.world = world

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width)."""
        return self.source.size(index // self.world)

    def picture(self, index: int, at_least: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """Return a picture."""
        return self.source.picture(index // self.world, at_least)


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
    files = Files(data.dataset, data.train)
    total = _total_bytes(files, member, loader, cluster)
    sharded = _sharded(loader, total, node, cluster)
    if sharded:
        say(f"each of the {cluster.world} ranks sees its own share of the pictures")
    source: Source = files
    if isinstance(loader.cache, DiskCache):
        side = _short_side(member, loader.cache)
        folder = cache_folder(data.dataset, loader.cache)
        source = _open_disk(files, side, folder, cluster if sharded else None, say)
    elif isinstance(loader.cache, MemoryCache):
        source = InMemory(data.dataset, data.train, kept_share(total, node, sharded=sharded))
    own_val = data.val[cluster.rank :: cluster.world]
    return (
        TrainingSet(source, class_numbers(data.train, data.classes), sharded, reading),
        ValidationSet(
            Files(data.dataset, own_val),
            class_numbers(own_val, data.classes),
            member.preprocess,
            reading,
            keep=loader.cache.kind != "none",
        ),
    )


def node_of(cluster: Cluster) -> Node:
    """Return this rank's machine; every rank calls this."""
    names = cluster.gather(socket.gethostname())
    return Node(names.count(names[cluster.rank]), cluster.world, free_memory())


def _sharded(loader: LoaderSettings, total: int, node: Node, cluster: Cluster) -> bool:
    if cluster.world == 1:
        return False
    if loader.sharded != "auto":
        return loader.sharded
    # One node that is too small decides for all: their orders must fit together.
    return any(cluster.gather(wants_shards(loader.cache.kind, total, node)))


def _total_bytes(
    files: Files, member: MemberSettings, loader: LoaderSettings, cluster: Cluster
) -> int:
    """Return what keeping all training pictures takes."""
    if isinstance(loader.cache, DiskCache):
        return pixels_bytes(files, _short_side(member, loader.cache))
    if not isinstance(loader.cache, MemoryCache):
        return 0
    # Each rank asks for a part of the sizes: a network file system answers slowly.
    own = shard(len(files.records), cluster.rank, cluster.world)
    return sum(cluster.gather(sum(files.size_bytes(index) for index in own)))


def _short_side(member: MemberSettings, cache: DiskCache) -> int:
    return round(member.preprocess.margin_size * cache.margin)


def cache_folder(dataset: Path, cache: DiskCache) -> Path:
    """Return where a dataset's mapped pictures lie."""
    if cache.folder is None:
        return dataset / CACHE
    # Several datasets may share one disk.
    return cache.folder / sha256(str(dataset.resolve()).encode()).hexdigest()[:12]


def _open_disk(files: Files, side: int, folder: Path, shards: Cluster | None, say: Say) -> Source:
    """Open one file for all ranks of the node, or one for each rank's shard."""
    part = ""
    if shards:
        part = f"-{shards.rank}of{shards.world}"
        files = Files(files.dataset, files.records[shards.rank :: shards.world])
    file = folder / f"train-{side}{part}.pixels"

    def on_write(size_bytes: int) -> None:
        say(f"writing {len(files.records)} pictures, {size_bytes / 1e9:.2g} GB, to {file}")

    # While one rank writes, the others wait: it may take their cores.
    pixels = open_pixels(file, files, side, threads=threads_for("auto", 1), on_write=on_write)
    return Shard(pixels, shards.world) if shards else pixels
