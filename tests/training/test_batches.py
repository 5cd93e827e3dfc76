import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skindx.data.loader.batches import (
    epoch_plan,
    global_batches,
    owners,
    sample_seed,
    shard,
    share,
)

counts = st.integers(8, 500)
worlds = st.integers(1, 8)


@given(count=counts, batch=st.integers(8, 64), world=worlds, epoch=st.integers(0, 5))
def test_every_image_once_an_epoch(count: int, batch: int, world: int, epoch: int) -> None:
    batches = global_batches(count, batch, seed=3, epoch=epoch)
    seen = np.concatenate(
        [share(indices, rank, world) for indices in batches for rank in range(world)]
    )
    assert sorted(seen.tolist()) == list(range(count))


@given(count=counts, batch=st.integers(8, 64), world=worlds)
def test_batches_and_shares_are_even(count: int, batch: int, world: int) -> None:
    sizes = [len(indices) for indices in global_batches(count, batch, 0, 0)]
    assert max(sizes) - min(sizes) <= 1
    for indices in global_batches(count, batch, 0, 0):
        shares = [len(share(indices, rank, world)) for rank in range(world)]
        assert max(shares) - min(shares) <= 1


def test_the_order_changes_with_epoch_and_seed_alone() -> None:
    first = np.concatenate(global_batches(50, 16, 1, 0))
    assert (first == np.concatenate(global_batches(50, 16, 1, 0))).all()
    assert (first != np.concatenate(global_batches(50, 16, 1, 1))).any()
    assert (first != np.concatenate(global_batches(50, 16, 2, 0))).any()


def test_sample_seeds_differ() -> None:
    seeds = {sample_seed(0, epoch, index) for epoch in range(20) for index in range(200)}
    assert len(seeds) == 4000


@given(
    count=counts,
    batch=st.integers(8, 64),
    world=worlds,
    epoch=st.integers(0, 5),
    sharded=st.booleans(),
    redrawn=st.booleans(),
)
def test_a_plan_has_every_image_once(
    count: int, batch: int, world: int, epoch: int, sharded: bool, redrawn: bool
) -> None:
    if batch > count or batch < 2 * world:
        return
    plan = epoch_plan(count, batch, 3, epoch, world, sharded=sharded, redrawn=redrawn)
    seen = np.concatenate([part for step in plan for part in step])
    assert sorted(seen.tolist()) == list(range(count))
    assert len(plan) == len(global_batches(count, batch, 3, epoch))
    for rank in range(world):
        sizes = [len(step[rank]) for step in plan]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1 + (not sharded)


@given(count=counts, world=worlds)
def test_a_shard_is_kept_over_epochs_in_a_fresh_order(count: int, world: int) -> None:
    for rank in range(world):
        orders = [
            np.concatenate(
                [step[rank] for step in epoch_plan(count, 16, 1, e, world, sharded=True)]
            )
            for e in (0, 1)
        ]
        own = shard(count, rank, world)
        assert all(sorted(order.tolist()) == own.tolist() for order in orders)
        assert len(own) < 8 or (orders[0] != orders[1]).any()


def test_unsharded_steps_are_the_same_on_any_number_of_ranks() -> None:
    alone = epoch_plan(100, 16, 2, 3, 1, sharded=False)
    for world in (2, 3, 8):
        steps = epoch_plan(100, 16, 2, 3, world, sharded=False)
        for one, several in zip(alone, steps, strict=True):
            assert (one[0] == np.concatenate(several)).all()


@given(count=counts, world=worlds, seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_drawn_shards_are_even_everywhere(count: int, world: int, seed: int, epoch: int) -> None:
    owner = owners(count, seed, epoch, world)
    assert (owner == owners(count, seed, epoch, world)).all()
    sizes = np.bincount(owner, minlength=world)
    assert sizes.max() - sizes.min() <= 1
    for start in range(0, count - world, world):
        assert sorted(owner[start : start + world].tolist()) == list(range(world))
    plan = epoch_plan(count, 16, seed, epoch, world, sharded=True, redrawn=True)
    for rank in range(world):
        seen = np.concatenate([step[rank] for step in plan])
        assert sorted(seen.tolist()) == np.flatnonzero(owner == rank).tolist()


def test_a_drawn_image_moves_with_probability_1_minus_1_over_p() -> None:
    for world in (2, 3, 8):
        drawn = [owners(1001, 5, epoch, world) for epoch in range(40)]
        moved = np.mean([(a != b).mean() for a, b in itertools.pairwise(drawn)])
        # Of 39,000 draws the mean is within four deviations of what is expected.
        expected = 1 - 1 / world
        assert abs(moved - expected) < 4 * (expected / world / 39_039) ** 0.5
        assert all(len({int(e[index]) for e in drawn}) > world / 2 for index in range(1001))
