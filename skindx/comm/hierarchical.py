"""Hierarchical: sum inside each node, then across nodes, then send back, chunk after chunk."""

import socket
from collections.abc import Sequence
from typing import Annotated, Literal

import torch.distributed as dist
from pydantic import Field
from torch import Tensor

from skindx.comm.bucketed import BucketedExchange
from skindx.comm.exchange import ExchangeSettings
from skindx.comm.fabric import Fabric, ring_bytes
from skindx.comm.gradients import Gradients


class HierarchicalSettings(ExchangeSettings):
    """Three phases: inside the nodes, across their first ranks, inside the nodes."""

    kind: Literal["hierarchical"] = "hierarchical"
    ranks_per_node: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    """Neighbouring ranks that share a network link; auto: those of one host name."""
    chunks: int = Field(8, ge=1, le=4096)
    """Pieces of a bucket that follow one another through the phases; without them a ring wins."""
    bucket_mb: float = Field(25, gt=0, le=100_000)
    """Tensors are sent together, once backward has made so much."""


class Hierarchical(BucketedExchange):
    """Hierarchical all-reduce (Jia et al. 2018, arXiv 1807.11205, section 3.3), pipelined.

    The link of a node carries 2 (N - 1) / N of the gradient for N nodes, where a ring over all
    P ranks carries 2 (P - 1) / P.
    """

    def __init__(self, settings: HierarchicalSettings) -> None:
        super().__init__(settings.bucket_mb)
        self.settings = settings

    def attach(self, fabric: Fabric, gradients: Gradients, steps_per_epoch: int) -> None:
        """Find out who is on which node, and make a process group of each and of their firsts."""
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
        names: list[str] = [""] * world
        dist.all_gather_object(names, socket.gethostname())
        return names

    def sum(self, span: Tensor) -> None:
        """Sum a bucket, chunk after chunk."""
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
