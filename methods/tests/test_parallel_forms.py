"""Bytes, memory and times of layers that are shared out over ranks."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from some_networks import alexnet
from some_networks import profiles as of_network
from some_plans import cluster

from skindx.core.cost.pricing import Load
from skindx.core.cost.profile import Profile
from skindx.core.errors import UserError
from skindx_methods.plan.choices import PlannedMember, Workload
from skindx_methods.plan.cluster import ClusterNetwork
from skindx_methods.plan.estimate import Machine
from skindx_methods.plan.plan import preset
from skindx_methods.plan.profiles import trace_of
from skindx_methods.plan.search import PlanLimits, search
from skindx_methods.plan.strategy_kinds import strategy_of
from skindx_methods.split_layers.cells import Cell
from skindx_methods.split_layers.owt_form import Ground, in_rounds


def sent_bytes(cells: Sequence[Cell]) -> int:
    """What each rank sends over the borders of a step."""
    return sum(border.sent_bytes for cell in cells for border in cell.borders)


def free(nodes: int, per_node: int = 1) -> ClusterNetwork:
    """Every byte takes a second on the link between nodes, a thousandth inside one."""
    links = {"between": {"alpha_s": 0.0, "beta_s_per_byte": 1.0},
             "inside": {"alpha_s": 0.0, "beta_s_per_byte": 1e-3}}  # fmt: skip
    return ClusterNetwork(
        cluster(nodes, ranks_per_node=per_node, collectives=(), links=links, backend="nccl")
    )


def test_bytes_over_the_border_of_a_split_layer_are_the_formula() -> None:
    """2 (k - 1) b (n + m / k) numbers a rank (Krizhevsky 2014, scheme (a))."""
    own = alexnet(128, 2, 32)
    ground = Ground(own, free(4), images=32)
    # Two classes are too few for four ranks.
    assert ground.wide() == (*[False] * 5, True, True, False)
    widths = ((9216, 4096), (4096, 4096))
    numbers = sum(2 * 3 * 32 * (n + m // 4) for n, m in widths)
    assert sent_bytes([ground.cell(number, split=True) for number in (5, 6)]) == 4 * numbers
    assert not sent_bytes([ground.cell(0, split=False)])
    assert not ground.cell(0, split=True).after_backward  # images have no gradient


def test_a_wide_layer_is_one_whose_gradient_has_more_numbers_than_goes_in_and_out() -> None:
    own = alexnet(128, 1000, 32)
    # fc8 has 4,096,000 weights; 4 x 32 images bring (4096 + 250) numbers each, 943 ranks more.
    assert Ground(own, free(4), 32).wide()[-3:] == (True, True, True)
    assert Ground(own, free(4), 236).wide()[-3:] == (True, True, False)
    assert Ground(own, free(4), 32).wide(10**7)[-3:] == (True, True, False)


def forward_s(cell: Cell) -> float:
    """With its borders."""
    borders = cell.before_forward + cell.after_forward
    return cell.forward_s + sum(border.timed.alone_s for border in borders)


def test_rounds_send_as_much_and_hide_what_computing_lasts() -> None:
    ground = Ground(alexnet(128, 2, 32), ClusterNetwork(preset("10gbe:4")), images=32)
    network = ground.network
    for cell in (ground.cell(number, split=True) for number in (5, 6)):
        for scheme in ("b", "c"):
            shown = in_rounds(cell, network, scheme)
            assert sent_bytes([shown]) == sent_bytes([cell])
            assert (shown.forward_s, shown.weight_bytes) == (cell.forward_s, cell.weight_bytes)
        # With no computing to hide behind, rounds only add their latencies.
        idle = replace(cell, forward_s=0.0, backward_s=0.0)
        bare = forward_s(in_rounds(idle, network, "c"))
        assert forward_s(idle) < bare < forward_s(idle) + 4 * 4 * 1e-3
        long = replace(cell, forward_s=100.0)
        borders_s = forward_s(in_rounds(long, network, "c")) - 100
        assert borders_s == pytest.approx(bare / 4)  # the first round's and the last one's
        assert forward_s(in_rounds(idle, network, "b")) > bare
        assert in_rounds(cell, network, "a") == cell


def test_each_further_round_passes_all_weights_through_memory() -> None:
    ground = Ground(alexnet(128, 2, 32), ClusterNetwork(preset("10gbe:4")), images=32)
    cell, network = ground.cell(5, split=True), ground.network
    free_, priced = (in_rounds(cell, network, "c", own_s) for own_s in (0.0, 9e-9))
    again_s = 3 * cell.weight_bytes * 1e-9
    assert priced.forward_s - free_.forward_s == pytest.approx(again_s)
    assert priced.backward_s - free_.backward_s == pytest.approx(5 * again_s)
    assert in_rounds(cell, network, "a", 9e-9) == cell


def test_memory_falls_by_the_weights_that_other_ranks_hold() -> None:
    own = alexnet(128, 2, 32)
    load = Load(trace_of(own), own, "cuda", images=32)
    split = 4 * (9216 * 4096 + 4096 + 4096 * 4096 + 4096)
    optimizer = own.optimizer_bytes / own.parameter_bytes
    saved = 0.75 * split * (2 + optimizer)
    gathered = 3 * 32 * 4 * (9216 + 4096)
    found = strategy_of("owt").memory_bytes(load, free(4), 32)
    assert found == pytest.approx(gathered - saved, rel=1e-6)


def seconds_of(name: str, own: Profile, where: str, batch: int, *, weak: bool = False) -> float:
    machine = Machine(of_network(own), preset(where))
    work = Workload((PlannedMember("m", own, batch),), weak=weak)
    return search(work, machine, PlanLimits(strategy=name, extrapolate=True)).chosen.first.step_s


EVERY = ("dense", "fused", "owt")


def test_small_images_are_best_left_on_one_device() -> None:
    """56 px and 200 classes, 128 images a step: every parallel form loses to one device."""
    own = alexnet(56, 200, 128)
    alone = seconds_of("dense", own, "10gbe:1", 128)
    assert all(seconds_of(name, own, "10gbe:4", 128) > alone for name in EVERY)


def test_one_weird_trick_beats_data_parallelism_at_128_pixels_and_two_classes() -> None:
    own = alexnet(128, 2, 128)
    best = min(seconds_of(name, own, "10gbe:4", 128) for name in ("dense", "fused"))
    assert seconds_of("owt", own, "10gbe:4", 128) < best


@pytest.mark.parametrize(("devices", "least"), [(4, 2.5), (8, 2), (16, 1.5)])
def test_one_weird_trick_wins_at_224_pixels(devices: int, least: float) -> None:
    """128 images a device, one device a node, against the better of two data-parallel exchanges."""
    own, where = alexnet(224, 1000, 128), f"10gbe:{devices}"
    best = min(seconds_of(name, own, where, 128, weak=True) for name in ("dense", "fused"))
    assert least < best / seconds_of("owt", own, where, 128, weak=True) < 4
    with pytest.raises(UserError, match="larger than its inputs and outputs"):
        seconds_of("owt", own, "10gbe:64", 128, weak=True)


def test_what_cannot_be_shared_out_is_one_sentence() -> None:
    with pytest.raises(UserError, match="there is only one"):
        seconds_of("owt", alexnet(128, 2, 128), "10gbe:1", 8, weak=True)
