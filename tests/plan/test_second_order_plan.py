"""What K-FAC adds to a step, counted by hand."""

from dataclasses import replace

import pytest
from some_plans import cluster, profiles

from skindx.core.cost.network import Network
from skindx.core.cost.profile import AtBatch, Profile, ProfiledLayer, Rates
from skindx.core.errors import UserError
from skindx.plan.choice import Choice, PlannedMember, Workload
from skindx.plan.estimate import Machine, estimate
from skindx.plan.kfac_price import KfacCost, conditioned, eigen_s, price
from skindx.plan.plan import make
from skindx.plan.plan_text import summary
from skindx.plan.search import PlanLimits, search
from skindx.plan.strategies import strategy_of

RATES = Rates(
    product_flop_s=1e6, memory_bytes_s=1e5, eigen_s=((10, 0.01), (100, 1.0)), layer_s=0.002
)

LAYERS = (
    # 8 channels in two groups of 4 from 2, kernels of 3 x 3, 5 x 5 positions.
    ProfiledLayer(name="conv", operator="Conv2d", forward_s=1, backward_s=3, shapes=((8, 2, 3, 3),),
          groups=2, parameter_bytes=576, activation_bytes=4 * 8 * 8 * 25),
    ProfiledLayer(name="norm", operator="BatchNorm2d", forward_s=0, backward_s=0,
          shapes=((8,), (8,)), parameter_bytes=64, activation_bytes=4 * 8 * 8 * 25),
    ProfiledLayer(name="embed", operator="Embedding", forward_s=0, backward_s=0, shapes=((8,),),
          parameter_bytes=32),
    ProfiledLayer(name="fc", operator="Linear", forward_s=1, backward_s=1, shapes=((20, 9), (20,)),
          parameter_bytes=800, activation_bytes=4 * 8 * 20),
)  # fmt: skip
OWN = Profile(name="net", size=64, batch=8, layers=LAYERS, update_s=0.5, rates=RATES,
              at=(AtBatch(batch=8, compute_s=6, peak_bytes=10**6),))  # fmt: skip

# Of conv two blocks of 18 and 4, of norm eight of 2, of fc 10 (a one is behind its inputs) and 20.
FACTORS = 2 * (18**2 + 4**2) + 8 * 2**2 + 10**2 + 20**2
PRODUCTS = 2 * 25 * 2 * (18**2 + 4**2) + 2 * 8 * 2**2 + 2 * (10**2 + 20**2)
"""Operations of the factors of an image; those of the norm in one row."""
TOUCHED = 4 * (6 * 25 * 2 * 18 + 4 * 8 * 25 + 10 * 8 * 25 + 6 * 10 + 4 * 20)
"""Bytes through memory, of an image."""
ELEMENTS = 2 * 18 * 4 + 8 * 2 + 10 * 20
CHANGING = 4 * (2 * 18 * 4 * (18 + 4) + 8 * 2 * 2 + 10 * 20 * (10 + 20))
FACTOR_S = 8 * (PRODUCTS / 1e6 + TOUCHED / 1e5)
CHANGE_S = CHANGING / 1e6 + 22 * 4 * ELEMENTS / 1e5 + 3 * 0.002


def test_the_layers_are_those_that_the_trainer_knows() -> None:
    found = {layer.name: (dict(layer.shapes), layer.rows) for layer in conditioned(OWN, 4608)}
    assert found == {
        "conv": ({"inside": (2, 18), "outside": (2, 4)}, 25),
        "norm": ({"inside": (8, 2)}, 1),
        "fc": ({"inside": (1, 10), "outside": (1, 20)}, 1),
    }
    assert [layer.name for layer in conditioned(OWN, 18)] == ["conv", "norm"]


def test_on_one_rank_it_is_factors_eigenvectors_and_products_each_at_its_interval() -> None:
    kfac = KfacCost(factors_every=5, inverses_every=20, sampled=False)
    found = price(kfac, OWN, Network(cluster(1)), images=8, backward_s=4.0)
    eigen = 2 * eigen_s(RATES, 18) + 2 * eigen_s(RATES, 4) + 8 * eigen_s(RATES, 2)
    eigen += eigen_s(RATES, 10) + eigen_s(RATES, 20)
    expected = FACTOR_S / 5 + eigen / 20 + CHANGE_S
    assert found.compute_s == pytest.approx(expected)
    assert found.messages == ()
    assert found.memory_bytes == found.saved_bytes + OWN.parameter_bytes
    assert found.saved_bytes == 2 * 4 * FACTORS
    drawn = price(replace(kfac, sampled=True), OWN, Network(cluster(1)), 8, 4.0)
    assert drawn.compute_s == pytest.approx(expected + 0.5 * 4.0 / 5)


def test_enough_rows_are_priced_for_the_images_that_have_them() -> None:
    kfac = KfacCost(factors_every=1, inverses_every=20, sampled=False)
    network = Network(cluster(1))
    whole = price(kfac, OWN, network, 80, 4.0).compute_s
    few = price(replace(kfac, factor_rows=750), OWN, network, 80, 4.0).compute_s
    conv = 25 * 2 * 2 * (18**2 + 4**2) / 1e6 + 4 * (6 * 25 * 2 * 18 + 4 * 8 * 25) / 1e5
    assert whole - few == pytest.approx((80 - 30) * conv)
    least = price(replace(kfac, factor_rows=1), OWN, network, 80, 4.0).compute_s
    assert whole - least == pytest.approx(70 / 8 * FACTOR_S)


def test_eigenvectors_take_a_line_between_logarithms_and_the_cube_beyond() -> None:
    assert eigen_s(RATES, 10) == 0.01
    assert eigen_s(RATES, 4) == 0.01
    assert eigen_s(RATES, 31) == pytest.approx(0.01 * (31 / 10) ** 2)
    assert eigen_s(RATES, 200) == pytest.approx(8.0)


def test_several_ranks_share_the_eigenvectors_and_send_them() -> None:
    kfac = KfacCost(factors_every=10, inverses_every=100, sampled=False)
    network = Network(cluster(4))
    found = price(kfac, OWN, network, images=8, backward_s=4.0)
    alone = price(kfac, OWN, Network(cluster(1)), images=8, backward_s=4.0)
    # The widest factor, 20, has a rank to itself: it takes as long as all others' at most.
    fixed = FACTOR_S / 10 + CHANGE_S
    shared, whole = found.compute_s - fixed, alone.compute_s - fixed
    assert 0.25 * whole <= shared < 0.6 * whole
    factors, vectors = found.messages
    assert factors.size_bytes == round(4 * FACTORS / 10)
    assert factors.timed.alone_s == pytest.approx((0.1 + 1e-4 * 4 * FACTORS) / 10)
    sent = 4 * (2 * (18 * 19 + 4 * 5) + 8 * 2 * 3 + 10 * 11 + 20 * 21)
    assert vectors.size_bytes == round(sent / 100)
    # Five factors along a chain of three links, one after the other.
    assert vectors.timed.alone_s == pytest.approx((5 * 3 * 0.01 + 1e-4 * sent) / 100)
    thrifty = price(replace(kfac, gradient_workers=0.25), OWN, network, images=8, backward_s=4.0)
    assert thrifty.memory_bytes < found.memory_bytes
    assert thrifty.compute_s < found.compute_s
    gradients = thrifty.messages[-1]
    assert gradients.size_bytes == 4 * ELEMENTS


def test_a_step_is_the_mean_over_a_cycle_and_the_plan_says_its_share() -> None:
    kfac = KfacCost()
    machine = Machine(profiles(OWN), cluster(4))
    plain = Choice(strategy_of("dense"), 4, 1, 32)
    before = estimate(OWN, plain, machine)
    after = estimate(OWN, replace(plain, kfac=kfac), machine)
    found = price(kfac, OWN, machine.network(4, 1), 8, 4.0)
    wire = sum(message.timed.alone_s for message in found.messages)
    assert after.step_s - before.step_s == pytest.approx(found.compute_s + wire)
    assert after.step.parts["precondition"] == pytest.approx(found.compute_s + wire)
    assert sum(after.step.parts.values()) == pytest.approx(after.step_s)
    more_bytes = found.memory_bytes + (found.saved_bytes if machine.profiles.device == "cpu" else 0)
    assert after.memory.peak_bytes - before.memory.peak_bytes == pytest.approx(more_bytes)
    assert after.half_width > before.half_width * 0.9
    work = Workload((PlannedMember("m", OWN, 32, epochs=1, images=320, kfac=kfac),))
    made = make(work, machine, PlanLimits())
    share = dict(summary(made))["K-FAC"]
    assert "of a step, the mean over 100 steps: factors every 10, eigenvectors every 100" in share
    names = {outcome.choice.strategy.name for outcome in made.search_result.every}
    assert not {"zero-1", "zero-2", "zero-3", "owt"} & names
    with pytest.raises(UserError, match=r"whole layers, which zero-1 shares"):
        search(work, machine, PlanLimits(strategy="zero-1"))


def test_without_rates_there_is_one_sentence_and_no_figure() -> None:
    old = OWN.model_copy(update={"rates": None})
    work = Workload((PlannedMember("m", old, 32, images=320, kfac=KfacCost()),))
    with pytest.raises(UserError, match="no rates of matrix products and eigenvectors"):
        make(work, Machine(profiles(old), cluster(4)), PlanLimits(extrapolate=True))


def test_optimizers_that_go_by_the_norms_of_layers_are_planned_without_zero() -> None:
    work = Workload((PlannedMember("m", OWN, 32, epochs=1, images=320, layer_norms=True),))
    machine = Machine(profiles(OWN), cluster(4))
    outcomes = make(work, machine, PlanLimits()).search_result.every
    names = {outcome.choice.strategy.name for outcome in outcomes}
    assert "dense" in names
    assert not {"zero-1", "zero-2", "zero-3", "owt"} & names
    with pytest.raises(UserError, match="norms of layers, which zero-1 mixes"):
        search(work, machine, PlanLimits(strategy="zero-1"))


def test_muon_is_planned_where_ranks_have_whole_layers() -> None:
    work = Workload((PlannedMember("m", OWN, 32, epochs=1, images=320, matrices=True),))
    machine = Machine(profiles(OWN), cluster(4))
    outcomes = make(work, machine, PlanLimits()).search_result.every
    names = {outcome.choice.strategy.name for outcome in outcomes}
    assert "dense" in names
    assert not {"zero-1", "zero-2", "zero-3", "owt"} & names
    for name in ("zero-2", "owt"):
        with pytest.raises(UserError, match=f"muon works on whole layers, which {name} shares out"):
            search(work, machine, PlanLimits(strategy=name))


def test_members_that_need_whole_layers_are_planned_without_split_ones() -> None:
    work = Workload((PlannedMember("m", OWN, 32, epochs=1, images=320, whole_layers=True),))
    machine = Machine(profiles(OWN), cluster(4))
    names = {
        outcome.choice.strategy.name
        for outcome in make(work, machine, PlanLimits()).search_result.every
    }
    assert "zero-1" in names
    assert not {"owt"} & names
    said = "fp16 and compiled networks need whole layers, which owt shares out"
    with pytest.raises(UserError, match=said):
        search(work, machine, PlanLimits(strategy="owt"))
