"""Where training images are kept between epochs, by the memory of the nodes, alike on all ranks."""

import os
import secrets
import socket
import weakref
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import free_memory
from skindx.data.layout import CACHE
from skindx.data.loader.batches import shard
from skindx.data.loader.load import threads_for
from skindx.data.loader.pixels import open_pixels, pixels_bytes
from skindx.data.loader.settings import DiskCache, LoaderSettings, MemoryCache
from skindx.data.loader.shuffler import Ranks, ShardShuffler, gloo_group
from skindx.data.loader.source import Files, ImageSource, InMemory, rank_in_memory
from skindx.data.manifest import Record

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
        made = create_memory(sizes_N.tolist())
    offers = mesh.gather((host, astuple(made[1]) if made else None))
    given = next(offer for name, offer in offers if name == host)
    handle = MemoryHandle(*given) if given else None
    descriptor = made[0] if made else None
    if made and handle != made[1]:
        os.close(made[0])  # the first rank's is taken; this one never held a page
        descriptor = attach_memory(handle) if handle else None
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


@dataclass(frozen=True, slots=True)
class MemoryHandle:
    """Facts with which another process of the machine finds the memory."""

    pid: int
    descriptor: int
    name: str


class NodeMemory(Files):
    """Files whose bytes are kept, by whichever rank reads one first, for every rank of the node.

    The memory is a file without a name (memfd_create), which the system frees when the last
    process that has it open is gone, however that ended. Bytes are written before their mark, both
    by system calls, so that an image marked as kept is whole; two ranks that read the same file
    at once write the same. `share` is as in `InMemory`.
    """

    def __init__(
        self,
        dataset: Path,
        records: Sequence[Record],
        sizes: Sequence[int],
        descriptor: int,
        share: float = 1.0,
    ) -> None:
        """Take over `descriptor`; `sizes` are the bytes of all images, the same on all ranks."""
        super().__init__(dataset, records)
        self.share = share
        self._starts = list(accumulate(sizes, initial=len(sizes)))  # the marks lie first
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def read(self, index: int) -> bytes:
        """Return an image's encoded bytes. Raises UserError when the file cannot be read."""
        start, end = self._starts[index : index + 2]
        if os.pread(self._descriptor, 1, index) == b"\1":
            return os.pread(self._descriptor, end - start, start)
        data = super().read(index)
        wanted = len(data) == end - start and rank_in_memory(index) < self.share
        # A write is cut short only where there is no memory left: then nothing is marked.
        if wanted and os.pwrite(self._descriptor, data, start) == len(data):
            os.pwrite(self._descriptor, b"\1", index)
        return data

    def offer(self) -> tuple[int, MemoryHandle]:
        """Return another descriptor of this memory, and its handle."""
        descriptor = os.dup(self._descriptor)
        link = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        name = link.removeprefix("/memfd:").removesuffix(" (deleted)")
        return descriptor, MemoryHandle(os.getpid(), descriptor, name)


def create_memory(sizes: Sequence[int]) -> tuple[int, MemoryHandle] | None:
    """Return a descriptor of new, empty memory and its handle; None where there is none."""
    if not hasattr(os, "memfd_create"):
        return None
    name = f"skindx-{secrets.token_hex(8)}"
    try:
        descriptor = os.memfd_create(name)
        os.truncate(descriptor, len(sizes) + sum(sizes))  # takes no memory yet
    except OSError:
        return None
    return descriptor, MemoryHandle(os.getpid(), descriptor, name)


def attach_memory(handle: MemoryHandle) -> int | None:
    """Return a descriptor of another process's memory; None when it cannot be reached."""
    path = Path(f"/proc/{handle.pid}/fd/{handle.descriptor}")
    try:
        # In another container the same number is another process: the name shows it.
        if str(path.readlink()) != f"/memfd:{handle.name} (deleted)":
            return None
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
