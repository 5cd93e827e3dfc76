"""Wide linear layers split by outputs inside a data-parallel network (Krizhevsky 2014).

One weird trick for parallelizing convolutional neural networks, arXiv 1404.5997, section 4, scheme
(a): every rank gathers the whole batch at the border and computes its own outputs of all images;
then the outputs go back to the ranks that the images came from. Schemes (b) and (c) are in
`rounds`. A layer takes and gives the rows of its own rank, so that whatever stands between layers
(dropout, activations) is data-parallel.

With P ranks, B images and b = B / P of them on each, a layer from n to m values sends, a rank and
a step, 2 (P - 1) b (n + m / P) values, half of them in the backward pass; its gradient would be
2 (P - 1) / P n m.
"""

from typing import Any

import torch
from torch import Tensor, nn

from skindx.training.parallel.sharding.communicator import Communicator, Sizes
from skindx.training.parallel.sharding.part import Part, take_part
from skindx.training.parallel.sharding.rounds import Scheme, in_rounds

# b = rows (images) of this rank, B = those of all ranks, c = outputs of this rank, C = all outputs


class _Whole(torch.autograd.Function):
    """This rank's rows in, the rows of all ranks out."""

    @staticmethod
    def forward(ctx: Any, x_b: Tensor, wires: Communicator) -> Tensor:
        ctx.wires, ctx.rows = wires, wires.rows
        return wires.gather_rows(x_b, wires.rows)

    @staticmethod
    def backward(ctx: Any, dx_B: Tensor) -> Any:
        wires: Communicator = ctx.wires
        return wires.sum_rows(dx_B, ctx.rows).mul_(wires.size), None


class _Rows(torch.autograd.Function):
    """This rank's outputs of all rows in, all outputs of its own rows out.

    Ranks weigh their losses so that the mean of their gradients is that of the batch. A split
    weight sees the batch of all ranks and is averaged with no other: its gradient is divided by
    the number of ranks here, and on the way to the layers below multiplied again.
    """

    @staticmethod
    def forward(ctx: Any, y_Bc: Tensor, wires: Communicator, columns: Sizes) -> Tensor:
        ctx.wires, ctx.rows, ctx.columns = wires, wires.rows, columns
        return wires.to_rows(y_Bc, wires.rows, columns)

    @staticmethod
    def backward(ctx: Any, dy_bC: Tensor) -> Any:
        wires: Communicator = ctx.wires
        # And where other groups hold the same, their mean counts each group once.
        return wires.to_columns(dy_bC / wires.size, ctx.rows, ctx.columns), None, None


class SplitLayer(nn.Module):
    """A layer of which each rank computes some outputs; its class is the only thing that is new."""

    parts: dict[str, Part]
    scheme: Scheme

    def forward(self, x_b: Tensor) -> Tensor:
        """Return all outputs of this rank's rows."""
        part, kind = self.parts["weight"], x_b.device.type
        if torch.is_autocast_enabled(kind):
            x_b = x_b.to(torch.get_autocast_dtype(kind))  # half the bytes
        if self.scheme != "a":
            weights = [weight for weight in self.parameters() if weight.requires_grad]
            return in_rounds(
                x_b,
                super().forward,
                part.wires,
                scheme=self.scheme,
                columns=part.sizes,
                weights=weights,
            )
        # The layer's own forward, with the rows of its weight that this rank holds.
        y_Bc = super().forward(_Whole.apply(x_b, part.wires))
        y_bC: Tensor = _Rows.apply(y_Bc, part.wires, part.sizes)
        return y_bC


class SplitLinear(SplitLayer, nn.Linear):
    """A linear layer of which each rank computes some outputs."""


class SplitConv(SplitLayer, nn.Conv2d):
    """A convolution of which each rank computes some channels."""


_SPLIT: dict[type[nn.Module], type[SplitLayer]] = {
    nn.Linear: SplitLinear,
    nn.Conv2d: SplitConv,
}


def split_layer(
    layer: nn.Module, wires: Communicator, peers: tuple[int, ...] = (), scheme: Scheme = "a"
) -> None:
    """Let each rank keep its rows of a layer's weight and bias; names stay the same.

    `peers` hold the same rows: this rank and those in its place in other groups.
    """
    parts = {
        name: Part.even(wires, weight.shape, peers)
        for name, weight in layer.named_parameters(recurse=False)
    }
    take_part(layer, parts)
    layer.scheme = scheme  # type: ignore[assignment]
    layer.__class__ = _SPLIT[type(layer)]


def can_be_split(layer: nn.Module, ranks: int) -> bool:
    """Tell whether a layer's outputs can be shared out: a plain one with an output for each."""
    if type(layer) is nn.Linear:
        return layer.out_features >= ranks
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.out_channels >= ranks
    return False
