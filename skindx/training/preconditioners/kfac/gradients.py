"""Reads the gradients of layers as matrices, and writes natural gradients back.

All batch norms are read and written together: each has few numbers, so that the calls would take
longer than the numbers.
"""

# S = blocks of a layer, P = blocks of all batch norms, G = outputs, A = inputs

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from skindx.training.preconditioners.kfac.layers import BatchNorm, Layer

_FEW = 2**14
"""Tensors of up to so many numbers are joined before their inner product."""


def read_gradients(layers: Iterable[Layer]) -> dict[str, Tensor]:
    """Return gradients_SGA of the layers that have one, as views where they can be."""
    norms: list[tuple[str, Tensor, Tensor]] = []
    found: dict[str, Tensor] = {}
    for layer in layers:
        scale, shift = _of_norm(layer)
        if scale is not None and shift is not None:
            norms.append((layer.name, scale, shift))
        elif (gradient := layer.gradient()) is not None:
            found[layer.name] = gradient
    if norms:
        scales_P = torch.cat([scale for _, scale, _ in norms])
        shifts_P = torch.cat([shift for _, _, shift in norms])
        stacked_P1A = torch.stack([scales_P, shifts_P], 1)[:, None].float()
        parts = torch.split(stacked_P1A, [len(scale) for _, scale, _ in norms])
        found |= zip((name for name, _, _ in norms), parts, strict=True)
    return found


def write_gradients(layers: Iterable[Layer], natural: Mapping[str, Tensor], scale: Tensor) -> None:
    """Write natural gradients_SGA, times `scale`, into the weights and biases of their layers."""
    norms: list[tuple[Tensor, Tensor, Tensor]] = []
    for layer in layers:
        if layer.name not in natural:
            continue
        own_SGA = natural[layer.name]
        of_scale, of_shift = _of_norm(layer)
        if of_scale is not None and of_shift is not None:
            norms.append((of_scale, of_shift, own_SGA))
            continue
        weight, bias = layer.parts()
        assert weight.grad is not None
        if bias is not None and bias.grad is not None:
            torch.mul(own_SGA[:, :, -1].reshape(bias.shape), scale, out=bias.grad)
            own_SGA = own_SGA[:, :, :-1]
        torch.mul(own_SGA.reshape(weight.shape), scale, out=weight.grad)
    if norms:
        done_PA = torch.cat([own_SGA for _, _, own_SGA in norms])[:, 0] * scale
        counts = [len(own) for own, _, _ in norms]
        parts = [torch.split(column, counts) for column in done_PA.unbind(1)]
        torch._foreach_copy_([own for own, _, _ in norms], parts[0])
        torch._foreach_copy_([own for _, own, _ in norms], parts[1])


def inner_product(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Return the sum of products of all numbers of some tensors with those of others."""
    pairs = list(zip(first, second, strict=True))
    many = [pair for pair in pairs if pair[0].numel() > _FEW]
    few = [pair for pair in pairs if pair[0].numel() <= _FEW]
    if few:
        ours, theirs = ([tensor.reshape(-1) for tensor in side] for side in zip(*few, strict=True))
        many.append((torch.cat(ours), torch.cat(theirs)))
    products = [torch.dot(one.reshape(-1), other.reshape(-1)) for one, other in many]
    return torch.stack(products).sum()


def _of_norm(layer: Layer) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of a batch norm's scale and shift."""
    if not isinstance(layer, BatchNorm):
        return None, None
    weight, bias = layer.parts()
    return weight.grad, None if bias is None else bias.grad
