"""Exact exchanges that sum bucket after bucket beside backward: hierarchical and multi-color."""

import socket
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.comm.exchange import Exchange
from skindx.comm.fabric import Fabric, GradientBuffer, Transfer, ring_bytes
from skindx.comm.grouping import fixed_buckets
from skindx.comm.hierarchical import HierarchicalSettings
from skindx.comm.multicolor import MulticolorSettings


class Background:
    """Runs calls one after the other, in the order in which they were given.

    When one fails, those after it are not begun: they would wait for ranks that are gone.
    """

    def __init__(self, device: torch.device) -> None:
        """Use a thread on a CPU only: on a GPU a call just queues work for the device."""
        self._thread = ThreadPoolExecutor(1, "exchange") if device.type == "cpu" else None
        self._waiting: list[Future[None]] = []
        self._failed = False

    def do(self, call: Callable[[], None]) -> None:
        """Run `call` after all earlier calls have ended."""
        if self._thread is None:
            call()
        else:
            self._waiting.append(self._thread.submit(self._run, call))

    def _run(self, call: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            call()
        except BaseException:
            self._failed = True
            raise

    def wait(self) -> None:
        """Wait for all calls; an error that one raised is raised here."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.result()

    def close(self) -> None:
        """End the thread."""
        if self._thread:
            self._thread.shutdown(wait=False, cancel_futures=True)


class BucketedExchange(Exchange):
    """Sums buckets of a fixed size, each as soon as backward has made it, one after the other."""

    def __init__(self, bucket_mb: float) -> None:
        self._bucket_mb = bucket_mb

    def attach(self, fabric: Fabric, gradients: GradientBuffer, steps_per_epoch: int) -> None:
        super().attach(fabric, gradients, steps_per_epoch)
        self._groups = fixed_buckets(
            [4 * elements for elements in gradients.sizes], self._bucket_mb
        )
        self._background = Background(fabric.device)

    @abstractmethod
    def sum(self, span: Tensor) -> None:
        """Sum a bucket over all ranks, in place."""

    @property
    def groups(self) -> Sequence[int]:
        return self._groups

    def launch(self, group: int) -> None:
        first = sum(self._groups[:group])
        span = self.gradients.span(first, first + self._groups[group])
        self._background.do(lambda: self._mean(span))

    def _mean(self, span: Tensor) -> None:
        self.sum(span)
        span.div_(self.fabric.world)

    def finish(self) -> bool:
        self._background.wait()
        return True

    def close(self) -> None:
        self._background.close()


class Hierarchical(BucketedExchange):
    """Hierarchical all-reduce (Jia et al. 2018, arXiv 1807.11205, section 3.3), pipelined.

    The link of a node carries 2 (N - 1) / N of the gradient for N nodes, where a ring over all
    P ranks carries 2 (P - 1) / P.
    """

    def __init__(self, settings: HierarchicalSettings) -> None:
        super().__init__(settings.bucket_mb)
        self.settings = settings

    def attach(self, fabric: Fabric, gradients: GradientBuffer, steps_per_epoch: int) -> None:
        """Find the ranks of each node; make a process group per node, and one of first ranks."""
        super().attach(fabric, gradients, steps_per_epoch)
        nodes = nodes_of(self._places(), fabric.world)
        groups = [fabric.subgroup(ranks) for ranks in nodes]
        self._leaders = [ranks[0] for ranks in nodes]
        self._across = fabric.subgroup(self._leaders)
        mine = next(number for number, ranks in enumerate(nodes) if fabric.rank in ranks)
        self._node, self._inside = nodes[mine], groups[mine]
        self._leads = fabric.rank == self._node[0]

    def _places(self) -> list[str]:
        wanted, world = self.settings.ranks_per_node, self.fabric.world
        if wanted != "auto":
            return [str(rank // wanted) for rank in range(world)]
        name = int.from_bytes(sha256(socket.gethostname().encode()).digest()[:7], "big")
        names = torch.tensor([name], device=self.fabric.device).repeat(world, 1)
        dist.all_gather(list(names.unbind()), names[self.fabric.rank].clone())
        return [str(one) for one in names[:, 0].tolist()]

    def sum(self, span: Tensor) -> None:
        pieces = [piece for piece in span.tensor_split(self.settings.chunks) if len(piece)]
        first = self._node[0]
        up = [
            _begun(dist.reduce(piece, first, group=self._inside, async_op=True)) for piece in pieces
        ]
        across = []
        for piece, work in zip(pieces, up, strict=True):
            work.wait()
            if self._leads:
                across.append(_begun(dist.all_reduce(piece, group=self._across, async_op=True)))
        down = []
        for number, piece in enumerate(pieces):
            if self._leads:
                across[number].wait()
            down.append(_begun(dist.broadcast(piece, first, group=self._inside, async_op=True)))
        for work in down:
            work.wait()
        self.fabric.bytes_sent += self._bytes(span.nbytes)

    def _bytes(self, size_bytes: int) -> int:
        """Return what this rank sends, as if the first rank sent to each of its node by itself."""
        if not self._leads:
            return size_bytes
        return ring_bytes(size_bytes, len(self._leaders)) + (len(self._node) - 1) * size_bytes


def nodes_of(places: Sequence[str], world: int) -> list[list[int]]:
    """Return the ranks of each place, in the order of their first ranks."""
    nodes: dict[str, list[int]] = {}
    for rank in range(world):
        nodes.setdefault(places[rank], []).append(rank)
    return list(nodes.values())


def _begun(work: dist.Work | None) -> dist.Work:
    assert work is not None
    return work


@dataclass(frozen=True)
class Tree:
    """One color's tree: `order[0]` is the root, the children of place i are a i + 1 .. a i + a."""

    order: tuple[int, ...]
    arity: int

    def parent(self, place: int) -> int:
        return (place - 1) // self.arity

    def depth(self, place: int) -> int:
        """Return how many edges lie between `place` and the root."""
        depth = 0
        while place:
            place, depth = self.parent(place), depth + 1
        return depth

    @property
    def height(self) -> int:
        """Edges on the longest way to the root."""
        return self.depth(len(self.order) - 1)


@dataclass(frozen=True)
class Edge:
    """One message of a round: a chunk of a color on its way up (summing) or down."""

    color: int
    chunk: int
    way: Literal["up", "down"]
    sender: int
    receiver: int


def color_trees(ranks: int, colors: int) -> list[Tree]:
    """Return `colors` spanning trees of which no rank is an internal node twice.

    Kumar et al. 2017, arXiv 1711.00705, section 3.1. Every tree is a complete one whose first
    places, which have children, are taken by ranks of its own; the arity is the smallest for which
    these are enough. Raises ValueError for more colors than ranks.
    """
    if not 1 <= colors <= ranks:
        raise ValueError(f"{colors} colors need at least {colors} ranks, but there are {ranks}")
    share = ranks // colors
    arity = next(width for width in range(1, ranks + 1) if -(-(ranks - 1) // width) <= share)
    return [
        Tree(tuple((color * share + place) % ranks for place in range(ranks)), max(arity, 2))
        for color in range(colors)
    ]


def rounds(trees: list[Tree], chunks: int) -> list[list[Edge]]:
    """Return which messages are sent at the same time, round after round; the same on every rank.

    A chunk leaves a place one round after its children's have come, and the next chunk follows one
    round behind it, up to the root and down again.
    """
    last = chunks + 2 * max(tree.height for tree in trees) - 1
    result: list[list[Edge]] = [[] for _ in range(last)]
    for color, tree in enumerate(trees):
        for place in range(1, len(tree.order)):
            child, parent = tree.order[place], tree.order[tree.parent(place)]
            depth = tree.depth(place)
            for chunk in range(chunks):
                up, down = chunk + tree.height - depth, chunk + tree.height + depth - 1
                result[up].append(Edge(color, chunk, "up", child, parent))
                result[down].append(Edge(color, chunk, "down", parent, child))
    return result


class Multicolor(BucketedExchange):
    """Multi-color all-reduce (Kumar et al. 2017, arXiv 1711.00705, section 3.1).

    Fewer rounds than a ring's 2 (P - 1), and every rank adds; on one link a node it sends no less
    than a ring.
    """

    def __init__(self, settings: MulticolorSettings) -> None:
        super().__init__(settings.bucket_mb)
        self.settings = settings

    def attach(self, fabric: Fabric, gradients: GradientBuffer, steps_per_epoch: int) -> None:
        """Plan the rounds."""
        super().attach(fabric, gradients, steps_per_epoch)
        trees = color_trees(fabric.world, min(self.settings.colors, fabric.world))
        self._colors = len(trees)
        self._rounds = [
            [edge for edge in edges if fabric.rank in (edge.sender, edge.receiver)]
            for edges in rounds(trees, self.settings.chunks)
        ]

    def sum(self, span: Tensor) -> None:
        pieces = [
            part.tensor_split(self.settings.chunks) for part in span.tensor_split(self._colors)
        ]
        for edges in self._rounds:
            self._round(edges, pieces)

    def _round(self, edges: Sequence[Edge], pieces: Sequence[Sequence[Tensor]]) -> None:
        sends, receives, sums = [], [], []
        for edge in edges:
            piece = pieces[edge.color][edge.chunk]
            if not len(piece):
                continue
            if edge.sender == self.fabric.rank:
                sends.append(Transfer(piece, edge.receiver))
            elif edge.way == "down":
                receives.append(Transfer(piece, edge.sender))
            else:
                part = torch.empty_like(piece)
                receives.append(Transfer(part, edge.sender))
                sums.append((piece, part))
        self.fabric.swap(sends, receives)
        for piece, part in sums:
            piece.add_(part)
