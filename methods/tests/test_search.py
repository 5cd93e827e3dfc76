from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_plans import cluster, profile, profiles

from skindx.core.cost.pricing import Load
from skindx.core.cost.profile import AtBatch
from skindx.core.errors import UserError
from skindx.training.config.run import TrainSettings
from skindx_methods.plan.choices import DEFAULTS, Choice, PlannedMember, Workload
from skindx_methods.plan.cluster import ClusterNetwork, Correction
from skindx_methods.plan.estimate import Machine, estimate, memory_of
from skindx_methods.plan.events import simulate_step
from skindx_methods.plan.interval import bounds_s, is_surely_slower, width_of_all
from skindx_methods.plan.plan import largest_batch, make
from skindx_methods.plan.profiles import compute_scale, trace_of
from skindx_methods.plan.search import VARIANTS, PlanLimits, search
from skindx_methods.plan.strategy_kinds import strategy_of

MEMBER = PlannedMember("m", profile(), batch=32, epochs=2, images=320, validation=32)
WORK = Workload((MEMBER,))


def machine(**change: object) -> Machine:
    return Machine(profiles(), cluster(4, **change))  # type: ignore[arg-type]


def test_an_epoch_is_its_steps_and_its_validation() -> None:
    found = search(WORK, machine(), PlanLimits(strategy="dense"))
    [member] = found.chosen.members
    # 8 images a rank; 10 steps; validation is forward alone, 8 of 32 images a rank.
    assert member.estimate.step_s == pytest.approx(10 + 1.3 + 0.5)
    assert member.epoch_s == pytest.approx(118)
    assert member.validation_s == pytest.approx(3)
    assert found.chosen.seconds == pytest.approx(2 * 121)


@given(
    st.sampled_from(VARIANTS), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]),
    st.floats(1e-9, 1e-2),
)  # fmt: skip
def test_a_plan_is_never_slower_than_what_was_given(
    variant: tuple[str, dict[str, object]], nodes: int, pieces: int, beta: float
) -> None:
    given_as = Choice(strategy_of(*variant), nodes, 1, 32, pieces)
    where = Machine(profiles(), cluster(4, beta=beta, fastest_beta_s_per_byte=None))
    found = search(WORK, where, PlanLimits(lossy=True), given_as)
    assert found.given
    assert found.chosen.score_s <= found.given.score_s * (1 + 1e-9)


def alike(gain: float = 0.02) -> tuple[Machine, PlanLimits]:
    """Four ranks whose link `fused` hides a little of, so that it is faster by about `gain`."""
    # Backward ends at 10 s; the second layer's gradient is there 3 s before.
    return Machine(profiles(), cluster(4, alpha_s=0.0, beta=10 * gain / 8000)), PlanLimits()


def test_of_choices_that_may_be_as_good_the_one_with_the_fewest_settings_is_taken() -> None:
    made = make(WORK, *alike())
    fastest, chosen = made.search_result.fastest, made.chosen
    assert fastest.choice.strategy.name == "fused"
    assert chosen.choice.strategy.name == "dense"
    assert fastest.score_s < chosen.score_s
    assert (fastest.changed, chosen.changed) == (1, 0)
    [note] = [note for note in made.notes if "can be wrong by" in note]
    assert note.startswith("fused on 4 ranks is predicted to be ")


def test_a_plan_says_whose_times_its_trace_holds() -> None:
    def notes(device: str, measured_on: int, per_node: int) -> str:
        trace = profiles().model_copy(update={"device": device, "ranks": measured_on})
        links = cluster(4, alpha_s=0.0, beta=1e-6).model_copy(
            update={"nodes": 4 // per_node, "ranks_per_node": per_node}
        )
        return " ".join(make(WORK, Machine(trace, links), PlanLimits(strategy="dense")).notes)

    assert "hold for no GPU" in notes("cpu", 4, 4)
    assert "hold for no GPU" not in notes("cuda", 4, 4)
    alone = notes("cuda", 1, 4)
    assert "of one rank alone, and 4 ranks of a node share" in alone
    assert "--ranks 4" in alone
    assert "of one rank alone" not in notes("cuda", 4, 4) + notes("cuda", 1, 1)


def test_a_choice_that_is_surely_faster_is_taken_whatever_it_changes() -> None:
    made = make(WORK, *alike(0.4))
    assert made.chosen is made.search_result.fastest
    assert made.chosen.changed
    assert not any("can be wrong by" in note for note in made.notes)


def test_what_two_choices_share_moves_both_and_not_their_ratio() -> None:
    """A link of which little is known: the intervals of both steps overlap, and one is faster."""
    where, limits = alike(0.15)
    [known] = where.cluster.collectives
    doubtful = known.model_copy(update={"spread": 0.35})
    where = Machine(where.profiles, where.cluster.model_copy(update={"collectives": (doubtful,)}))
    made = make(WORK, where, limits)
    by_name = {one.choice.label: one for one in made.search_result.every if one.choice.ranks == 4}
    dense, fused = by_name["dense"], by_name["fused"]
    assert bounds_s(dense.first)[0] < bounds_s(fused.first)[1]
    ratio = dense.score_s / fused.score_s
    assert is_surely_slower(dense, fused, ratio)
    assert not is_surely_slower(dense, fused, 1.05)
    assert made.chosen is fused
    assert not any("can be wrong by" in note for note in made.notes)


def test_a_changed_gradient_is_taken_only_where_it_is_surely_faster() -> None:
    where, _ = alike()
    assert not make(WORK, where, PlanLimits(lossy=True)).chosen.choice.strategy.lossy
    assert not any("--lossy" in note for note in make(WORK, where, PlanLimits()).notes)
    slow, _ = alike(8.0)
    assert make(WORK, slow, PlanLimits(lossy=True)).chosen.choice.strategy.lossy
    assert any("--lossy" in note for note in make(WORK, slow, PlanLimits()).notes)


def test_fewer_settings_are_never_slower_than_those_given() -> None:
    where, limits = alike()
    given_as = Choice(strategy_of("fused"), 4, 1, 32)
    found = search(WORK, where, limits, given_as)
    assert found.chosen is found.given  # dense overlaps, and is slower


def test_hours_and_money_hold_for_the_simpler_choice_too() -> None:
    where, _ = alike()
    where = Machine(where.profiles, where.cluster.model_copy(update={"price_per_node_hour": 36.0}))
    both = {one.choice.label: one for one in search(WORK, where, PlanLimits()).every
            if one.choice.ranks == 4}  # fmt: skip
    between = (both["dense"].seconds + both["fused"].seconds) / 2
    assert search(WORK, where, PlanLimits(money=between * 0.04)).chosen.choice.label == "fused"
    # Within so many hours only `fused` on four nodes is done.
    made = make(WORK, where, PlanLimits(hours=between / 3600))
    assert made.chosen.choice.label == "fused"
    assert not any("can be wrong by" in note for note in made.notes)


def test_the_defaults_that_a_choice_is_compared_with_are_those_of_a_training() -> None:
    settings = TrainSettings()
    for key, value in DEFAULTS.items():
        assert reduce(getattr, key.split("."), settings) == value, key


def test_changed_settings_are_counted_one_by_one() -> None:
    counted = {
        "fused": 1,
        "zero-2": 1,
        "powersgd": 1,
        "dense": 0,
    }
    for name, count in counted.items():
        assert Choice(strategy_of(name), 2, 2, 32).changed() == count, name
    assert Choice(strategy_of("fused", {"wire": "bf16"}), 1, 4, 32, accumulate=2).changed() == 3
    assert Choice(strategy_of("owt", {"scheme": "b"}), 1, 4, 32, checkpointing=True).changed() >= 3


def test_what_does_not_fit_is_cut_into_pieces_and_what_never_fits_is_refused() -> None:
    # 900,000 bytes + 100,000 an image; 8 images a rank.
    tight = machine(memory_gb=1.3e-3)
    found = search(WORK, tight, PlanLimits(strategy="fused"))
    assert found.chosen.choice.accumulate == 2
    assert found.chosen.memory_bytes == pytest.approx(1_000_000)
    with pytest.raises(UserError, match="nothing fits"):
        search(WORK, machine(memory_gb=1e-4), PlanLimits())


def test_memory_is_a_line_through_two_batches_and_what_an_exchange_adds() -> None:
    own = profile()
    load, network = Load(trace_of(own), own, "cuda"), ClusterNetwork(cluster(4))

    def peak(name: str, batch: int) -> float:
        return memory_of(strategy_of(name), load, network, batch, 0, checkpointing=False).peak_bytes

    assert peak("fused", 16) == pytest.approx(600_000 + 16 * 100_000)
    assert peak("gtopk", 16) - peak("fused", 16) == 12_000
    assert peak("dense", 16) - peak("fused", 16) == 12_000
    # On a CPU a copy of all state waits for the disk beside a step.
    load = replace(load, device="cpu")
    assert (
        peak("fused", 16) == 600_000 + 16 * 100_000 + 2 * own.parameter_bytes + own.optimizer_bytes
    )
    # And what an exchange remembers: a residual; the weights of a round, its change and residual.
    assert peak("gtopk", 16) - peak("fused", 16) == 2 * 12_000
    assert peak("local", 16) - peak("fused", 16) == 2 * 3 * 12_000
    assert peak("powersgd", 16) - peak("fused", 16) >= 3 * 12_000
    load = replace(load, device="cuda")
    # Three quarters of optimizer, of gradients, of weights are elsewhere.
    assert peak("zero-1", 16) - peak("zero-2", 16) == pytest.approx(9_000)
    assert peak("zero-2", 16) - peak("zero-3", 16) == pytest.approx(9_000)
    assert largest_batch(strategy_of("fused"), load, network, 0, 2.05e6) == 14


def test_time_at_another_batch_is_a_line_and_not_in_proportion() -> None:
    own = profile(at=(AtBatch(batch=4, compute_s=6), AtBatch(batch=8, compute_s=10)))
    assert compute_scale(own, 8) == pytest.approx(1)
    assert compute_scale(own, 2) == pytest.approx(0.4)
    assert compute_scale(own.model_copy(update={"at": ()}), 2) == pytest.approx(0.25)


def test_beyond_what_was_measured_there_is_no_figure_unless_asked_and_then_a_wide_band() -> None:
    ten_times = machine(fastest_beta_s_per_byte=2e-3)
    with pytest.raises(UserError, match=r"20 times as fast .*--extrapolate"):
        search(WORK, ten_times, PlanLimits(strategy="dense"))
    wide = search(WORK, ten_times, PlanLimits(strategy="dense", extrapolate=True)).chosen
    narrow = search(WORK, machine(), PlanLimits(strategy="dense")).chosen
    assert width_of_all(wide) > 3 * width_of_all(narrow)
    assert wide.beyond
    far = Workload((PlannedMember("m", profile(), batch=256, images=512),))
    with pytest.raises(UserError, match=r"8\.0 times the largest batch whose memory"):
        search(far, machine(), PlanLimits(strategy="dense"))
    many = Machine(profiles(), cluster(4, source="measured"))
    many = Machine(many.profiles, many.cluster.model_copy(update={"nodes": 32}))
    with pytest.raises(UserError, match="32 ranks are more than 4 times"):
        search(Workload((MEMBER,), weak=True), many, PlanLimits(strategy="dense"))


def test_hours_take_the_cheapest_and_money_the_fastest_that_it_buys() -> None:
    priced = machine(price_per_node_hour=36.0)  # a cent a second
    free = search(WORK, priced, PlanLimits()).chosen
    assert free.choice.nodes == 4
    slow = search(WORK, priced, PlanLimits(hours=1.0)).chosen
    assert slow.choice.nodes == 1
    assert slow.money == pytest.approx(0.01 * slow.seconds)
    bought = search(WORK, priced, PlanLimits(money=(slow.money or 0) * 1.001)).chosen
    assert bought.choice.nodes == 1


def test_only_what_keeps_the_gradient_is_chosen_unless_asked() -> None:
    crawling = Machine(profiles(), cluster(4, beta=0.1))
    exact = make(WORK, crawling, PlanLimits())
    assert not exact.chosen.choice.strategy.lossy
    assert search(WORK, crawling, PlanLimits(lossy=True)).chosen.choice.strategy.lossy
    assert any("--lossy" in note for note in exact.notes) or exact.chosen.choice.ranks == 1


def test_a_correction_is_used_and_named() -> None:
    learnt = {"compute": Correction(factor=1.2, runs=3)}
    made = make(WORK, machine(corrections=learnt), PlanLimits(strategy="dense"))
    assert made.chosen.first.step_s == pytest.approx(12 + 1.3 + 0.5)
    assert any("compute x 1.200 (3 runs)" in note for note in made.notes)


def test_activations_computed_again_cost_what_was_measured() -> None:
    # 10 s at 8 images without it, and 12 s with it; 20 s at 16, so 24 s.
    timed = profile(checkpointing=AtBatch(batch=8, compute_s=12, peak_bytes=1_200_000))
    again = Choice(strategy_of("dense"), 1, 1, 8, checkpointing=True)
    own = Machine(profiles(timed), cluster(4))
    assert estimate(timed, again, own).step_s == pytest.approx(12.5)
    twice = replace(again, batch=16)
    assert estimate(timed, twice, own).step_s == pytest.approx(24.5)


def test_activations_computed_again_cost_a_forward() -> None:
    again = Choice(strategy_of("dense"), 1, 1, 8, checkpointing=True)
    found = estimate(profile(), again, machine())
    assert found.step_s == pytest.approx(10.5 + 3)


def test_a_layer_that_was_never_timed_is_refused() -> None:
    first, second = profile().layers
    holed = profile(layers=(first, second.model_copy(update={"backward_s": None})))
    with pytest.raises(UserError, match="layer b of net has no measured time"):
        search(Workload((PlannedMember("m", holed, 8),)), machine(), PlanLimits())


def test_an_unknown_strategy_lists_those_there_are() -> None:
    with pytest.raises(UserError, match="no strategy 'ring'; choose one of dense, fused"):
        search(WORK, machine(), PlanLimits(strategy="ring"))


def test_local_steps_are_proposed_where_the_gradient_may_change_and_a_round_fits_an_epoch() -> None:
    """A slow link: they send least, and are named as what changes the gradient."""
    long = replace(MEMBER, images=32 * 20)
    slow = Machine(profiles(), cluster(4, beta=1.0))
    work = Workload((long,))
    names = {one.choice.strategy.name for one in search(work, slow, PlanLimits(lossy=True)).every}
    assert {"local", "gtopk"} <= names
    assert not search(work, slow, PlanLimits()).chosen.choice.strategy.lossy
    kept_back = make(work, slow, PlanLimits()).notes
    assert any("; --lossy lets it be chosen" in note.replace(", but", ";") for note in kept_back)

    short = Workload((long, replace(MEMBER, name="short")))
    every = search(short, slow, PlanLimits(lossy=True)).every
    assert not any(one.choice.strategy.name == "local" for one in every)
    with pytest.raises(
        UserError,
        match=r"^member short: exchange\.steps=20 is more than the 10 steps of an epoch; ",
    ) as refused:
        search(short, slow, PlanLimits(strategy="local"))
    scaled = Workload(tuple(replace(one, lockstep="engine.precision=fp16") for one in work.members))
    with pytest.raises(UserError, match=r"ranks train apart, and engine.precision=fp16 needs them"):
        search(scaled, slow, PlanLimits(strategy="local"))
    assert str(refused.value).endswith("set exchange.steps to at most 10.")


def test_zero_updates_a_part_and_gathers_the_weights() -> None:
    network = ClusterNetwork(cluster(4))
    load = Load(trace_of(profile()), profile(), "cuda")

    def step_of(name: str) -> float:
        schedule = strategy_of(name).schedule(load, network)
        return simulate_step(load.trace, schedule, network).seconds

    # Reduced as a gather of a quarter (3 steps of 3,000 bytes), and gathered again; once more each
    # before forward and in backward for stage 3.
    gather = 3 * (0.01 + 0.3)
    assert step_of("zero-1") == pytest.approx(10 + gather + 0.5 / 4 + gather)
    assert step_of("zero-3") == pytest.approx(2 * gather + 10 + gather + 0.5 / 4)
