"""Small networks that are cut into stages."""

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

IMAGE = torch.zeros(1, 3, 8, 8)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 0:  # decided by a number that a graph does not know
            x = x + self.second(self.first(x).relu())
        return x


def network(kind: str = "plain") -> nn.Module:
    torch.manual_seed(0)
    if kind == "vit":
        return VisionTransformer(
            img_size=8, patch_size=4, embed_dim=16, depth=3, num_heads=4, num_classes=7
        )
    norm = nn.BatchNorm2d(6) if kind == "norm" else nn.GroupNorm(2, 6)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        norm,
        nn.ReLU(inplace=True),
        Residual(6),
        Residual(6),
        nn.Conv2d(6, 10, 6),
        nn.Flatten(),
        nn.Linear(10, 30),
        nn.ReLU(inplace=True),
        nn.Linear(30, 7),
    )
