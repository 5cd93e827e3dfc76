"""Choose where training pictures are kept between epochs, the same on all ranks."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.layout import CACHE
from skindx.data.loader import node_memory
from skindx.data.loader.budget import Node, free_memory, kept_share, wants_shards
from skindx.data.loader.node_memory import NodeMemory
from skindx.data.loader.pixels import open_pixels, pixels_bytes
from skindx.data.loader.settings import DiskCache, LoaderSettings, MemoryCache
from skindx.data.loader.source import Files, InMemory, Source
from skindx.training.config.run import MemberSettings
from skindx.training.feeding.batches import shard
from skindx.training.feeding.images import threads_for
from skindx.training.feeding.shuffler import Exchange, gloo_group
from skindx.training.parallel.mesh import Cluster

# N = pictures

Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """What decides where pictures are kept."""

    loader: LoaderSettings
    node: Node
    cluster: Cluster
    say: Say


@dataclass(frozen=True)
class Kept:
    """Where training reads its pictures."""

    source: Source
    sharded: bool
    """This rank sees a share of the pictures alone."""
    redrawn: bool = False
    """The share is another one in each epoch."""
    exchange: Exchange | None = None
    """Brings the next share, where pictures are in memory."""


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


def node_of(cluster: Cluster) -> Node:
    """Return what this rank's machine can take."""
    names = cluster.gather(socket.gethostname())
    return Node(names.count(names[cluster.rank]), cluster.world, free_memory())


def keep(files: Files, member: MemberSettings, place: Place) -> Kept:
    """Return where the pictures of `files` are kept; every rank calls this."""
    cache = place.loader.cache
    if isinstance(cache, MemoryCache):
        return _in_memory(files, place)
    if isinstance(cache, DiskCache):
        return _on_disk(files, round(member.preprocess.margin_size * cache.margin), cache, place)
    sharded = _sharded(0, 1, place)
    return Kept(files, sharded, redrawn=sharded and place.loader.redraws)


def _in_memory(files: Files, place: Place) -> Kept:
    """Keep encoded bytes: one copy for the node, or each rank its own share of the pictures."""
    loader, node, cluster = place.loader, place.node, place.cluster
    sizes_N = _sizes(files, cluster)
    total = int(sizes_N.sum())
    descriptor = _share_memory(sizes_N, node, cluster) if loader.sharded is not True else None
    copies = node.ranks if descriptor is None else 1
    sharded = _sharded(total, copies, place)
    share = kept_share(total, node, copies, sharded=sharded)
    if descriptor is not None and not sharded:
        memory = NodeMemory(files.dataset, files.records, sizes_N.tolist(), descriptor, share)
        return Kept(memory, sharded=False)
    if descriptor is not None:
        os.close(descriptor)
    source = InMemory(files.dataset, files.records, share)
    if not (sharded and loader.redraws):
        return Kept(source, sharded)
    group = None if loader.exchange == "read" else gloo_group(cluster)
    kept_P = np.array(cluster.gather(share))
    return Kept(source, sharded, True, Exchange(source, sizes_N, kept_P, cluster, group))


def _sharded(total: int, copies: int, place: Place) -> bool:
    """Return whether each rank sees a share alone; `total` bytes are kept `copies` times a node."""
    sharded, cluster = place.loader.sharded, place.cluster
    if cluster.world == 1:
        return False
    if sharded == "auto":
        # One node that is too small decides for all: their orders must fit together.
        sharded = any(cluster.gather(wants_shards(total, place.node, copies)))
    if sharded:
        which = "drawn anew for each epoch" if place.loader.redraws else "the same in each epoch"
        place.say(f"each of the {cluster.world} ranks sees its own share of the pictures, {which}")
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


def _share_memory(sizes_N: NDArray[np.int64], node: Node, cluster: Cluster) -> int | None:
    """Return a descriptor of memory that all ranks of this node reach; None: they have none."""
    host = socket.gethostname()
    made = node_memory.create(sizes_N.tolist()) if node.ranks > 1 else None
    offers = cluster.gather((host, made[1] if made else None))
    handle = next(handle for name, handle in offers if name == host)
    descriptor = made[0] if made else None
    if made and handle != made[1]:
        os.close(made[0])  # the first rank's is taken; this one never held a page
        descriptor = node_memory.attach(handle) if handle else None
    # Copies of some beside memory shared by others would take more than the budget knows of. The
    # first rank's process goes on holding its descriptor until all have answered.
    reached = [name for name, found in cluster.gather((host, descriptor is not None)) if found]
    if reached.count(host) == node.ranks:
        return descriptor
    if descriptor is not None:
        os.close(descriptor)
    return None


def _on_disk(files: Files, side: int, cache: DiskCache, place: Place) -> Kept:
    """Open one file of shrunk pictures for all ranks of the node, or one for each rank's shard."""
    cluster = place.cluster
    sharded = _sharded(pixels_bytes(files, side), 1, place)
    part = ""
    if sharded:
        part = f"-{cluster.rank}of{cluster.world}"
        files = Files(files.dataset, files.records[cluster.rank :: cluster.world])
    file = cache_folder(files.dataset, cache) / f"train-{side}{part}.pixels"

    def on_write(size_bytes: int) -> None:
        place.say(f"writing {len(files.records)} pictures, {size_bytes / 1e9:.2g} GB, to {file}")

    # While one rank writes, the others wait: it may take their cores.
    pixels = open_pixels(file, files, side, threads=threads_for("auto", 1), on_write=on_write)
    return Kept(Shard(pixels, cluster.world) if sharded else pixels, sharded)


def cache_folder(dataset: Path, cache: DiskCache) -> Path:
    """Return where a dataset's mapped pictures lie."""
    if cache.folder is None:
        return dataset / CACHE
    # Several datasets may share one disk.
    return cache.folder / sha256(str(dataset.resolve()).encode()).hexdigest()[:12]
