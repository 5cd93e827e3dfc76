"""K-FAC's settings, its sharing of work, and what it refuses."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from skindx.core.errors import UserError
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import TrainSettings
from skindx.training.tasks.optimizer import build_optimizer
from skindx_methods.kfac.kfac_settings import KfacSettings
from skindx_methods.kfac.sharing import plan_sharing, share_out, workers_of

SMALL: dict[str, Any] = {"members": [{"name": "a", "model": "test_resnet"}]}
KFAC = {"preconditioner": {"kind": "kfac"}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"engine": {"zero": 1}}, "needs whole gradients"),
        ({"engine": {"zero": 2}}, "set engine.zero=0"),
        ({"engine": {"zero": 3}}, "set engine.zero=0"),
        ({"engine": {"precision": "fp16"}}, "set engine.precision=bf16"),
        ({"engine": {"compile": True}}, "engine.compile=false"),
        ({"engine": {"activation_checkpointing": True}}, "engine.activation_checkpointing=false"),
        ({"engine": {"schedule": "hop"}}, "engine.schedule=data"),
        ({"recipe": {**KFAC, "optimizer": "lamb"}}, "optimizer=lamb"),
        (
            {"recipe": {**KFAC, "optimizer": "muon"}},
            "muon cancels the effect of preconditioner.kind=kfac; set optimizer to adamw",
        ),
        ({"recipe": {"preconditioner": {"kind": "shampoo"}}}, "kfac"),
        ({"recipe": {"preconditioner": {"kind": "kfac", "damping": 0}}}, "damping"),
        ({"recipe": {"preconditioner": {"inverses_every": 15}}}, "multiple of factors_every=10"),
        ({"recipe": {"preconditioner": {"damping_epochs": [4, 2]}}}, "ascending"),
        (
            {"members": [{"name": "a", "model": "x", "trunk": "frozen", "pretrained": True}]},
            "needs trunk=trained, but the",
        ),
    ],
)
def test_what_cannot_work_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        TrainSettings.parse({**SMALL, "recipe": KFAC, **change})
    assert "\n" not in str(caught.value)


def test_a_fingerprint_knows_it_only_where_it_is_set() -> None:
    assert "preconditioner" not in Recipe().fingerprint_fields()
    own = Recipe(preconditioner=KfacSettings(gradient_workers=0.5)).fingerprint_fields()
    assert own["preconditioner"]["damping"] == 0.003
    assert "gradient_workers" not in own["preconditioner"]
    assert own["preconditioner"]["negligible"] == 0.03
    before = Recipe(preconditioner=KfacSettings(negligible=0, factor_rows=0)).fingerprint_fields()
    assert not {"negligible", "factor_rows"} & before["preconditioner"].keys()


def test_adamw_leaves_its_second_moment_out() -> None:
    """A gradient ten times as long moves a weight ten times as far."""
    moved = []
    for length in (1.0, 10.0):
        net = nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            net.weight.fill_(1.0)
        recipe = Recipe(learning_rate=0.1, weight_decay=0.0, preconditioner=KfacSettings())
        net.weight.grad = torch.full((1, 2), length)
        build_optimizer(net, recipe, fresh=[]).step()
        moved.append(1.0 - float(net.weight.detach()[0, 0]))
    assert moved[1] == pytest.approx(10 * moved[0])


def test_its_rate_grows_linearly_with_the_batch() -> None:
    recipe = Recipe(batch=64, base_batch=16, learning_rate=0.1, preconditioner=KfacSettings())
    assert recipe.peak_rate == pytest.approx(0.4)


def test_decompositions_come_early_and_then_rarely() -> None:
    settings = KfacSettings()
    steps = [step for step in range(301) if settings.inverts_at(step)]
    assert steps == [0, 10, 20, 40, 80, 100, 200, 300]
    often = KfacSettings(factors_every=1, inverses_every=1)
    assert all(often.inverts_at(step) for step in range(20))


def test_a_factor_s_average_is_a_mean_until_it_forgets() -> None:
    settings = KfacSettings(factors_every=10, decay=0.75)
    kept = [settings.decay_at(step) for step in (0, 10, 20, 30, 40, 400)]
    assert kept == pytest.approx([0, 1 / 2, 2 / 3, 3 / 4, 3 / 4, 3 / 4])


def test_the_damping_falls_by_its_schedule() -> None:
    settings = KfacSettings(damping=0.08, damping_epochs=(2, 5), damping_factor=0.5)
    found = [settings.damping_at(epoch) for epoch in (0, 1, 2, 4, 5)]
    assert found == [0.08, 0.08, 0.04, 0.04, 0.02]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20), st.integers(1, 8))
def test_no_place_has_more_than_grahams_bound(costs: list[int], places: int) -> None:
    """Longest first: at most what ends last, above an even share (Graham 1969)."""
    placed = share_out(dict(enumerate(map(float, costs))), places)
    loads = [sum(costs[key] for key in placed if placed[key] == place) for place in range(places)]
    assert sum(loads) == sum(costs)
    assert max(loads) <= sum(costs) / places + max(costs) * (1 - 1 / places)


@given(
    widths=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 30)), min_size=1, max_size=10),
    ranks=st.integers(1, 8),
    share=st.floats(0.01, 1),
)
def test_every_factor_is_decomposed_in_the_row_that_needs_it(
    widths: list[tuple[int, int]], ranks: int, share: float
) -> None:
    shapes = {
        f"layer{number}": {"inside": shape, "outside": (shape[0], 3)}
        for number, shape in enumerate(widths)
    }
    sharing = plan_sharing(shapes, ranks, share)
    assert sharing.workers == workers_of(share, ranks)
    assert ranks % sharing.workers == 0
    assert sharing.rank_of.keys() == {(name, key) for name, own in shapes.items() for key in own}
    for (name, _), rank in sharing.rank_of.items():
        assert rank in sharing.rows[sharing.row_of[name]]
    assert sorted(rank for row in sharing.rows for rank in row) == list(range(ranks))
    assert sorted(rank for column in sharing.columns for rank in column) == list(range(ranks))


def test_the_dial_goes_from_one_worker_to_all() -> None:
    assert [workers_of(share, 8) for share in (0.01, 0.25, 0.5, 1.0)] == [1, 2, 4, 8]
    assert workers_of(0.5, 3) == 1
