"""The sanity check of heat maps (Adebayo et al. 2018): another head must give another map.

Attention roll-out fails it by construction, since it never asks the head. What a diagnosis shows,
Grad-CAM or integrated gradients by tokens, has to pass it for every tower and every head.
"""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from skin_photo import skin_pixels
from torch import nn

from skindx.diagnosis.heat_maps import heat_maps
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.head_kinds import KnnHead, LinearHead, MlpHead, PrototypeHead
from skindx.models.classifier.heads import AttentionPool
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.ensemble import Ensemble, Member

PHOTOS = [skin_pixels(90, 70, seed=seed) for seed in (1, 2)]
SMALL = {"img_size": 64, "embed_dim": 32, "depth": 2, "num_heads": 2}
TOWERS: dict[str, dict[str, Any]] = {
    "clip": {"model": "vit_base_patch16_clip_224", "model_args": SMALL},
    "coca": {
        "model": "vit_base_patch16_clip_224",
        "model_args": SMALL,
        "attention_pool": AttentionPool(width=16, heads=2),
    },
    "siglip": {"model": "test_vit3", "model_args": {"img_size": 64, "depth": 2}},
    "dinov2": {
        "model": "vit_small_patch14_reg4_dinov2",
        "model_args": {"img_size": 70, "embed_dim": 32, "depth": 2, "num_heads": 2},
        "preprocess": Preprocess(size=70),
    },
}
HEADS = {
    "linear": LinearHead(),
    "mlp": MlpHead(width=16),
    "knn": KnnHead(neighbours=3, temperature=1, rows=9),
    "prototypes": PrototypeHead(),
}


def _learned(head: nn.Module, seed: int) -> None:
    """Give a head the values of some training."""
    random = torch.Generator().manual_seed(seed)
    for name, tensor in head.state_dict().items():
        if name == "labels_N":
            tensor.copy_(torch.arange(len(tensor)) % 3)
        elif name == "weights_C":
            tensor.fill_(1)
        else:
            tensor.copy_(torch.randn(tensor.shape, generator=random))


def _heat(member: Member, seed: int) -> NDArray[np.float32]:
    _learned(member.classifier.net.get_classifier(), seed)
    ensemble = Ensemble((member,))
    output = ensemble.predict_with_features(PHOTOS)
    classes = output.probabilities_NC.argmax(axis=1).tolist()
    found = heat_maps(ensemble, output.maps, classes, PHOTOS)
    return np.stack([heat for heat in found if heat is not None])


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("tower", TOWERS)
def test_another_head_gives_another_map(tower: str, head: str) -> None:
    torch.manual_seed(0)
    own = {"preprocess": Preprocess(size=64), **TOWERS[tower], "head": HEADS[head]}
    settings = ClassifierSettings(**own)
    member = Member("m", build_classifier(settings, 3).eval(), settings.preprocess)
    maps = [_heat(member, seed) for seed in (1, 2, 3)]
    assert all(len(heat) for heat in maps)
    assert np.array_equal(maps[0], _heat(member, 1))
    alike = [
        np.corrcoef(first.ravel(), other.ravel())[0, 1]
        for first, other in zip(maps[0][:1], maps[1][:1], strict=True)
    ]
    alike.append(np.corrcoef(maps[0][0].ravel(), maps[2][0].ravel())[0, 1])
    assert min(alike) < 0.9
