"""Features of all layers: by hand, the same for turned images, and where they are written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_dataset import tiny_dataset

from skindx.core.errors import UserError
from skindx.data.embedding_files import EMBEDDINGS, LABEL_FEATURES, label_table, read_embeddings
from skindx.models.classifier.classifier import Classifier, ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.review.image_embeddings import (
    all_layers,
    channel_statistics,
    colour_statistics,
    join_parts,
    last_layer,
)


@pytest.fixture(scope="module")
def net() -> Classifier:
    torch.manual_seed(0)
    made = build_classifier(
        ClassifierSettings(model="test_resnet", preprocess=Preprocess(size=64)), 3
    ).eval()
    made.net.reset_classifier(0)  # type: ignore[operator]
    return made


def test_channels_by_hand() -> None:
    map_BDhw = torch.tensor([[[[1.0, 3.0]], [[2.0, 2.0]]]])
    assert channel_statistics(map_BDhw).tolist() == [[2.0, 2.0, 1.0, 0.0]]


def test_colours_by_hand() -> None:
    one_colour = torch.tensor([255, 102, 0], dtype=torch.uint8).expand(1, 8, 8, 3)
    seven = torch.tensor([1.0, 0.4, 0.0, 1.0, 1.0, 0.6, 0.4])  # r, g, b, largest, saturation, ...
    half = torch.cat([seven.repeat(8), torch.zeros(7)])  # seven quantiles and the mean are equal
    assert torch.allclose(colour_statistics(one_colour)[0], half.repeat(2), atol=1e-6)


def test_parts_have_equal_weight_and_a_constant_counts_nothing() -> None:
    random = np.random.default_rng(0)
    parts = [random.normal(5, 9, (50, 3)), random.normal(0, 1e-3, (50, 40)), np.ones((50, 2))]
    joined_ND = join_parts([part.astype(np.float32) for part in parts])
    energy = [(joined_ND[:, at] ** 2).sum(1).mean() for at in (slice(3), slice(3, 43))]
    assert energy == pytest.approx([1, 1], rel=1e-3)
    assert not joined_ND[:, 43:].any()
    assert join_parts([parts[0].astype(np.float32)]).mean() > 3  # a single part stays


def test_eight_views_forget_how_an_image_is_turned(net: Classifier) -> None:
    squares = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    turned = squares.transpose(1, 2).flip(1)
    with torch.inference_mode():
        for features in (last_layer, all_layers):
            one, other = (torch.cat(features(net, x, 8), 1) for x in (squares, turned))
            assert torch.allclose(one, other, atol=1e-4)
        one, other = (last_layer(net, x, 1)[0] for x in (squares, turned))
        assert not torch.allclose(one, other, atol=1e-4)
        parts = all_layers(net, squares, 1)
        assert torch.allclose(parts[-1], last_layer(net, squares, 1)[0], atol=1e-5)
        maps = net.forward_stages(squares)[1]
    assert [part.shape[1] for part in parts[1:-1]] == [2 * map_.shape[1] for map_ in maps]


def test_a_network_without_stages_says_so(net: Classifier) -> None:
    flat = Classifier(torch.nn.Flatten(), Preprocess(size=64))
    with pytest.raises(UserError, match="Flatten has no stages"):
        all_layers(flat, torch.zeros(1, 64, 64, 3), 1)


def test_the_verb_writes_a_table_of_its_own(net: Classifier, tmp_path: Path, skindx: Any) -> None:
    tiny_dataset(tmp_path / "data", 12)
    weights = tmp_path / "net.safetensors"
    save_file(net.net.state_dict(), weights)
    small = ("--set", "model=test_resnet", "--set", "preprocess.size=64")
    command = ("dedup", "embed", tmp_path / "data", "--weights", weights, *small)
    assert label_table(tmp_path / "data").name == EMBEDDINGS
    code, said, _ = skindx(*command, "--set", "layers=all", "--set", "views=2")
    assert code == 0
    assert "all layers, 2 views" in said
    assert not (tmp_path / "data" / EMBEDDINGS).exists()
    table = read_embeddings(tmp_path / "data" / LABEL_FEATURES)
    assert np.allclose(np.linalg.norm(table.vectors_ND, axis=1), 1, atol=1e-5)
    assert label_table(tmp_path / "data").name == LABEL_FEATURES
    code, _, error = skindx(*command, "--set", "layers=most")
    assert code == 2
    assert "layers" in error
