"""Gradients are read as matrices, all at once, and written back."""

import torch
from torch import Tensor, nn

from skindx_methods.kfac.bases import LayerMatrices
from skindx_methods.kfac.layers import find_layers


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


def test_the_last_column_is_the_gradient_of_the_bias() -> None:
    net = _net()
    layers, _ = find_layers(net, 100)
    gradients = LayerMatrices(layers)
    gradients.read()
    assert {name: tuple(own.shape) for name, own in gradients.matrices.items()} == {
        "0": (1, 4, 28),
        "1": (4, 1, 2),
        "2": (2, 3, 18),
        "3": (6, 1, 2),
        "4": (6, 1, 1),
        "6": (1, 5, 7),
    }
    conv, norm, grouped = net[0], net[1], net[2]
    expected = {
        "0": torch.cat([conv.weight.grad.flatten(1), conv.bias.grad[:, None]], 1)[None],
        "1": torch.stack([norm.weight.grad, norm.bias.grad], 1)[:, None],
        "2": grouped.weight.grad.reshape(2, 3, 18),
    }
    for name, matrix in expected.items():
        torch.testing.assert_close(gradients.matrices[name], matrix, rtol=0, atol=0)


def test_what_is_written_as_it_was_read_is_the_gradient_times_the_scale() -> None:
    net = _net()
    before = _copies(net)
    gradients = LayerMatrices(find_layers(net, 100)[0])
    gradients.read()
    gradients.flat.mul_(0.5)
    gradients.write()
    for now, then in zip(_copies(net), before, strict=True):
        torch.testing.assert_close(now, then / 2)


def test_other_layers_keep_their_gradients() -> None:
    net = _net()
    layers = [layer for layer in find_layers(net, 100)[0] if layer.name in "13"]
    before = _copies(net)
    gradients = LayerMatrices(layers)
    gradients.put({"3": torch.ones(6, 1, 2)})
    gradients.write()
    changed = [not torch.equal(now, then) for now, then in zip(_copies(net), before, strict=True)]
    assert changed == [False, False, True, True, False, True, True, False, False, False]
    assert not net[1].weight.grad.any()
    assert net[3].bias.grad.eq(1).all()


def test_a_bias_without_gradient_stays_without_one() -> None:
    net = _net()
    net[0].bias.grad = None
    gradients = LayerMatrices(find_layers(net, 100)[0])
    gradients.read()
    assert not gradients.matrices["0"][:, :, -1].any()
    gradients.write()
    assert net[0].bias.grad is None


def test_weights_in_another_memory_format_are_written_in_it() -> None:
    net = _net().to(memory_format=torch.channels_last)
    net.zero_grad()
    net(torch.randn(7, 3, 5, 5).to(memory_format=torch.channels_last)).square().sum().backward()
    weight = net[0].weight
    assert weight.grad.is_contiguous(memory_format=torch.channels_last)
    before = weight.grad.clone()
    gradients = LayerMatrices(find_layers(net, 100)[0])
    gradients.read()
    gradients.flat.mul_(3)
    gradients.write()
    assert weight.grad.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(weight.grad, before * 3)


def test_half_precision_gradients_are_read_in_single_precision() -> None:
    net = _net().bfloat16()
    net.zero_grad()
    net(torch.randn(7, 3, 5, 5).bfloat16()).float().square().sum().backward()
    before = net[0].weight.grad.clone()
    gradients = LayerMatrices(find_layers(net, 100)[0])
    gradients.read()
    assert gradients.flat.dtype == torch.float32
    gradients.flat.mul_(2)
    gradients.write()
    torch.testing.assert_close(net[0].weight.grad, before * 2)
