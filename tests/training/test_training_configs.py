"""The committed training runs are sound: they load, and timm has their networks."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from skindx.models.classifier.classifier import build_classifier
from skindx.taxonomy import load_taxonomy
from skindx.training.config.run import TrainSettings
from skindx.training.tasks.losses import build_loss
from skindx.training.tasks.optimizer import build_optimizer

CONFIGS = Path(__file__).parents[2] / "configs"
CLASSES = {"skin10-classic": "skin10", "skin10": "skin10", "skin100": "skin100", "isic9": "isic9"}


@pytest.mark.parametrize("name", CLASSES)
def test_a_config_can_be_trained(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKINDX_REAL", "/somewhere")
    settings = TrainSettings.load(CONFIGS / f"{name}.yaml")
    classes = len(load_taxonomy(CLASSES[name]).keys)
    for member in settings.members:
        if member.pretrained:
            assert timm.get_pretrained_cfg(member.model).has_weights
        with torch.device("meta"):
            classifier = build_classifier(member, classes)
        recipe = settings.recipe_of(member)
        optimizer = build_optimizer(classifier, recipe, fresh=[])
        slowest = min(group["lr_scale"] for group in optimizer.param_groups)
        assert slowest > 0.02  # no layer stands still
        loss = build_loss(np.arange(classes), classes, recipe)
        assert loss(torch.zeros(2, classes), torch.tensor([0, 1])).isfinite()
        last = recipe.epochs - 1
        assert recipe.side_at(member.preprocess.size, last) == member.preprocess.size
        assert recipe.mix_at(last) is None
        assert 0 < recipe.rate_at(10 * last, 10) < 0.05 * recipe.learning_rate


def test_the_classic_recipe_is_the_papers() -> None:
    settings = TrainSettings.load(CONFIGS / "skin10-classic.yaml")
    recipe = settings.recipe
    assert (recipe.batch, recipe.optimizer, recipe.learning_rate) == (32, "sgd", 0.1)
    assert recipe.class_weights == "balanced"
    assert {member.preprocess.size for member in settings.members} == {224}
    focal = TrainSettings.load(CONFIGS / "skin10-classic.yaml", ["recipe.loss.kind=focal"])
    assert focal.recipe.loss.model_dump() == {"kind": "focal", "gamma": 2.0}
