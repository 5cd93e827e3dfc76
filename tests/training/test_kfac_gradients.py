"""Gradients are read as matrices and written back, those of all batch norms at once."""

import torch
from torch import Tensor, nn

from skindx.training.preconditioners.kfac.finding import find_layers
from skindx.training.preconditioners.kfac.gradients import (
    inner_product,
    read_gradients,
    write_gradients,
)


def _net() -> nn.Sequential:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 6, 3, groups=2, bias=False),
        nn.BatchNorm2d(6),
        nn.BatchNorm2d(6),
        nn.Flatten(),
        nn.Linear(6, 5),
    )
    net[4].bias.requires_grad_(False)
    net(torch.randn(7, 3, 5, 5)).square().sum().backward()
    return net


def _copies(net: nn.Module) -> list[Tensor]:
    return [weight.grad.clone() for weight in net.parameters() if weight.grad is not None]


def test_what_is_written_as_it_was_read_is_the_gradient_times_the_scale() -> None:
    net = _net()
    layers, _ = find_layers(net, 100)
    before = _copies(net)
    read = read_gradients(layers)
    assert {name: tuple(own.shape) for name, own in read.items()} == {
        "0": (1, 4, 28),
        "1": (4, 1, 2),
        "2": (2, 3, 18),
        "3": (6, 1, 2),
        "4": (6, 1, 1),
        "6": (1, 5, 7),
    }
    for layer in layers:
        torch.testing.assert_close(read[layer.name], layer.gradient())
    write_gradients(layers, {name: own.clone() for name, own in read.items()}, torch.tensor(0.5))
    for now, then in zip(_copies(net), before, strict=True):
        torch.testing.assert_close(now, then / 2)


def test_a_layer_that_is_not_named_keeps_its_gradient() -> None:
    net = _net()
    layers, _ = find_layers(net, 100)
    before = _copies(net)
    natural = {name: own.clone() for name, own in read_gradients(layers).items() if name in "13"}
    write_gradients(layers, natural, torch.tensor(2.0))
    changed = [not torch.equal(now, then) for now, then in zip(_copies(net), before, strict=True)]
    assert changed == [False, False, True, True, False, True, True, False, False, False]


def test_weights_in_another_memory_format_are_written_in_it() -> None:
    net = _net().to(memory_format=torch.channels_last)
    net.zero_grad()
    net(torch.randn(7, 3, 5, 5).to(memory_format=torch.channels_last)).square().sum().backward()
    weight = net[0].weight
    assert weight.grad.is_contiguous(memory_format=torch.channels_last)
    layers, _ = find_layers(net, 100)
    before = weight.grad.clone()
    write_gradients(layers, read_gradients(layers), torch.tensor(3.0))
    torch.testing.assert_close(weight.grad, before * 3)


def test_the_inner_product_is_that_of_all_numbers() -> None:
    """Few numbers are joined, many are not."""
    sides = [[torch.randn(3, 1, 2), torch.randn(1, 200, 100), torch.randn(5, 5)] for _ in range(2)]
    expected = sum((one * other).sum() for one, other in zip(*sides, strict=True))
    torch.testing.assert_close(inner_product(*sides), expected, rtol=1e-4, atol=1e-3)
