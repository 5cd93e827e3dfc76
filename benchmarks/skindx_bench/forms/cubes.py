"""Products on a cube of q x q x q ranks (Bian et al. 2021, arXiv 2105.14450, algorithms 1 and 2).

Y = X W^T with X of M x N and W of K x N. Rank (i, j, l) holds rows (i, j) and columns l of X, rows
(j, i) and columns l of W, and gets rows (i, l) and columns j of Y: what the next product takes on
the same cube with j and l in each other's place. All are of 1 / q^3 of the whole.

A step of forward and backward sends 2 (q - 1) / q^3 (M N + K N + M K) values a rank where what was
gathered is kept for the backward pass, and (q - 1) / q^3 (M N + K N) more where it is gathered
again; kept are (M N + K N) / q^2 values, or 1 / q^3 of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from skindx.core.startup import light_imports
from skindx.models.classifier.heads import Mlp as MlpHead
from skindx.training.parallel.mesh import Mesh, ProcessGroup, Watch
from skindx_bench.forms.tensor3d import Tensor3dSettings
from skindx_methods.split_layers.communicator import Communicator, Sizes
from skindx_methods.split_layers.parts import Part, parts_of, take_part
from skindx_methods.split_layers.whole import WHOLE_VALUES, SplitLayers, split_and_attach

PAPER = (
    "3-D tensor parallelism | Bian et al., Maximizing Parallelism in Distributed Training for "
    "Huge Neural Networks, arXiv 2105.14450, 2021 | benchmarks/tests/test_tensor3d.py | "
    "docs/measured/parallel.json"
)


@dataclass(frozen=True)
class Cube:
    """The three axes of a cube, as one rank sees them."""

    i: Communicator
    j: Communicator
    l: Communicator  # noqa: E741 (the paper's name)

    @classmethod
    def of_all(cls, timeout: timedelta) -> Self:
        """Make the groups of all axes of the cube that all ranks are; each of them calls this."""
        q = round(dist.get_world_size() ** (1 / 3))
        assert q**3 == dist.get_world_size()
        place = place_of(dist.get_rank(), q)
        axes = []
        for axis, step in enumerate((q**2, q, 1)):
            start = dist.get_rank() - place[axis] * step
            ranks = [start + step * number for number in range(q)]
            made = dist.new_group(ranks, timeout=timeout, use_local_synchronization=True)
            axes.append(Communicator(ProcessGroup(place[axis], q, cast(dist.ProcessGroup, made))))
        return cls(*axes)

    @property
    def next(self) -> "Cube":
        """The cube of the next product."""
        return Cube(self.i, self.l, self.j)

    @property
    def bytes_sent(self) -> int:
        """By this rank, along all axes."""
        return self.i.bytes_sent + self.j.bytes_sent + self.l.bytes_sent

    def local_input(self, x_MN: Tensor) -> Tensor:
        """Return what this rank holds of X."""
        q, (rows, columns) = self.i.size, x_MN.shape
        block = self.i.rank * q + self.j.rank
        return _block(x_MN, rows // q**2, block, columns // q, self.l.rank)

    def local_weight(self, w_KN: Tensor) -> Tensor:
        """Return what this rank holds of W."""
        q, (rows, columns) = self.i.size, w_KN.shape
        block = self.j.rank * q + self.i.rank
        return _block(w_KN, rows // q**2, block, columns // q, self.l.rank)


def place_of(rank: int, q: int) -> tuple[int, int, int]:
    """Return i, j and l of a rank of a cube."""
    return rank // q**2, rank // q % q, rank % q


def _block(whole: Tensor, height: int, row: int, width: int, column: int) -> Tensor:
    rows = whole[row * height : (row + 1) * height]
    return rows[:, column * width : (column + 1) * width].clone()


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, cube: Cube, keep: bool) -> Tensor:
        x_all, weight_all = _gathered(cube.j, x), _gathered(cube.i, weight)
        ctx.cube, ctx.keep = cube, keep
        ctx.save_for_backward(*((x_all, weight_all) if keep else (x, weight)))
        return _summed(cube.l, x_all @ weight_all.T)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        cube: Cube = ctx.cube
        x, weight = ctx.saved_tensors
        if not ctx.keep:
            x, weight = _gathered(cube.j, x), _gathered(cube.i, weight)
        dy_all = _gathered(cube.l, dy)
        dx = _summed(cube.j, dy_all @ weight)
        return dx, _summed(cube.i, dy_all.T @ x), None, None


def _gathered(axis: Communicator, part: Tensor) -> Tensor:
    return axis.gather_rows(part, (len(part),) * axis.size)


def _summed(axis: Communicator, part: Tensor) -> Tensor:
    rows: Sizes = (len(part) // axis.size,) * axis.size
    return axis.sum_rows(part, rows)


def cube_product(x: Tensor, weight: Tensor, cube: Cube, *, keep: bool) -> Tensor:
    """Return this rank's part of X W^T; with `keep` the backward pass gathers less."""
    y: Tensor = _Product.apply(x, weight, cube, keep)
    return y


@dataclass(frozen=True)
class CubePart(Part):
    """Rows (j, i) and columns l of K x N, on the cube of the product that it is in.

    Rows beyond the last are zeros, which no gradient reaches.
    """

    cube: Cube
    swapped: bool
    """It is in the second of two products, whose cube has j and l in each other's place."""
    keep: bool
    """Whether parts gathered in forward stay in memory for backward."""
    order: Tensor
    """All rows, those of a block of columns of the product after the other."""

    def __deepcopy__(self, memo: object) -> Self:
        """A copied layer talks over the same links."""
        return self

    def _block(self, rank: int) -> tuple[Tensor, slice, Tensor]:
        """Return a rank's rows, its columns, and which of the rows are there."""
        q = self.cube.i.size
        i, j, l = place_of(rank, q)  # noqa: E741 (the paper's name)
        if self.swapped:
            j, l = l, j  # noqa: E741
        height, width = len(self.order) // q**2, self.shape[1] // q
        block = j * q + i
        rows_k = self.order[block * height : (block + 1) * height]
        return rows_k, slice(l * width, (l + 1) * width), rows_k < self.shape[0]

    def local(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole weight, or of what an optimizer keeps of it."""
        rows_k, columns, there_k = self._block(self.links.rank)
        part = whole.new_zeros(len(rows_k), columns.stop - columns.start)
        part[there_k] = whole[rows_k[there_k].to(whole.device), columns]
        return part

    def whole(self, local: Tensor) -> Tensor:
        """Return the whole of this rank's part; every rank of the cube calls this."""
        parts = self.links.gather_parts(local, [local.numel()] * self.links.size)
        whole = local.new_empty(self.shape)
        for rank, part in enumerate(parts):
            rows_k, columns, there_k = self._block(rank)
            whole[rows_k[there_k].to(whole.device), columns] = part.view(local.shape)[there_k]
        return whole

    def columns(self, row_K: Tensor) -> Tensor:
        """Return this rank's columns of a row of all that the layer gives."""
        q, j = self.cube.j.size, self.cube.j.rank
        more = functional.pad(row_K, (0, len(self.order) - len(row_K)))
        return more[self.order.chunk(q)[j]]


# Attention and MLPs on cubes of ranks (Bian et al. 2021, arXiv 2105.14450).
#
# A block is two linear layers, and between them what goes by heads or single values. Its input is
# laid out for the first product where it enters: ranks along l trade rows for columns. The product
# leaves rows (i, l) and columns j, of which each rank goes on with whole images and whole heads;
# the second one swaps j and l back, and where the block ends the ranks trade columns for rows
# again. What stands between blocks (norms, sums, dropout) is computed by each rank on its own
# images.
#
# With M rows (images times tokens) in a cube, a block from D to D values sends, beside what its
# products send (`cube`), 4 (q - 1) / q^4 M D values a rank and step, half of them in backward.

with light_imports():
    from timm.layers import Attention, Mlp

# b = images of this rank, B = those of q ranks along l, D = values, d = D / q


class CubeLinear(nn.Linear):
    """A linear layer of whose weight each rank holds 1 / q^3; its bias is whole."""

    whole_class = nn.Linear
    parts: dict[str, CubePart]

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's part of the product: other rows than those of `x`, and columns."""
        part, kind = self.parts["weight"], x.device.type
        weight = self.weight
        if torch.is_autocast_enabled(kind):  # half the bytes
            half = torch.get_autocast_dtype(kind)
            x, weight = x.to(half), weight.to(half)
        shared: Tensor = _Mean.apply(weight, part.links.size)
        y = cube_product(x.reshape(-1, x.shape[-1]), shared, part.cube, keep=part.keep)
        if self.bias is not None:
            y = y + part.columns(self.bias).to(y.dtype)
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
    def forward(ctx: Any, x: Tensor, links: Communicator, back: bool) -> Tensor:
        ctx.links, ctx.back = links, back
        return _traded(x, links, back)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return _traded(dy, ctx.links, not ctx.back), None, None


def _traded(x: Tensor, links: Communicator, back: bool) -> Tensor:
    q = links.size
    if back:
        rows, columns = (len(x) // q,) * q, (x.shape[1],) * q
        return links.to_rows(x, rows, columns)
    rows, columns = (len(x),) * q, (x.shape[1] // q,) * q
    return links.to_columns(x, rows, columns)


class CubeBlock(nn.Module):
    """Two linear layers with what stands between them."""

    def forward(self, x_b: Tensor, *args: Any, **options: Any) -> Tensor:
        """Return the outputs of this rank's images, which may be fewer than another rank's."""
        part = _ends(self)[1].parts["weight"]
        along, count, most = part.cube.j, len(x_b), max(part.links.rows)
        if count < most:
            x_b = torch.cat([x_b, x_b.new_zeros(most - count, *x_b.shape[1:])])
        kind = x_b.device.type
        if torch.is_autocast_enabled(kind):
            x_b = x_b.to(torch.get_autocast_dtype(kind))
        x: Tensor = _Traded.apply(x_b.flatten(0, -2), along, False)
        x_B = x.view(most * along.size, *x_b.shape[1:-1], -1)
        y_B = super().forward(x_B, *args, **options)
        y: Tensor = _Traded.apply(y_B.flatten(0, -2), along, True)
        return y.view(most, *x_b.shape[1:-1], -1)[:count, ..., : part.shape[0]]


class CubeAttention(CubeBlock, Attention):  # type: ignore[misc]
    """Attention of which each rank computes some heads of some images."""

    whole_class = Attention


class CubeMlp(CubeBlock, Mlp):  # type: ignore[misc]
    """An MLP of which each rank computes some hidden units of some rows."""

    whole_class = Mlp


class CubeMlpHead(CubeBlock, MlpHead):  # type: ignore[misc]
    """An MLP head of which each rank computes some hidden units of some images."""

    whole_class = MlpHead


_ON_CUBES: dict[type[nn.Module], type[nn.Module]] = {
    Attention: CubeAttention,
    Mlp: CubeMlp,
    MlpHead: CubeMlpHead,
}


def _ends(block: Any) -> tuple[Any, Any]:
    """Return the two linear layers of a block."""
    return (block.qkv, block.proj) if isinstance(block, Attention) else (block.fc1, block.fc2)


def can_be_split(block: nn.Module, q: int) -> bool:
    """Tell whether a block has equal parts for q x q x q ranks, and nothing that needs rows whole.

    What it gives is filled up with zeros where it does not divide, as the classes of a head.
    """
    layer: Any = block
    between = getattr(layer, "norm", nn.Identity())
    if type(block) not in _ON_CUBES or type(between) is not nn.Identity:
        return False
    if type(block) is Attention and (layer.gate is not None or layer.num_heads % q):
        return False
    first, second = _ends(layer)
    if type(first) is not nn.Linear or type(second) is not nn.Linear:
        return False
    return first.in_features % q == 0 and second.in_features % q**2 == 0


def split_block(block: nn.Module, links: Communicator, cube: Cube, *, keep: bool) -> None:
    """Let each rank keep its part of a block's two weights; names stay the same."""
    layer: Any = block
    q, times = cube.i.size, 1
    first, second = _ends(layer)
    if isinstance(block, Attention):
        times = 3
        setattr(block, WHOLE_VALUES, {"num_heads": layer.num_heads, "attn_dim": layer.attn_dim})
        layer.num_heads //= q
        layer.attn_dim //= q
    for linear, count, on, swapped in ((first, times, cube, False), (second, 1, cube.next, True)):
        shape = linear.weight.shape
        order = _order(shape[0], q, count)
        part = CubePart(links, shape, 0, (), on, swapped, keep, order)
        take_part(linear, {"weight": part})
        linear.__class__ = CubeLinear
    block.__class__ = _ON_CUBES[type(block)]


def _order(rows: int, q: int, times: int) -> Tensor:
    """Return the rows of a weight whose outputs are `times` blocks that all go by heads."""
    height = -(-rows // q**2) * q**2 // times
    starts = torch.arange(times)[:, None] * height
    return torch.cat([(starts + block_k).flatten() for block_k in torch.arange(height).chunk(q)])


class CubeLayers(SplitLayers):
    """Blocks of a network are on cubes of ranks."""

    def watch(self, around: Watch | None, module: nn.Module) -> None:
        """Let something stand round all that the ranks of a cube send each other."""
        super().watch(around, module)
        for part in parts_of(module).values():
            assert isinstance(part, CubePart)
            for links in (part.cube.i, part.cube.j, part.cube.l):
                links.watch = around


def split_network(
    net: nn.Module, mesh: Mesh, image: Tensor, batch: int, say: Callable[[str], None]
) -> None:
    """Put all blocks that have equal parts on a cube, as the registry's `change_network`."""
    settings = mesh.settings.parallel
    assert isinstance(settings, Tensor3dSettings)

    def split() -> list[str]:
        blocks = dict(net.named_modules())
        names = [name for name in blocks if can_be_split(blocks[name], settings.side)]
        cube = Cube.of_all(timedelta(seconds=mesh.settings.timeout_s))
        links = Communicator(mesh.tensor)
        for name in names:
            split_block(blocks[name], links, cube, keep=not settings.gather_again)
        return names

    split_and_attach(net, mesh, split, say, CubeLayers)
