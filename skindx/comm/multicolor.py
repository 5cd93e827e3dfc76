"""Multi-color: parts of the gradient are summed along different trees, all at once."""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from skindx.buckets import fixed_buckets
from skindx.comm.background import Background
from skindx.comm.exchange import Exchange, ExchangeSettings
from skindx.comm.fabric import Fabric, Transfer
from skindx.comm.gradients import Gradients
from skindx.comm.trees import Edge, color_trees, rounds


class MulticolorSettings(ExchangeSettings):
    """Trees with disjoint internal nodes, one for each part of the gradient."""

    kind: Literal["multicolor"] = "multicolor"
    colors: int = Field(2, ge=1)
    """Parts and trees; at most as many as ranks are used."""
    chunks: int = Field(4, ge=1)
    """Pieces of a part that follow one another along its tree."""
    bucket_mb: float = Field(25, gt=0)
    """Tensors are sent together, once backward has made so much."""


class Multicolor(Exchange):
    """Multi-color all-reduce (Kumar et al. 2017, arXiv 1711.00705, section 3.1).

    Fewer rounds than a ring's 2 (P - 1), and every rank adds; on one link a node it sends no less
    than a ring.
    """

    def __init__(self, settings: MulticolorSettings) -> None:
        self.settings = settings

    def attach(self, fabric: Fabric, gradients: Gradients, steps_per_epoch: int) -> None:
        """Plan the rounds."""
        super().attach(fabric, gradients, steps_per_epoch)
        trees = color_trees(fabric.world, min(self.settings.colors, fabric.world))
        self._colors = len(trees)
        self._rounds = [
            [each for each in edges if fabric.rank in (each.sender, each.receiver)]
            for edges in rounds(trees, self.settings.chunks)
        ]
        sizes = [4 * each for each in gradients.sizes]
        self._groups = fixed_buckets(sizes, self.settings.bucket_mb)
        self._background = Background(fabric.device)

    @property
    def groups(self) -> Sequence[int]:
        """Buckets of a fixed size."""
        return self._groups

    def launch(self, group: int) -> None:
        """Begin with a bucket, while backward goes on."""
        first = sum(self._groups[:group])
        span = self.gradients.span(first, first + self._groups[group])
        self._background.do(lambda: self._sum(span))

    def _sum(self, span: Tensor) -> None:
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

    def finish(self) -> bool:
        """Wait for all buckets, and divide."""
        self._background.wait()
        self.gradients.flat.div_(self.fabric.world)
        return True

    def close(self) -> None:
        """End the thread."""
        self._background.close()
