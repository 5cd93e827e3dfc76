"""AlexNet in one column (Krizhevsky 2014, arXiv 1404.5997, section 5)."""

from torch import Tensor, nn

_CONVOLUTIONS = ((3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3))
"""Channels in and out, and size of the kernels."""
_MAP = 6
"""Side of the last map, whatever the side of the images: small ones are pooled up to it."""


class AlexNet(nn.Module):
    """Five convolutions, three poolings and three linear layers; images B x 3 x S x S in."""

    def __init__(self, classes: int, width: int = 4096) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, (into, out, kernel) in enumerate(_CONVOLUTIONS, start=1):
            padding = 2 if kernel > 3 else 1
            layers.append(nn.Conv2d(into, out, kernel, 4 if number == 1 else 1, padding))
            layers.append(nn.ReLU(inplace=True))
            if number <= 2:
                layers.append(nn.MaxPool2d(3, 2))
        self.features = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(_MAP))
        flat = _CONVOLUTIONS[-1][1] * _MAP * _MAP
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(flat, width),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(width, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, classes),
        )
        # He et al. 2015 (arXiv 1502.01852): without norms a smaller start learns nothing for long.
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, images_B3SS: Tensor) -> Tensor:
        """Return logits B x C."""
        logits_BC: Tensor = self.classifier(self.features(images_B3SS).flatten(1))
        return logits_BC
