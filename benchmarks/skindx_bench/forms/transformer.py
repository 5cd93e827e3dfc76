"""Attention and MLPs of timm's transformers, split over ranks.

Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053, section 3, figure 3): a rank has some columns
of the first product and the same rows of the second, attention by whole heads, so that one
all-reduce a block and direction is enough. All ranks of a group see the images of the whole group:
they are gathered where they enter the network, and each rank goes on with the outputs of its own.

With B images of T tokens of D values in a group of P ranks, attention sends, a rank and a step,
4 (P - 1) / P B T D values, half of them in the backward pass, and so does an MLP.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.startup import light_imports
from skindx.training.gradient_sync import GradientSync
from skindx.training.methods.sharding.communicator import Communicator, Sizes
from skindx.training.methods.sharding.parts import (
    Part,
    exchange_beside,
    parts_of,
    square_of,
    take_part,
)
from skindx.training.methods.sharding.whole import WHOLE_VALUES, SplitLayers, split_and_attach
from skindx.training.parallel.mesh import Mesh, sizes_of

with light_imports():
    from timm.layers import Attention, Mlp

# b = images of this rank, B = those of all ranks of the group, T = tokens, D = values


class _Copied(torch.autograd.Function):
    """The same tensor on all ranks in; backward adds up what each rank's part gives (f)."""

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, links: Communicator) -> Tensor:
        ctx.links = links
        return x_BTD.view_as(x_BTD)

    @staticmethod
    def backward(ctx: Any, dx_BTD: Tensor) -> Any:
        return ctx.links.sum_all(dx_BTD), None


class _Summed(torch.autograd.Function):
    """Each rank's part of a sum in, the sum out (g)."""

    @staticmethod
    def forward(ctx: Any, y_BTD: Tensor, links: Communicator) -> Tensor:
        return links.sum_all(y_BTD)

    @staticmethod
    def backward(ctx: Any, dy_BTD: Tensor) -> Any:
        return dy_BTD, None


class _OwnRows(torch.autograd.Function):
    """The outputs of all images of a group in, those of this rank's out.

    Every rank's gradient is that of all images of its group, once on each of its ranks: the mean
    over all ranks would count them so many times.
    """

    @staticmethod
    def forward(ctx: Any, y_B: Tensor, links: Communicator) -> Tensor:
        ctx.links, ctx.rows = links, links.rows
        start = sum(links.rows[: links.rank])
        return y_B[start : start + links.rows[links.rank]].clone()

    @staticmethod
    def backward(ctx: Any, dy_b: Tensor) -> Any:
        links: Communicator = ctx.links
        return links.gather_rows(dy_b / links.size, ctx.rows), None


def enter(images_b: Tensor, links: Communicator) -> Tensor:
    """Return the images of all ranks of the group; from here all draw the same random numbers."""
    links.draw_alike(images_b.device)
    return links.gather_rows(images_b, links.rows)


def leave(outputs_B: Tensor, links: Communicator) -> Tensor:
    """Return the outputs of this rank's images."""
    outputs_b: Tensor = _OwnRows.apply(outputs_B, links)
    return outputs_b


class ColumnLinear(nn.Linear):
    """A linear layer of which each rank computes some outputs."""

    whole_class = nn.Linear
    parts: dict[str, Part]

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's outputs."""
        copied = _Copied.apply(x, self.parts["weight"].links)
        return functional.linear(copied, self.weight, self.bias)


class RowLinear(nn.Linear):
    """A linear layer of which each rank has some inputs; all get the sum. The bias is whole."""

    whole_class = nn.Linear
    parts: dict[str, Part]

    def forward(self, x: Tensor) -> Tensor:
        """Return all outputs."""
        part = functional.linear(x, self.weight)
        y: Tensor = _Summed.apply(part, self.parts["weight"].links)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def can_be_split(block: nn.Module, ranks: int) -> bool:
    """Tell whether a block is one of timm's plain ones with an equal part for each rank.

    Equal, since the ranks of a group take the mean of equal gradients in equal places: then what
    they hold alike stays alike to the bit.
    Dropout or a norm between the two products would see parts: such a block stays whole.
    """
    if type(block) is Attention:
        return _is_plain_attention(block, ranks)
    return type(block) is Mlp and _is_plain_mlp(block, ranks)


def _is_plain_attention(block: Any, ranks: int) -> bool:
    between = (block.q_norm, block.k_norm, block.norm)
    plain = _are_plain(block.qkv, block.proj) and block.gate is None and block.attn_drop.p == 0
    return plain and block.num_heads % ranks == 0 and all(map(_is_nothing, between))


def _is_plain_mlp(block: Any, ranks: int) -> bool:
    plain = _are_plain(block.fc1, block.fc2) and block.drop1.p == 0 and _is_nothing(block.norm)
    return plain and block.fc1.out_features % ranks == 0


def _is_nothing(layer: nn.Module) -> bool:
    return type(layer) is nn.Identity


def _are_plain(*layers: nn.Module) -> bool:
    return all(type(layer) is nn.Linear for layer in layers)


def split_block(block: nn.Module, links: Communicator) -> None:
    """Let each rank keep its heads, or hidden units; names stay the same."""
    if isinstance(block, Attention):
        _split_attention(block, links)
    else:
        _split_mlp(block, links)


def _split_mlp(block: Any, links: Communicator) -> None:
    split_pair(block.fc1, block.fc2, sizes_of(block.fc1.out_features, links.size), 1, links)


def _split_attention(block: Any, links: Communicator) -> None:
    heads = sizes_of(block.num_heads, links.size)
    setattr(block, WHOLE_VALUES, {"num_heads": block.num_heads, "attn_dim": block.attn_dim})
    split_pair(block.qkv, block.proj, tuple(n * block.head_dim for n in heads), 3, links)
    block.num_heads = heads[links.rank]
    block.attn_dim = block.num_heads * block.head_dim


def split_pair(
    first: nn.Linear, second: nn.Linear, widths: Sizes, times: int, links: Communicator
) -> None:
    """Split the outputs of `first`, which are `times` blocks of `widths`, and `second`'s inputs."""
    total = sum(widths)
    ends = [sum(widths[: rank + 1]) for rank in range(len(widths))]
    one = [(end - width, end) for end, width in zip(ends, widths, strict=True)]
    rows = tuple(
        tuple((total * time + start, total * time + end) for time in range(times))
        for start, end in one
    )
    take_part(
        first,
        {
            name: Part(links, weight.shape, 0, rows)
            for name, weight in first.named_parameters(recurse=False)
        },
    )
    columns = tuple((span,) for span in one)
    take_part(second, {"weight": Part(links, second.weight.shape, 1, columns)})
    first.__class__, second.__class__ = ColumnLinear, RowLinear


class GroupGradientSync(GradientSync):
    """Ranks with the same parts take the mean of all gradients, which count in the norm."""

    def __init__(
        self,
        module: nn.Module,
        settings: ExchangeSettings,
        mesh: Mesh,
        steps_per_epoch: int,
        say: Callable[[str], None],
    ) -> None:
        """Get the exchange ready; every rank calls this."""
        exchange, parts = exchange_beside(settings), parts_of(module)
        super().__init__(module, exchange, mesh, steps_per_epoch, say, ranks=mesh.replicas)
        self._links = next(iter(parts.values())).links
        trained = [item for item in module.named_parameters() if item[1].requires_grad]
        self._split = [weight for name, weight in trained if name in parts]
        self._shared = [weight for name, weight in trained if name not in parts]

    def _finish(self) -> float | None:
        """Return a norm that is the same to the bit on all ranks, and so is what is clipped."""
        bad = math.nan if self.reducer.finish() is None else 0.0
        square = float(self._links.sum(square_of(self._split) + bad))
        return math.sqrt(square + float(square_of(self._shared))) if math.isfinite(square) else None


class GroupLayers(SplitLayers):
    """Every rank of a group computes its parts of the layers for the images of all of them."""

    def run_forward(self, inputs: Tensor, network: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the outputs of this rank's images."""
        return leave(network(enter(inputs, self.links)), self.links)

    def gradient_sync(
        self,
        settings: ExchangeSettings,
        module: nn.Module,
        mesh: Mesh,
        steps_per_epoch: int,
        say: Callable[[str], None],
    ) -> GradientSync:
        """Return the exchange among the ranks that hold the same."""
        return GroupGradientSync(module, settings, mesh, steps_per_epoch, say)


def split_network(
    net: nn.Module, mesh: Mesh, image: Tensor, batch: int, say: Callable[[str], None]
) -> None:
    """Split all plain blocks over the ranks of a group, as the registry's `change_network`."""

    def split() -> list[str]:
        links, blocks = Communicator(mesh.tensor), dict(net.named_modules())
        names = [name for name in blocks if can_be_split(blocks[name], mesh.tensor.size)]
        for name in names:
            split_block(blocks[name], links)
        return names

    if mesh.tensor.size > 1:
        split_and_attach(net, mesh, split, say, GroupLayers)
