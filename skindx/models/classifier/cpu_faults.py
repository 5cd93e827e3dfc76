"""A fault of torch's CPU kernels, and how a network is kept clear of it."""

from typing import Any

import torch
from torch import nn

_FEWEST = 16
"""Input channels from which the kernel works on whole blocks."""


def avoid_strided_pointwise_fault(net: nn.Module) -> None:
    """Let strided 1 x 1 convolutions over few channels see their input channels first on a CPU.

    Where the input or the weight is channels last, their weight gradient is written beyond its
    buffer (torch 2.15 with oneDNN on x86: `Conv2d(3, 48, 1, stride=2)` on 96 x 96 pixels), and the
    process ends or computes with damaged memory. The stems of fastvit, mobileone and repvgg hold
    one. The values stay the same; only the order of the input in memory and the strides of the
    weight change.
    """
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d) and _is_faulty(layer):
            layer.register_forward_pre_hook(_channels_first)


def _is_faulty(layer: nn.Conv2d) -> bool:
    pointwise, strided = set(layer.kernel_size) == {1}, max(layer.stride) > 1
    return pointwise and strided and layer.in_channels // layer.groups < _FEWEST


def _channels_first(layer: nn.Conv2d, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    image_BDHW = inputs[0]
    if image_BDHW.device.type != "cpu" or not torch.is_grad_enabled():
        return None
    # A 1 x 1 weight lies in memory alike in both formats: its strides alone name one.
    weight = layer.weight
    weight.data = weight.data.as_strided(weight.shape, (weight.shape[1], 1, 1, 1))
    return (image_BDHW.contiguous(), *inputs[1:])
