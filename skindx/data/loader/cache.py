"""Where training images are kept between epochs, by the memory of the nodes, alike on all ranks."""

import os
import socket
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import free_memory
from skindx.data.layout import CACHE
from skindx.data.loader import node_memory
from skindx.data.loader.batches import shard
from skindx.data.loader.load import threads_for
from skindx.data.loader.node_memory import NodeMemory
from skindx.data.loader.pixels import open_pixels, pixels_bytes
from skindx.data.loader.settings import DiskCache, LoaderSettings, MemoryCache
from skindx.data.loader.shuffler import Ranks, ShardShuffler, gloo_group
from skindx.data.loader.source import Files, ImageSource, InMemory

KEEP = 0.5
"""Share of the free memory that images may take; the rest is the training's own."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a training: how many of all ranks it runs, and what its memory can take."""

    ranks: int
    world: int
    free_bytes: int

    @property
    def budget_bytes(self) -> float:
        """Return how much of its memory images may take."""
        return KEEP * self.free_bytes


def wants_shards(total_bytes: int, node: Node, copies: int) -> bool:
    """Return whether the node holds its ranks' shares, but not all the images `copies` times.

    Ranks that share what they keep have one copy, others have one each.
    """
    whole = total_bytes * copies
    shares = total_bytes * node.ranks / node.world
    return whole > node.budget_bytes and shares < whole


def kept_share(total_bytes: int, node: Node, copies: int, *, sharded: bool) -> float:
    """Return which share of the images that a rank sees it can keep in its part of the memory."""
    needed = total_bytes * (node.ranks / node.world if sharded else copies)
    return min(1.0, node.budget_bytes / needed) if needed else 1.0


# N = images

Say = Callable[[str], None]


@dataclass(frozen=True)
class CacheContext:
    """Inputs of the choice of a cache."""

    loader: LoaderSettings
    node: Node
    mesh: Ranks
    say: Say


@dataclass(frozen=True)
class CachedSource:
    """Source of a training's images."""

    source: ImageSource
    sharded: bool
    """This rank sees a share of the images alone."""
    redrawn: bool = False
    """The share is another one in each epoch."""
    shuffler: ShardShuffler | None = None
    """Brings the next share, where images are in memory."""


class Shard:
    """Every `world`-th image of a larger set, asked for by its number there."""

    def __init__(self, source: ImageSource, world: int) -> None:
        self.source = source
        self.world = world

    def size(self, index: int) -> tuple[int, int]:
        return self.source.size(index // self.world)

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        return self.source.image(index // self.world, at_least)


def node_of(mesh: Ranks) -> Node:
    """Return what this rank's machine can take."""
    names = mesh.gather(socket.gethostname())
    ranks = names.count(names[mesh.data.rank]) * mesh.beside
    return Node(ranks, mesh.data.size * mesh.beside, free_memory())


def open_cached(files: Files, side: float, context: CacheContext) -> CachedSource:
    """Return where the images of `files` are kept; every rank calls this.

    A cache on disk keeps them larger than `side` by its margin.
    """
    cache = context.loader.cache
    if isinstance(cache, MemoryCache):
        return _in_memory(files, context)
    if isinstance(cache, DiskCache):
        return _on_disk(files, round(side * cache.margin), cache, context)
    sharded = _sharded(0, 1, context)
    return CachedSource(files, sharded, redrawn=sharded and context.loader.redraws)


def _in_memory(files: Files, context: CacheContext) -> CachedSource:
    """Keep encoded bytes: one copy for the node, or each rank its own share of the images."""
    loader, node, mesh = context.loader, context.node, context.mesh
    sizes_N = _sizes(files, mesh)
    total, held = int(sizes_N.sum()), _held(files, mesh)
    if mesh.kept is not None:
        # What one rank of a node holds from the group before is no part of the free memory.
        host = socket.gethostname()
        if (host, True) in mesh.gather((host, held is not None)):
            node = replace(node, free_bytes=node.free_bytes + total)
    descriptor = _share_memory(sizes_N, node, mesh, held) if loader.sharded is not True else None
    copies = node.ranks if descriptor is None else 1
    sharded = _sharded(total, copies, replace(context, node=node))
    share = kept_share(total, node, copies, sharded=sharded)
    if descriptor is not None and not sharded:
        memory = NodeMemory(files.dataset, files.records, sizes_N.tolist(), descriptor, share)
        _keep(memory, mesh)
        return CachedSource(memory, sharded=False)
    if descriptor is not None:
        os.close(descriptor)
    source = held if isinstance(held, InMemory) else InMemory(files.dataset, files.records)
    source.share = share
    _keep(source, mesh)
    if not (sharded and loader.redraws):
        return CachedSource(source, sharded)
    group = None if loader.exchange == "read" else gloo_group(mesh)
    kept_P = np.array(mesh.gather(share))
    return CachedSource(source, sharded, True, ShardShuffler(source, sizes_N, kept_P, mesh, group))


_KEPT = "training images"


def _held(files: Files, mesh: Ranks) -> Files | None:
    """Return these images as this process holds them from the group before."""
    held = (mesh.kept or {}).get(_KEPT)
    if held is None or (held.dataset, held.decoding) != (files.dataset, files.decoding):
        return None
    return held if list(held.records) == list(files.records) else None


def _keep(source: Files, mesh: Ranks) -> None:
    if mesh.kept is not None:
        mesh.kept[_KEPT] = source


def _sharded(total: int, copies: int, context: CacheContext) -> bool:
    """Return whether each rank sees a share alone; `total` bytes are kept `copies` times a node."""
    sharded, mesh = context.loader.sharded, context.mesh
    if mesh.data.size == 1:
        return False
    if sharded == "auto":
        # One node that is too small decides for all: their orders must fit together.
        sharded = any(mesh.gather(wants_shards(total, context.node, copies)))
    if sharded:
        which = "drawn again for each epoch" if context.loader.redraws else "the same in each epoch"
        context.say(f"each of the {mesh.data.size} ranks sees its own share of the images, {which}")
    return sharded


def _sizes(files: Files, mesh: Ranks) -> NDArray[np.int64]:
    """Return the size of every training image's file, in bytes."""
    count = len(files.records)
    sizes_N = np.empty(count, np.int64)
    # Each rank asks for a part of the sizes: a network file system answers slowly.
    local = shard(count, mesh.data.rank, mesh.data.size).tolist()
    parts = mesh.gather([files.size_bytes(index) for index in local])
    for rank, part in enumerate(parts):
        sizes_N[shard(count, rank, mesh.data.size)] = part
    return sizes_N


def _share_memory(
    sizes_N: NDArray[np.int64], node: Node, mesh: Ranks, held: Files | None
) -> int | None:
    """Return a descriptor of memory that all ranks of this node reach; None: they have none."""
    host, made = socket.gethostname(), None
    if isinstance(held, NodeMemory):
        made = held.offer()
    elif node.ranks > 1:
        made = node_memory.create(sizes_N.tolist())
    offers = mesh.gather((host, astuple(made[1]) if made else None))
    given = next(offer for name, offer in offers if name == host)
    handle = node_memory.Handle(*given) if given else None
    descriptor = made[0] if made else None
    if made and handle != made[1]:
        os.close(made[0])  # the first rank's is taken; this one never held a page
        descriptor = node_memory.attach(handle) if handle else None
    # Copies of some beside memory shared by others would take more than the budget knows of. The
    # first rank's process goes on holding its descriptor until all have answered.
    reached = [name for name, result in mesh.gather((host, descriptor is not None)) if result]
    if reached.count(host) == node.ranks:
        return descriptor
    if descriptor is not None:
        os.close(descriptor)
    return None


def _on_disk(files: Files, side: int, cache: DiskCache, context: CacheContext) -> CachedSource:
    """Open one file of shrunk images for all ranks of the node, or one for each rank's shard."""
    mesh = context.mesh
    sharded = _sharded(pixels_bytes(files, side), 1, context)
    part = ""
    if sharded:
        part = f"-{mesh.data.rank}of{mesh.data.size}"
        files = Files(files.dataset, files.records[mesh.data.rank :: mesh.data.size])
    file = cache_folder(files.dataset, cache) / f"train-{side}{part}.pixels"

    def on_write(size_bytes: int) -> None:
        context.say(f"writing {len(files.records)} images, {size_bytes / 1e9:.2g} GB, to {file}")

    # While one rank writes, the others wait: it may take their cores.
    pixels = open_pixels(file, files, side, threads=threads_for("auto", 1), on_write=on_write)
    return CachedSource(Shard(pixels, mesh.data.size) if sharded else pixels, sharded)


def cache_folder(dataset: Path, cache: DiskCache) -> Path:
    """Return where a dataset's mapped images lie."""
    if cache.folder is None:
        return dataset / CACHE
    # Several datasets may share one disk.
    return cache.folder / sha256(str(dataset.resolve()).encode()).hexdigest()[:12]
