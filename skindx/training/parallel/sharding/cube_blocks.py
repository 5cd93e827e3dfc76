"""Attention and MLPs on cubes of ranks (Bian et al. 2021, arXiv 2105.14450).

A block is two linear layers, and between them what goes by heads or single values. Its input is
laid out for the first product where it enters: ranks along l trade rows for columns. The product
leaves rows (i, l) and columns j, of which each rank goes on with whole images and whole heads; the
second one swaps j and l back, and where the block ends the ranks trade columns for rows again. What
stands between blocks (norms, sums, dropout) is computed by each rank on its own images.

With M rows (images times tokens) in a cube, a block from D to D values sends, beside what its
products send (`cube`), 4 (q - 1) / q^4 M D values a rank and step, half of them in backward.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from skindx.core.startup import light_imports
from skindx.models.classifier.heads import Mlp as MlpHead
from skindx.training.parallel.sharding.communicator import Communicator
from skindx.training.parallel.sharding.cube import Cube, cube_product
from skindx.training.parallel.sharding.cube_part import CubePart, padded
from skindx.training.parallel.sharding.part import PARTS
from skindx.training.parallel.sharding.transformer import WHOLE_VALUES

with light_imports():
    from timm.layers import Attention, Mlp

# b = images of this rank, B = those of q ranks along l, D = values, d = D / q

CUBE = "cube"
"""What a layer on a cube calls its `Place`."""


@dataclass(frozen=True)
class Place:
    """Device of a layer."""

    wires: Communicator
    """Of the whole cube."""
    cube: Cube
    keep: bool
    """Whether parts gathered in forward stay in memory for backward."""
    columns: Callable[[Tensor], Tensor]
    """Takes this rank's columns of what the layer gives from a row of all."""

    def __deepcopy__(self, memo: object) -> Self:
        """A copied layer talks over the same wires."""
        return self


class CubeLinear(nn.Linear):
    """A linear layer of whose weight each rank holds 1 / q^3; its bias is whole."""

    cube: Place

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's part of the product: other rows than those of `x`, and columns."""
        place, kind = self.cube, x.device.type
        weight = self.weight
        if torch.is_autocast_enabled(kind):  # half the bytes
            half = torch.get_autocast_dtype(kind)
            x, weight = x.to(half), weight.to(half)
        shared: Tensor = _Mean.apply(weight, place.wires.size)
        y = cube_product(x.reshape(-1, x.shape[-1]), shared, place.cube, keep=place.keep)
        if self.bias is not None:
            y = y + place.columns(self.bias).to(y.dtype)
        return y.view(*x.shape[:-1], -1)


class _Mean(torch.autograd.Function):
    """A weight that one rank of a cube holds, for losses that are weighed for the mean of all."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient / ctx.ranks, None


class _Traded(torch.autograd.Function):
    """This rank's rows of all columns in, its columns of all rows along l out; or back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wires: Communicator, back: bool) -> Tensor:
        ctx.wires, ctx.back = wires, back
        return _traded(x, wires, back)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return _traded(dy, ctx.wires, not ctx.back), None, None


def _traded(x: Tensor, wires: Communicator, back: bool) -> Tensor:
    q = wires.size
    if back:
        rows, columns = (len(x) // q,) * q, (x.shape[1],) * q
        return wires.to_rows(x, rows, columns)
    rows, columns = (len(x),) * q, (x.shape[1] // q,) * q
    return wires.to_columns(x, rows, columns)


class CubeBlock(nn.Module):
    """Two linear layers with what stands between them."""

    cube: Place

    def forward(self, x_b: Tensor, *args: Any, **options: Any) -> Tensor:
        """Return the outputs of this rank's images, which may be fewer than another rank's."""
        along, own = self.cube.cube.l, len(x_b)
        most = max(self.cube.wires.rows)
        if own < most:
            x_b = torch.cat([x_b, x_b.new_zeros(most - own, *x_b.shape[1:])])
        kind = x_b.device.type
        if torch.is_autocast_enabled(kind):
            x_b = x_b.to(torch.get_autocast_dtype(kind))
        x: Tensor = _Traded.apply(x_b.flatten(0, -2), along, False)
        x_B = x.view(most * along.size, *x_b.shape[1:-1], -1)
        y_B = super().forward(x_B, *args, **options)
        y: Tensor = _Traded.apply(y_B.flatten(0, -2), along, True)
        return y.view(most, *x_b.shape[1:-1], -1)[:own, ..., : self.second.out_features]

    @property
    def second(self) -> nn.Linear:
        """The layer that ends the block."""
        layer: Any = getattr(self, "proj", None) or getattr(self, "fc2", None)
        assert isinstance(layer, nn.Linear)
        return layer


class CubeAttention(CubeBlock, Attention):  # type: ignore[misc]
    """Attention of which each rank computes some heads of some images."""


class CubeMlp(CubeBlock, Mlp):  # type: ignore[misc]
    """An MLP of which each rank computes some hidden units of some rows."""


class CubeMlpHead(CubeBlock, MlpHead):  # type: ignore[misc]
    """An MLP head of which each rank computes some hidden units of some images."""


_ON_CUBES: dict[type[nn.Module], type[nn.Module]] = {
    Attention: CubeAttention,
    Mlp: CubeMlp,
    MlpHead: CubeMlpHead,
}


def can_be_split(block: nn.Module, q: int) -> bool:
    """Tell whether a block has equal parts for q x q x q ranks, and nothing that needs rows whole.

    What it gives is filled up with zeros where it does not divide, as the classes of a head.
    """
    own: Any = block
    if type(block) is Attention:
        plain = own.gate is None and type(own.norm) is nn.Identity
        return plain and _is_plain(own.qkv, own.proj, q) and own.num_heads % q == 0
    if type(block) is Mlp:
        return type(own.norm) is nn.Identity and _is_plain(own.fc1, own.fc2, q)
    return type(block) is MlpHead and _is_plain(own.fc1, own.fc2, q)


def _is_plain(first: nn.Module, second: nn.Module, q: int) -> bool:
    if type(first) is not nn.Linear or type(second) is not nn.Linear:
        return False
    return first.in_features % q == 0 and second.in_features % q**2 == 0


def split_block(
    block: nn.Module, wires: Communicator, cube: Cube, peers: tuple[int, ...], *, keep: bool
) -> None:
    """Let each rank keep its part of a block's two weights; names stay the same."""
    own: Any = block
    if isinstance(block, Attention):
        first, second, times = own.qkv, own.proj, 3
        setattr(block, WHOLE_VALUES, {"num_heads": own.num_heads, "attn_dim": own.attn_dim})
        own.num_heads //= cube.i.size
        own.attn_dim //= cube.i.size
    else:
        first, second, times = own.fc1, own.fc2, 1
    _split(first, wires, cube, peers, times, swapped=False, keep=keep)
    _split(second, wires, cube.next, peers, 1, swapped=True, keep=keep)
    setattr(block, CUBE, Place(wires, cube, keep, torch.clone))
    block.__class__ = _ON_CUBES[type(block)]


def _split(
    layer: nn.Linear,
    wires: Communicator,
    cube: Cube,
    peers: tuple[int, ...],
    times: int,
    *,
    swapped: bool,
    keep: bool,
) -> None:
    part = CubePart.of(wires, layer.weight.shape, cube.i.size, times, peers, swapped=swapped)
    weight = part.own(layer.weight.detach())
    layer.weight = nn.Parameter(weight, layer.weight.requires_grad)
    setattr(layer, PARTS, {"weight": part})
    order_K, width = part.order, len(part.order) // cube.i.size
    own_k = order_K[cube.j.rank * width : (cube.j.rank + 1) * width]

    def columns(whole_K: Tensor) -> Tensor:
        more = functional.pad(whole_K, (0, padded(len(whole_K), cube.i.size) - len(whole_K)))
        return more[own_k]

    setattr(layer, CUBE, Place(wires, cube, keep, columns))
    layer.__class__ = CubeLinear


def cubes_of(net: nn.Module) -> list[Cube]:
    """Return the cubes that a network's layers are on."""
    found = (getattr(layer, CUBE, None) for layer in net.modules())
    return list({id(place.cube.i): place.cube for place in found if place}.values())
