"""The networks that all frameworks train: against torchvision's, and by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torchvision.models import mobilenet_v2, resnet50

from skindx_bench.frameworks.graph import IMAGE, NETWORKS, network, parameters
from skindx_bench.frameworks.torch_rank import Network


def _outputs(net: nn.Module, seed: int) -> torch.Tensor:
    """Return logits of a network whose weights are numbered in their order."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(0.05 * torch.randn(weight.shape, generator=generator))
        return net.train()(torch.randn(4, 3, 64, 64, generator=generator))


@pytest.mark.parametrize(
    ("name", "build"),
    [("resnet50", resnet50), ("mobilenetv2", lambda **more: mobilenet_v2(dropout=0.0, **more))],
)
def test_networks_are_torchvisions(name: str, build) -> None:
    theirs, ours = build(num_classes=7), Network(network(name, 64, 7))
    shapes = [weight.shape for weight in theirs.parameters()]
    assert [weight.shape for weight in ours.parameters()] == shapes
    torch.testing.assert_close(_outputs(ours, 1), _outputs(theirs, 1))


def test_weights_by_hand() -> None:
    # Krizhevsky 2014 in one column, with a last map of 6 x 6 and 1000 classes.
    convolutions = 64 * 363 + 192 * 1600 + 384 * 1728 + 256 * 3456 + 256 * 2304 + 1152
    linear = 9216 * 4096 + 4096 * 4096 + 4096 * 1000 + 2 * 4096 + 1000
    assert parameters(network("alexnet", 224, 1000)) == convolutions + linear
    # The first inception of GoogLeNet: 192 channels in, 256 out.
    nodes = {node.name: node for node in network("googlenet", 224, 1000)}
    first = next(node for node in nodes.values() if node.kind == "concat")
    assert first.out == 256
    assert sum(nodes[name].out for name in first.inputs) == 256
    assert [node.out for node in nodes.values() if node.kind == "concat"][-1] == 1024
    assert parameters(network("resnet50", 64, 1000)) == 25_557_032
    assert parameters(network("mobilenetv2", 64, 1000)) == 3_504_872


@given(name=st.sampled_from(sorted(NETWORKS)), side=st.integers(64, 80), shrink=st.integers(4, 64))
def test_every_network_is_sound_at_every_size(name: str, side: int, shrink: int) -> None:
    graph = network(name, side, 3, shrink)
    known = {IMAGE}
    for node in graph:
        assert set(node.inputs) <= known
        known.add(node.name)
    assert graph[-1].kind == "linear"
    assert graph[-1].out == 3


def test_a_network_of_any_width_takes_images_of_an_odd_side() -> None:
    for name in NETWORKS:
        logits = Network(network(name, 71, 3, 16))(torch.zeros(2, 3, 71, 71))
        assert logits.shape == (2, 3)


def test_images_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        network("alexnet", 32, 10)
