from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from some_plans import cluster

from skindx.core.cost.cells import chain_of, step_seconds
from skindx.core.cost.events import Feeding
from skindx.core.cost.network import Network
from skindx.core.cost.placing import Ground, cells_of, degrees_of, wide
from skindx.core.cost.profile import Profile, ProfiledLayer
from skindx.training.forms.operators import search_placements, searched

BYTES = st.sampled_from([400, 4_000, 40_000, 400_000, 4_000_000])
SECONDS = st.sampled_from([0.0, 1e-4, 1e-3, 1e-2])


@st.composite
def grounds(draw: st.DrawFn, most: int = 6, backend: str = "nccl") -> Ground:
    """Up to six operators, on four ranks in one of three ways."""
    layers = []
    for number in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from(["Linear", "Conv2d", "LayerNorm"]))
        size = draw(BYTES)
        layers.append(
            ProfiledLayer(name=f"l{number}", operator=kind, forward_s=draw(SECONDS),
                  backward_s=draw(SECONDS), parameter_bytes=size,
                  activation_bytes=8 * draw(BYTES), input_bytes=8 * draw(BYTES),
                  outputs=draw(st.sampled_from([2, 3, 64])))
        )  # fmt: skip
    own = Profile(name="net", batch=8, layers=tuple(layers), update_s=1e-3)
    nodes, per_node = draw(st.sampled_from([(4, 1), (2, 2), (1, 4)]))
    where = cluster(
        nodes,
        ranks_per_node=per_node,
        backend=backend,
        collectives=(),
        links={"between": {"alpha_s": 1e-4, "beta_s_per_byte": 1e-8},
               "inside": {"alpha_s": 1e-5, "beta_s_per_byte": 1e-9}},
    )  # fmt: skip
    return Ground(own, Network(where), images=8)


def price(ground: Ground, degrees: tuple[int, ...]) -> float:
    return step_seconds(
        cells_of(ground, degrees), lambda axis, size: ground.summed(axis, size).alone_s, 1e-9
    )


@settings(deadline=None, max_examples=40)
@given(grounds())
def test_the_search_finds_the_optimum_of_all_placements_of_six_operators(ground: Ground) -> None:
    count = len(ground.operators)
    every = product(*(degrees_of(ground, number) for number in range(count)))
    best = min(price(ground, degrees) for degrees in every)
    found = searched(ground, 1e-9)
    assert found.seconds == pytest.approx(best, rel=1e-9)
    assert found.seconds == pytest.approx(price(ground, found.degrees), rel=1e-12)
    assert found == searched(ground, 1e-9)


@settings(deadline=None, max_examples=25)
@given(grounds(most=12))
def test_no_placement_is_slower_than_data_parallelism_or_owt(ground: Ground) -> None:
    found = searched(ground, 1e-9, proposals=50)
    assert found.seconds <= price(ground, (1,) * len(ground.operators)) * (1 + 1e-12)
    assert found.seconds <= price(ground, wide(ground)) * (1 + 1e-12)


@settings(deadline=None, max_examples=40)
@given(grounds(), st.data())
def test_what_a_search_prices_is_what_the_events_take(ground: Ground, data: st.DataObject) -> None:
    degrees = tuple(
        data.draw(st.sampled_from(degrees_of(ground, number)))
        for number in range(len(ground.operators))
    )
    chain = chain_of(cells_of(ground, degrees), ground.summed, 1e-9)
    step = chain.run(device="cuda", slots=1, pieces=1, feeding=Feeding())
    assert step.seconds == pytest.approx(price(ground, degrees), rel=1e-9)
    assert sum(step.parts.values()) == pytest.approx(step.seconds)


def test_a_chain_accepts_what_is_slower_and_keeps_what_was_fastest() -> None:
    # The way to all three split leads over what is slower, three times.
    times = [10.0, 10.05, 10.1, 5.0]
    every, start = [(1, 4)] * 3, (1, 1, 1)

    def seconds_of(degrees: tuple[int, ...]) -> float:
        return times[degrees.count(4)]

    found = search_placements([start], every, seconds_of)
    assert (found.degrees, found.seconds, found.priced) == ((4, 4, 4), 5.0, 8)
    stays = search_placements([start], every, seconds_of, proposals=0)
    assert stays.degrees == start
    assert search_placements([(1,)], [(1,)], lambda _: 1.0).priced == 1
