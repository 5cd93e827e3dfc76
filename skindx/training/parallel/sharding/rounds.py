"""A batch that passes a split layer in rounds, so that it travels while the layer computes.

Krizhevsky 2014 (arXiv 1404.5997, section 4), schemes (b) and (c). In (b) a round has the images of
one rank, which sends them to all others; in (c) it has a part of the images of every rank, so that
all of them send at once. With P ranks there are P rounds, and what is sent in all is that of scheme
(a).
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from skindx.training.parallel.sharding.communicator import Communicator, Sizes
from skindx.training.parallel.sharding.sizes import sizes_of

# b = rows (images) of this rank, r = those of a round of all ranks, c = columns of this rank

Scheme = Literal["a", "b", "c"]


def rounds_of(rows: Sizes, scheme: Scheme) -> list[Sizes]:
    """Return the rows of each rank in each round; there is none without any."""
    ranks = len(rows)
    if scheme == "b":
        found = [
            tuple(count if rank == turn else 0 for rank, count in enumerate(rows))
            for turn in range(ranks)
        ]
    else:
        parts = [sizes_of(count, ranks) for count in rows]
        found = [tuple(part[turn] for part in parts) for turn in range(ranks)]
    return [own for own in found if sum(own)]


def in_rounds(
    x_b: Tensor,
    layer: Callable[[Tensor], Tensor],
    wires: Communicator,
    *,
    scheme: Scheme,
    columns: Sizes,
    weights: Sequence[nn.Parameter],
) -> Tensor:
    """Return all columns of this rank's rows; `layer` gives its own columns of any rows."""
    y_bC: Tensor = _InRounds.apply(x_b, layer, wires, scheme, columns, *weights)
    return y_bC


class _InRounds(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_b: Tensor, *rest: Any) -> Tensor:
        layer, wires, scheme, columns, *weights = rest
        rounds = rounds_of(wires.rows, scheme)
        own = torch.split(x_b, [rows[wires.rank] for rows in rounds])
        ctx.wires, ctx.rounds, ctx.columns, ctx.weights = wires, rounds, columns, weights
        ctx.kept, leaving = [], []
        coming = wires.start_gather(own[0], rounds[0])
        for turn, rows in enumerate(rounds):
            x_r = coming()
            if turn + 1 < len(rounds):
                coming = wires.start_gather(own[turn + 1], rounds[turn + 1])
            x_r = x_r.detach().requires_grad_(ctx.needs_input_grad[0])
            with torch.enable_grad():
                y_rc = layer(x_r)
            ctx.kept.append((x_r, y_rc))
            leaving.append(wires.start_to_rows(y_rc.detach(), rows, columns))
        return torch.cat([parts() for parts in leaving])

    @staticmethod
    def backward(ctx: Any, dy_bC: Tensor) -> Any:
        wires: Communicator = ctx.wires
        rounds: list[Sizes] = ctx.rounds
        # As in scheme (a): divided for the weights, and multiplied for the layers below.
        parts = torch.split(dy_bC / wires.size, [rows[wires.rank] for rows in rounds])
        coming = [
            wires.start_to_columns(part, rows, ctx.columns)
            for part, rows in zip(parts, rounds, strict=True)
        ]
        leaving: list[Callable[[], Tensor]] = []
        totals: list[Tensor] = []
        below = ctx.needs_input_grad[0]
        for (x_r, y_rc), rows, dy_rc in zip(ctx.kept, rounds, coming, strict=True):
            inputs = [*([x_r] if below else []), *ctx.weights]
            found = list(torch.autograd.grad(y_rc, inputs, dy_rc())) if inputs else []
            if below:
                leaving.append(wires.start_sum_rows(found.pop(0), rows))
            if totals:
                torch._foreach_add_(totals, found)
            else:
                totals = found
        ctx.kept = []
        dx_b = torch.cat([part() for part in leaving]).mul_(wires.size) if below else None
        totals = totals or [torch.zeros_like(weight) for weight in ctx.weights]
        return dx_b, None, None, None, None, *totals
