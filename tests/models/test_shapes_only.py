"""Networks that have shapes alone are those that have weights, by names, shapes and types."""

import pytest
import torch

from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.network_setup import shapes_only


@pytest.mark.parametrize(
    "model", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet", "test_byobnet"]
)
def test_shapes_are_those_of_the_network_with_weights(model: str) -> None:
    settings = ClassifierSettings(model=model)
    whole = build_classifier(settings, 3)
    with shapes_only():
        empty = build_classifier(settings, 3)
    described = [
        {
            name: (tensor.shape, tensor.dtype)
            for name, tensor in (*network.state_dict().items(), *network.named_buffers())
        }
        for network in (whole, empty)
    ]
    assert described[0] == described[1]
    assert {tensor.device.type for tensor in empty.state_dict().values()} == {"meta"}
    assert torch.equal(whole.scale, build_classifier(settings, 3).scale)
