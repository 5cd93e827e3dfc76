"""A network of another distribution: registered with timm when its name is first asked for."""

from pathlib import Path

import pytest
import torch

from skindx.core.errors import UserError
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier, try_network
from skindx.models.classifier.network_setup import is_known

NETWORK = '''
"""A network from outside: timm's interface over two plain layers."""
import torch
from timm.models import register_model
from torch import nn

class Plain(nn.Module):
    def __init__(self, num_classes=1000, width=8):
        super().__init__()
        self.num_features = width
        self.body = nn.Sequential(nn.Conv2d(3, width, 3, stride=4), nn.ReLU())
        self.fc = nn.Linear(width, num_classes)

    def forward_features(self, x):
        return self.body(x)

    def forward_head(self, x, pre_logits=False):
        pooled = x.mean((2, 3))
        return pooled if pre_logits else self.fc(pooled)

    def forward(self, x):
        return self.forward_head(self.forward_features(x))

    def get_classifier(self):
        return self.fc

@register_model
def plain_from_outside(pretrained=False, num_classes=1000, **arguments):
    return Plain(num_classes)
'''


def install(folder: Path, module: str, code: str) -> None:
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    points = f"[skindx.networks]\n{module}_from_outside = {module}\n"
    (info / "entry_points.txt").write_text(points)


def test_it_is_built_where_it_is_installed_and_refused_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ClassifierSettings.parse({"model": "plain_from_outside", "preprocess": {"size": 64}})
    with pytest.raises(UserError, match=r"no installed package adds it \(entry point skindx.net"):
        build_classifier(settings, 3)
    install(tmp_path, "plain", NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    classifier = build_classifier(settings, 3).eval()
    images_BSS3 = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    map_ = classifier.forward_features(images_BSS3)
    assert torch.equal(classifier.forward_head(map_), classifier(images_BSS3))
    assert classifier.forward_pooled(map_).shape == (2, 8)
    try_network(settings, 3)


def test_one_that_cannot_be_imported_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "broken", "import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UserError, match=r"'broken_from_outside' comes from the package broken, which"
    ):
        is_known("broken_from_outside")
