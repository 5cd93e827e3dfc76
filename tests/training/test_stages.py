"""Where a network can be cut into stages, and what does not go with them."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from staged_networks import IMAGE, network
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.training.config.run import TrainSettings
from skindx.training.forms.pipeline import ModelSettings
from skindx.training.methods.sharding.communicator import Communicator
from skindx.training.methods.sharding.parts import SplitGradients
from skindx.training.methods.sharding.pieces import counts_of, micro_batches_of, pieces_of
from skindx.training.methods.sharding.whole import PIPELINE, share_statistics


class _OneTensor(nn.Module):
    """Two layers with the same weight, and one that is a number alone."""

    def __init__(self, *, scalar: bool = False) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.last.weight = self.first.weight
        if scalar:
            self.gain = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


def test_tied_weights_and_branches_stay_in_one_piece() -> None:
    assert len(pieces_of(_OneTensor(), torch.zeros(1, 4)).pieces) == 1
    layers = [piece.layers[0] for piece in pieces_of(network(), IMAGE).pieces]
    assert layers == ["0", "1", "3", "4", "5", "7", "9"]
    blocks = pieces_of(network("vit"), IMAGE)
    assert [layer for piece in blocks.pieces for layer in piece.layers if "attn" in layer]
    assert len(blocks.pieces) >= 6
    assert all(piece.operations > 0 for piece in blocks.pieces)


def test_stages_begin_where_the_settings_say() -> None:
    found = pieces_of(network(), IMAGE)
    assert counts_of(found, ModelSettings(stages=3, starts=("3.second", "7"))) == [2, 3, 2]
    assert sum(counts_of(found, ModelSettings(stages=3))) == len(found.pieces)
    assert micro_batches_of(ModelSettings(), 6) == 3
    assert micro_batches_of(ModelSettings(), 100) == 8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stages": 9}, "7 pieces .* too few for 9 stages"),
        ({"stages": 2, "starts": ("11",)}, "11, which is no layer .* begin at 1, 3, 4"),
        ({"stages": 3, "starts": ("3.second", "3.first")}, "two are in the same piece"),
        ({"stages": 2, "starts": ("0",)}, "in their order"),
    ],
)
def test_stages_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        counts_of(pieces_of(network(), IMAGE), ModelSettings(**settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"engine": {"parallel": {"kind": "model", "stages": 1}}}, "stages"),
        (
            {"engine": {"parallel": {"kind": "model", "stages": 3, "starts": ["a"]}}},
            "starts names 1 layers, and 3 stages have 2 borders",
        ),
        (
            {"engine": {"parallel": {"kind": "model"}, "sync_batch_norm": True}},
            "no batch norm sees all images of a step; set sync_batch_norm=false",
        ),
        (
            {"engine": {"parallel": {"kind": "model"}}, "exchange": {"kind": "topk"}},
            "take dense, fused or multicolor",
        ),
        ({"engine": {"parallel": {"kind": "model"}, "zero": 1}}, "set zero=0"),
    ],
)
def test_what_does_not_go_with_stages_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        TrainSettings.parse(change)
    assert "\n" not in str(caught.value)


def test_more_micro_batches_than_images_and_odd_ranks_are_refused() -> None:
    with pytest.raises(UserError, match="micro_batches=8 are more than the 4 images"):
        micro_batches_of(ModelSettings(micro_batches=8), 4)
    with pytest.raises(UserError, match=r"stages=3 must divide .* is 4"):
        ModelSettings(stages=3).group_size(4)
    with pytest.raises(UserError, match="gain is a single number"):
        pieces_of(_OneTensor(scalar=True), torch.zeros(1, 4))


def test_statistics_come_from_the_stage_that_counted_them() -> None:
    """Ranks of three stages: each has counted in its own norm alone."""
    net = nn.Sequential(*(nn.BatchNorm2d(2) for _ in range(3)))
    owners = {name: int(name[0]) for name, _ in net.named_buffers()}
    links = SimpleNamespace(
        broadcast=lambda values, owner: torch.full_like(values, 10 + owner)  # as that rank has it
    )
    setattr(net, PIPELINE, SimpleNamespace(owners=owners, links=links))
    share_statistics(net)
    for name, buffer in net.named_buffers():
        assert (buffer == 10 + owners[name]).all(), name


class _Links:
    def __init__(self, sum_: Callable[[Tensor], Tensor]) -> None:
        self.sum = sum_


def test_what_one_rank_knows_of_a_bad_gradient_all_learn() -> None:
    """Its own part is finite: what it knows of is a gradient that all ranks hold alike."""
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([3.0, 4.0])
    sent: list[float] = []

    def with_the_others(own: Tensor) -> Tensor:
        sent.append(float(own))
        return own + 11.0

    links = cast(Communicator, _Links(with_the_others))
    gradients = SplitGradients({links: [weight]}, [])
    assert gradients.square() == 36.0
    assert gradients.norm(known_bad=False) == 6.0
    assert gradients.norm(known_bad=True) is None
    assert sent[:2] == [25.0, 25.0]
    assert math.isnan(sent[2]), "the others cannot know"
