"""Choose where a member's pictures are kept, the same on all ranks."""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.dataset_folder import CACHE
from skindx.data.loader import node_memory
from skindx.data.loader.budget import Node, free_memory, kept_share, wants_shards
from skindx.data.loader.node_memory import NodeMemory
from skindx.data.loader.pixels import open_pixels, pixels_bytes
from skindx.data.loader.settings import DiskCache, LoaderSettings, MemoryCache
from skindx.data.loader.source import Files, InMemory, Source
from skindx.data.manifest import Record
from skindx.training.batches import shard
from skindx.training.engine import Cluster
from skindx.training.exchange import Exchange, gloo_group
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
    node = _node(cluster)
    threads = threads_for(loader.threads, node.ranks)
    reading = Reading(threads, loader.prefetch, memory_for(cluster.device))
    files = Files(data.dataset, data.train)
    kept = _keep(files, member, loader, node, cluster, say)
    own_val = data.val[cluster.rank :: cluster.world]
    return (
        TrainingSet(
            kept.source,
            class_numbers(data.train, data.classes),
            kept.sharded,
            reading,
            kept.exchange,
        ),
        ValidationSet(
            Files(data.dataset, own_val),
            class_numbers(own_val, data.classes),
            member.preprocess,
            reading,
            keep=loader.cache.kind != "none",
        ),
    )


@dataclass(frozen=True)
class _Kept:
    source: Source
    sharded: bool
    exchange: Exchange | None = None


def _keep(
    files: Files,
    member: MemberSettings,
    loader: LoaderSettings,
    node: Node,
    cluster: Cluster,
    say: Say,
) -> _Kept:
    if isinstance(loader.cache, MemoryCache):
        return _keep_in_memory(files, loader, node, cluster, say)
    if isinstance(loader.cache, DiskCache):
        side = _short_side(member, loader.cache)
        sharded = _sharded(loader, pixels_bytes(files, side), node, 1, cluster, say)
        folder = _folder(files.dataset, loader.cache)
        return _Kept(_open_disk(files, side, folder, cluster if sharded else None, say), sharded)
    return _Kept(files, _sharded(loader, 0, node, 1, cluster, say))


def _keep_in_memory(
    files: Files, loader: LoaderSettings, node: Node, cluster: Cluster, say: Say
) -> _Kept:
    """Keep encoded bytes: one copy for the node, or each rank its own share of the pictures."""
    sizes_N = _sizes(files, cluster)
    total = int(sizes_N.sum())
    descriptor = _share_memory(sizes_N, node, cluster) if loader.sharded is not True else None
    copies = node.ranks if descriptor is None else 1
    sharded = _sharded(loader, total, node, copies, cluster, say)
    share = kept_share(total, node, copies, sharded=sharded)
    if descriptor is not None and not sharded:
        memory = NodeMemory(files.dataset, files.records, sizes_N.tolist(), descriptor, share)
        return _Kept(memory, sharded=False)
    if descriptor is not None:
        os.close(descriptor)
    source = InMemory(files.dataset, files.records, share)
    if not (sharded and loader.redraws):
        return _Kept(source, sharded)
    group = None if loader.exchange == "read" else gloo_group(cluster)
    return _Kept(
        source, True, Exchange(source, sizes_N, np.array(cluster.gather(share)), cluster, group)
    )


def _node(cluster: Cluster) -> Node:
    names = cluster.gather(socket.gethostname())
    return Node(names.count(names[cluster.rank]), cluster.world, free_memory())


def _share_memory(sizes_N: NDArray[np.int64], node: Node, cluster: Cluster) -> int | None:
    """Return a descriptor of memory that all ranks of this node reach; None: they have none."""
    host = socket.gethostname()
    sizes = sizes_N.tolist()
    made = node_memory.create(sizes) if node.ranks > 1 else None
    offers = cluster.gather((host, made[1] if made else None))
    handle = next(handle for name, handle in offers if name == host)
    if handle is None or made is None:
        descriptor = None
    elif handle == made[1]:
        descriptor = made[0]
    else:
        os.close(made[0])  # the first rank's is taken; this one never held a page
        descriptor = node_memory.attach(handle)
    # Copies of some beside memory shared by others would take more than the budget knows of.
    answers = cluster.gather((host, descriptor is not None))
    if all(reached for name, reached in answers if name == host):
        return descriptor
    if descriptor is not None:
        os.close(descriptor)
    return None


def _sharded(
    loader: LoaderSettings, total: int, node: Node, copies: int, cluster: Cluster, say: Say
) -> bool:
    sharded = loader.sharded
    if cluster.world == 1:
        return False
    if sharded == "auto":
        # One node that is too small decides for all: their orders must fit together.
        sharded = any(cluster.gather(wants_shards(total, node, copies)))
    if sharded:
        often = "drawn anew in each epoch" if loader.redraws else "the same in each epoch"
        say(f"each of the {cluster.world} ranks sees its own share of the pictures, {often}")
    return sharded


def _sizes(files: Files, cluster: Cluster) -> NDArray[np.int64]:
    """Return the size of every training picture's file, in bytes."""
    count = len(files.records)
    sizes_N = np.empty(count, np.int64)
    # Each rank asks for a part of the sizes: a network file system answers slowly.
    own = shard(count, cluster.rank, cluster.world).tolist()
    parts = cluster.gather([files.size_bytes(index) for index in own])
    for rank, part in enumerate(parts):
        sizes_N[shard(count, rank, cluster.world)] = part
    return sizes_N


def _short_side(member: MemberSettings, cache: DiskCache) -> int:
    return round(member.preprocess.margin_size * cache.margin)


def _folder(dataset: Path, cache: DiskCache) -> Path:
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
