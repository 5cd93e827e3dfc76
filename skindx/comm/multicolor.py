"""Multi-color: parts of the gradient are summed along different trees, all at once."""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from skindx.comm.bucketed import BucketedExchange
from skindx.comm.exchange import ExchangeSettings
from skindx.comm.fabric import Fabric, Transfer
from skindx.comm.gradients import Gradients
from skindx.comm.trees import Edge, color_trees, rounds


class MulticolorSettings(ExchangeSettings):
    """Trees with disjoint internal nodes, one for each part of the gradient."""

    kind: Literal["multicolor"] = "multicolor"
    colors: int = Field(2, ge=1, le=4096)
    """Parts and trees; at most as many as ranks are used."""
    chunks: int = Field(4, ge=1, le=4096)
    """Pieces of a part that follow one another along its tree."""
    bucket_mb: float = Field(25, gt=0, le=100_000)
    """Tensors are sent together, once backward has made so much."""


class Multicolor(BucketedExchange):
    """Multi-color all-reduce (Kumar et al. 2017, arXiv 1711.00705, section 3.1).

    Fewer rounds than a ring's 2 (P - 1), and every rank adds; on one link a node it sends no less
    than a ring.
    """

    def __init__(self, settings: MulticolorSettings) -> None:
        super().__init__(settings.bucket_mb)
        self.settings = settings

    def attach(self, fabric: Fabric, gradients: Gradients, steps_per_epoch: int) -> None:
        """Plan the rounds."""
        super().attach(fabric, gradients, steps_per_epoch)
        trees = color_trees(fabric.world, min(self.settings.colors, fabric.world))
        self._colors = len(trees)
        self._rounds = [
            [edge for edge in edges if fabric.rank in (edge.sender, edge.receiver)]
            for edges in rounds(trees, self.settings.chunks)
        ]

    def sum(self, span: Tensor) -> None:
        """Sum a bucket, round after round."""
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
