"""Plans of `exchange.kind: factored`: what a wide linear layer sends, and when it pays."""

from dataclasses import replace
from typing import Any

import pytest
from some_plans import cluster, profile, profiles

from skindx.core.cost.pricing import Load
from skindx.core.cost.profile import Profile, ProfiledLayer, Rates
from skindx.core.errors import UserError
from skindx_methods.factored.factored import factors_of
from skindx_methods.plan.choices import PlannedMember, Workload
from skindx_methods.plan.cluster import ClusterNetwork, Collective
from skindx_methods.plan.estimate import Machine
from skindx_methods.plan.profiles import trace_of
from skindx_methods.plan.search import PlanLimits, search
from skindx_methods.plan.strategy_kinds import strategy_of

INSIDE, OUTSIDE = 1000, 500


def wide(**change: Any) -> Profile:
    """A convolution of 1,000 elements, and a linear layer of 2 MB before the end."""
    layers = (
        ProfiledLayer(name="a", operator="Conv2d", forward_s=1, backward_s=3, shapes=((1000,),),
              parameter_bytes=4000, activation_bytes=100),
        ProfiledLayer(name="b", operator="Linear", forward_s=2, backward_s=4,
              shapes=((OUTSIDE,), (OUTSIDE, INSIDE)),
              parameter_bytes=4 * (OUTSIDE + OUTSIDE * INSIDE), activation_bytes=8 * OUTSIDE * 4),
    )  # fmt: skip
    return profile(layers=layers, **change)


RATES = Rates(product_flop_s=1e6)
GATHER = Collective(collective="all_gather", nodes=4, alpha_s=0.2, beta_s_per_byte=1e-5)


def network() -> ClusterNetwork:
    where = cluster(4)
    return ClusterNetwork(where.model_copy(update={"collectives": (*where.collectives, GATHER)}))


def test_factors_go_first_and_the_others_in_buckets_by_hand() -> None:
    own = wide(rates=RATES)
    load = Load(trace_of(own), own, "cuda", images=8, pieces=2)
    found = strategy_of("factored").schedule(load, network())
    factors, others = found.messages
    size = 16 * (INSIDE + OUTSIDE) * 4
    assert (factors.tensors, factors.size_bytes) == (2, size)  # the bias comes before the weight
    assert factors.timed.alone_s == pytest.approx(0.2 + 1e-5 * size)
    assert (others.tensors, others.size_bytes) == (3, 4 * (OUTSIDE + 1000))
    # Products with the rows of three other ranks.
    assert found.finish_s == pytest.approx(2 * 3 * 16 * INSIDE * OUTSIDE / 1e6)
    # Without rates: of the layer's 4 s a pass half is the gradient of its weight.
    guessed = strategy_of("factored").schedule(replace(load, profile=wide()), network())
    assert guessed.finish_s == pytest.approx(3 * 2 * 4 / 2)
    memory = strategy_of("factored").memory_bytes(load, network(), 8)
    assert memory == 4 * size
    assert strategy_of("factored").schedule(load, ClusterNetwork(cluster(4), 1, 1)).messages == ()


@pytest.mark.parametrize(
    ("images", "ranks", "change", "pays"),
    [
        (83, 4, {}, True),  # 2 x 83 x 1,500 <= 2 x 500,000 / 4
        (84, 4, {}, False),
        (84, 2, {}, True),
        (166, 4, {"precision": "bf16", "batch": 16}, True),  # half the bytes
        (1, 1, {}, False),
    ],
)
def test_factors_pay_for_few_rows(
    images: int, ranks: int, change: dict[str, Any], pays: bool
) -> None:
    assert bool(factors_of(wide(**change), images, ranks)) == pays


def test_a_row_is_a_token_where_a_layer_has_many() -> None:
    layer = wide().layers[1]
    tokens = layer.model_copy(update={"activation_bytes": 7 * layer.activation_bytes})
    own = wide().model_copy(update={"layers": (wide().layers[0], tokens)})
    [found] = factors_of(own, 3, 4)
    assert found.rows == 21


def _searched(own: Profile, **change: Any) -> set[str]:
    member = PlannedMember("m", own, batch=32, epochs=2, images=320, validation=32, **change)
    found = search(Workload((member,)), Machine(profiles(own), cluster(4)), PlanLimits())
    return {outcome.choice.strategy.name for outcome in found.every}


def test_a_search_looks_at_factors_only_where_a_layer_is_wide() -> None:
    assert "factored" in _searched(wide())
    assert "factored" not in _searched(profile())
    assert "factored" not in _searched(wide(rates=RATES), preconditioned=True)
    assert "factored" not in _searched(wide(), whole_layers=True)
    work = Workload((PlannedMember("m", wide(), batch=32, whole_layers=True),))
    machine = Machine(profiles(wide()), cluster(4))
    with pytest.raises(UserError, match="eager network"):
        search(work, machine, PlanLimits(strategy="factored"))


def test_factors_are_faster_than_gradients_on_a_slow_network() -> None:
    work = Workload((PlannedMember("m", wide(), batch=32, epochs=2, images=320, validation=32),))
    factored, fused = (
        search(work, Machine(profiles(wide()), cluster(4)), PlanLimits(strategy=name)).chosen
        for name in ("factored", "fused")
    )
    assert factored.score_s < fused.score_s / 2
    assert factored.choice.strategy.fragment()["exchange"] == {"kind": "factored"}
