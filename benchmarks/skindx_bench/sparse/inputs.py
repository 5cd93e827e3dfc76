"""Layers of ResNet-50 and VGG-16, and inputs with a given share of zeros as ReLU makes them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layer:
    """A convolution with padding that keeps the size, before its stride."""

    side: int
    channels: int
    out: int
    kernel: int
    stride: int = 1

    @property
    def name(self) -> str:
        """Such as `3x3 256>256 at 14`, with `/2` for a stride of two."""
        stride = "/2" if self.stride == 2 else ""
        return f"{self.kernel}x{self.kernel}{stride} {self.channels}>{self.out} at {self.side}"

    def build(self) -> nn.Conv2d:
        """Return it with random weights and bias."""
        layer = nn.Conv2d(
            self.channels, self.out, self.kernel, self.stride, padding=self.kernel // 2
        )
        return layer.eval().requires_grad_(requires_grad=False)


LAYERS = (
    Layer(56, 64, 64, 3),
    Layer(28, 128, 128, 3),
    Layer(14, 256, 256, 3),
    Layer(7, 512, 512, 3),
    Layer(56, 256, 256, 3),
    Layer(28, 512, 512, 3),
    Layer(28, 256, 256, 3, 2),
    Layer(28, 512, 128, 1),
    Layer(14, 1024, 256, 1),
)
"""3 x 3 of ResNet-50, then of VGG-16, then a stride of two, and 1 x 1 of ResNet-50."""


def relu_input(layer: Layer, zeros: float, seed: int = 0) -> Tensor:
    """Return 1 x C x S x S, channels last, of which a share `zeros` is zero.

    Zeros lie as behind a ReLU: neighbours are alike, and some channels have more of them.
    """
    random = torch.Generator().manual_seed(seed)
    size = (1, layer.channels, layer.side, layer.side)
    noise = torch.randn(size, generator=random)
    smooth = nn.functional.avg_pool2d(noise, 3, 1, 1) * 2 + noise
    smooth = smooth + torch.randn((1, layer.channels, 1, 1), generator=random)
    threshold = smooth.flatten().kthvalue(max(1, round(zeros * smooth.numel()))).values
    return (smooth - threshold).relu().contiguous(memory_format=torch.channels_last)
