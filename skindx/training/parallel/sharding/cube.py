"""Products on a cube of q x q x q ranks (Bian et al. 2021, arXiv 2105.14450, algorithms 1 and 2).

Y = X W^T with X of M x N and W of K x N. Rank (i, j, l) holds rows (i, j) and columns l of X, rows
(j, i) and columns l of W, and gets rows (i, l) and columns j of Y: what the next product takes on
the same cube with j and l in each other's place. All are of 1 / q^3 of the whole.

A step of forward and backward sends 2 (q - 1) / q^3 (M N + K N + M K) values a rank where what was
gathered is kept for the backward pass, and (q - 1) / q^3 (M N + K N) more where it is gathered
again; kept are (M N + K N) / q^2 values, or 1 / q^3 of them.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.training.parallel.mesh import ProcessGroup
from skindx.training.parallel.sharding.communicator import Communicator, Sizes


@dataclass(frozen=True)
class Cube:
    """The three axes of a cube, as one rank sees them."""

    i: Communicator
    j: Communicator
    l: Communicator  # noqa: E741 (the paper's name)

    @classmethod
    def of_all(cls, timeout: timedelta) -> Self:
        """Make the groups of all axes of the cube that all ranks are."""
        q = round(dist.get_world_size() ** (1 / 3))
        assert q**3 == dist.get_world_size()
        return cls.of(0, q, timeout)

    @classmethod
    def of(cls, first: int, q: int, timeout: timedelta) -> Self:
        """Make the groups of this rank's axes; all ranks of its cube call this, from `first` on."""
        place = place_of(dist.get_rank() - first, q)
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

    def own_input(self, x_MN: Tensor) -> Tensor:
        """Return what this rank holds of X."""
        q, (rows, columns) = self.i.size, x_MN.shape
        block = self.i.rank * q + self.j.rank
        return _block(x_MN, rows // q**2, block, columns // q, self.l.rank)

    def own_weight(self, w_KN: Tensor) -> Tensor:
        """Return what this rank holds of W."""
        q, (rows, columns) = self.i.size, w_KN.shape
        block = self.j.rank * q + self.i.rank
        return _block(w_KN, rows // q**2, block, columns // q, self.l.rank)

    def own_output(self, y_MK: Tensor) -> Tensor:
        """Return what this rank gets of Y."""
        return self.next.own_input(y_MK)


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


def _gathered(axis: Communicator, own: Tensor) -> Tensor:
    return axis.gather_rows(own, (len(own),) * axis.size)


def _summed(axis: Communicator, part: Tensor) -> Tensor:
    rows: Sizes = (len(part) // axis.size,) * axis.size
    return axis.sum_rows(part, rows)


def cube_product(x: Tensor, weight: Tensor, cube: Cube, *, keep: bool) -> Tensor:
    """Return this rank's part of X W^T; with `keep` the backward pass gathers less."""
    y: Tensor = _Product.apply(x, weight, cube, keep)
    return y
