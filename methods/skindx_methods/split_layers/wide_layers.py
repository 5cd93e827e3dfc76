"""Wide linear layers split by outputs inside a data-parallel network (Krizhevsky 2014).

One weird trick for parallelizing convolutional neural networks, arXiv 1404.5997, section 4, scheme
(a): every rank gathers the whole batch at the border and computes its own outputs of all images;
then the outputs go back to the ranks that the images came from. Schemes (b) and (c) are in
`rounds_of`. A layer takes and gives the rows of its own rank, so that what stands between layers
(dropout, activations) is data-parallel.

With P ranks, B images and b = B / P of them on each, a layer from n to m values sends, a rank and
a step, 2 (P - 1) b (n + m / P) values, half of them in the backward pass; its gradient would be
2 (P - 1) / P n m.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from skindx.training.parallel.mesh import Mesh, sizes_of
from skindx_methods.split_layers.communicator import Communicator, Sizes
from skindx_methods.split_layers.owt_form import OwtSettings
from skindx_methods.split_layers.parts import Part, take_part
from skindx_methods.split_layers.whole import split_and_attach

PAPER = (
    "One weird trick | Krizhevsky, One weird trick for parallelizing convolutional neural "
    "networks, arXiv 1404.5997, 2014 | methods/tests/test_owt.py | docs/measured/parallel.json"
)

# A batch that passes a split layer in rounds, so that it travels while the layer computes.
#
# Krizhevsky 2014 (arXiv 1404.5997, section 4), schemes (b) and (c). In (b) a round has the images
# of one rank, which sends them to all others; in (c) it has a part of the images of every rank, so
# that all of them send at once. With P ranks there are P rounds, and what is sent in all is that of
# scheme (a).

# b = rows (images) of this rank, r = those of a round of all ranks, c = columns of this rank

Scheme = Literal["a", "b", "c"]


def rounds_of(rows: Sizes, scheme: Scheme) -> list[Sizes]:
    """Return the rows of each rank in each round; there is none without any."""
    ranks = len(rows)
    if scheme == "b":
        result = [
            tuple(count if rank == turn else 0 for rank, count in enumerate(rows))
            for turn in range(ranks)
        ]
    else:
        parts = [sizes_of(count, ranks) for count in rows]
        result = [tuple(part[turn] for part in parts) for turn in range(ranks)]
    return [counts for counts in result if sum(counts)]


def in_rounds(
    x_b: Tensor,
    layer: Callable[[Tensor], Tensor],
    links: Communicator,
    *,
    scheme: Scheme,
    columns: Sizes,
    weights: Sequence[nn.Parameter],
) -> Tensor:
    """Return all columns of this rank's rows; `layer` gives its own columns of any rows."""
    y_bC: Tensor = _InRounds.apply(x_b, layer, links, scheme, columns, *weights)
    return y_bC


class _InRounds(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_b: Tensor, *rest: Any) -> Tensor:
        layer, links, scheme, columns, *weights = rest
        rounds = rounds_of(links.rows, scheme)
        local_rows = torch.split(x_b, [rows[links.rank] for rows in rounds])
        ctx.links, ctx.rounds, ctx.columns, ctx.weights = links, rounds, columns, weights
        ctx.kept, leaving = [], []
        coming = links.start_gather(local_rows[0], rounds[0])
        for turn, rows in enumerate(rounds):
            x_r = coming()
            if turn + 1 < len(rounds):
                coming = links.start_gather(local_rows[turn + 1], rounds[turn + 1])
            x_r = x_r.detach().requires_grad_(ctx.needs_input_grad[0])
            with torch.enable_grad():
                y_rc = layer(x_r)
            ctx.kept.append((x_r, y_rc))
            leaving.append(links.start_to_rows(y_rc.detach(), rows, columns))
        return torch.cat([parts() for parts in leaving])

    @staticmethod
    def backward(ctx: Any, dy_bC: Tensor) -> Any:
        links: Communicator = ctx.links
        rounds: list[Sizes] = ctx.rounds
        # As in scheme (a): divided for the weights, and multiplied for the layers below.
        parts = torch.split(dy_bC / links.size, [rows[links.rank] for rows in rounds])
        coming = [
            links.start_to_columns(part, rows, ctx.columns)
            for part, rows in zip(parts, rounds, strict=True)
        ]
        leaving: list[Callable[[], Tensor]] = []
        totals: list[Tensor] = []
        below = ctx.needs_input_grad[0]
        for (x_r, y_rc), rows, dy_rc in zip(ctx.kept, rounds, coming, strict=True):
            inputs = [*([x_r] if below else []), *ctx.weights]
            result = list(torch.autograd.grad(y_rc, inputs, dy_rc())) if inputs else []
            if below:
                leaving.append(links.start_sum_rows(result.pop(0), rows))
            if totals:
                torch._foreach_add_(totals, result)
            else:
                totals = result
        ctx.kept = []
        dx_b = torch.cat([part() for part in leaving]).mul_(links.size) if below else None
        totals = totals or [torch.zeros_like(weight) for weight in ctx.weights]
        return dx_b, None, None, None, None, *totals


# b = rows (images) of this rank, B = those of all ranks, c = outputs of this rank, C = all outputs


class _Whole(torch.autograd.Function):
    """This rank's rows in, the rows of all ranks out."""

    @staticmethod
    def forward(ctx: Any, x_b: Tensor, links: Communicator) -> Tensor:
        ctx.links, ctx.rows = links, links.rows
        return links.gather_rows(x_b, links.rows)

    @staticmethod
    def backward(ctx: Any, dx_B: Tensor) -> Any:
        links: Communicator = ctx.links
        return links.sum_rows(dx_B, ctx.rows).mul_(links.size), None


class _Rows(torch.autograd.Function):
    """This rank's outputs of all rows in, all outputs of its own rows out.

    Ranks weigh their losses so that the mean of their gradients is that of the batch. A split
    weight sees the batch of all ranks and is averaged with no other: its gradient is divided by
    the number of ranks here, and on the way to the layers below multiplied again.
    """

    @staticmethod
    def forward(ctx: Any, y_Bc: Tensor, links: Communicator, columns: Sizes) -> Tensor:
        ctx.links, ctx.rows, ctx.columns = links, links.rows, columns
        return links.to_rows(y_Bc, links.rows, columns)

    @staticmethod
    def backward(ctx: Any, dy_bC: Tensor) -> Any:
        links: Communicator = ctx.links
        # And where other groups hold the same, their mean counts each group once.
        return links.to_columns(dy_bC / links.size, ctx.rows, ctx.columns), None, None


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
                part.links,
                scheme=self.scheme,
                columns=part.sizes,
                weights=weights,
            )
        # The layer's own forward, with the rows of its weight that this rank holds.
        y_Bc = super().forward(_Whole.apply(x_b, part.links))
        y_bC: Tensor = _Rows.apply(y_Bc, part.links, part.sizes)
        return y_bC


class SplitLinear(SplitLayer, nn.Linear):
    """A linear layer of which each rank computes some outputs."""

    whole_class = nn.Linear


class SplitConv(SplitLayer, nn.Conv2d):
    """A convolution of which each rank computes some channels."""

    whole_class = nn.Conv2d


_SPLIT: dict[type[nn.Module], type[SplitLayer]] = {
    nn.Linear: SplitLinear,
    nn.Conv2d: SplitConv,
}


def split_network(
    net: nn.Module, mesh: Mesh, image: Tensor, batch: int, say: Callable[[str], None]
) -> None:
    """Split a network's wide layers for steps of `batch` images, in place; names stay the same.

    `image` is one image, 1 x …. Every rank calls this, with equal networks. `say` gets a line.
    """
    settings, ranks = mesh.settings.parallel, mesh.tensor.size
    if ranks == 1:
        return
    assert isinstance(settings, OwtSettings)

    def split() -> Mapping[str, nn.Module]:
        layers = wide_layers(net, image, batch, ranks, settings)
        links = Communicator(mesh.tensor)
        for layer in layers.values():
            split_layer(layer, links, scheme=settings.scheme)
        return layers

    split_and_attach(net, mesh, split, say)


def split_layer(layer: nn.Module, links: Communicator, scheme: Scheme = "a") -> None:
    """Let each rank keep its rows of a layer's weight and bias; names stay the same."""
    parts = {
        name: Part.even(links, weight.shape)
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


@dataclass(frozen=True)
class _Use:
    """Input and output sizes of a layer for one image."""

    values_in: int
    values_out: int


def wide_layers(
    net: nn.Module, image: Tensor, batch: int, ranks: int, settings: OwtSettings
) -> dict[str, nn.Module]:
    """Return the layers to split, by name, in the order in which an image passes them."""
    holders = Counter(
        id(parameter) for layer in net.modules() for parameter in layer.parameters(recurse=False)
    )
    result = {}
    for name, layer, use in _uses(net, image):
        weight = layer.get_parameter("weight")
        tied = any(holders[id(parameter)] > 1 for parameter in layer.parameters(recurse=False))
        # A row of weights meets an image once: its outputs have no positions.
        if tied or use.values_out != len(weight) or not can_be_split(layer, ranks):
            continue
        least = settings.min_weights
        if least == "auto":
            least = batch * use.values_in + batch * use.values_out // ranks
        if weight.numel() >= least:
            result[name] = layer
    return result


def _uses(net: nn.Module, image: Tensor) -> list[tuple[str, nn.Module, _Use]]:
    """Return the layers with outputs that one image passes just once, as it passes them."""
    passed: dict[str, list[_Use]] = {}
    layers = {
        name: layer for name, layer in net.named_modules() if type(layer) in (nn.Linear, nn.Conv2d)
    }

    def note(name: str, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        passed.setdefault(name, []).append(_Use(inputs[0].numel(), output.numel()))

    hooks = [layer.register_forward_hook(partial(note, name)) for name, layer in layers.items()]
    training = net.training
    try:
        with torch.no_grad():
            net.eval()(image)
    finally:
        net.train(training)
        for hook in hooks:
            hook.remove()
    return [(name, layers[name], uses[0]) for name, uses in passed.items() if len(uses) == 1]
