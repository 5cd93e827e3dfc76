import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skindx.training.batches import global_batches, sample_seed, share

counts = st.integers(8, 500)
worlds = st.integers(1, 8)


@given(count=counts, batch=st.integers(8, 64), world=worlds, epoch=st.integers(0, 5))
def test_every_picture_once_an_epoch(count: int, batch: int, world: int, epoch: int) -> None:
    batches = global_batches(count, batch, seed=3, epoch=epoch)
    seen = np.concatenate([share(each, rank, world) for each in batches for rank in range(world)])
    assert sorted(seen.tolist()) == list(range(count))


@given(count=counts, batch=st.integers(8, 64), world=worlds)
def test_batches_and_shares_are_even(count: int, batch: int, world: int) -> None:
    sizes = [len(each) for each in global_batches(count, batch, 0, 0)]
    assert max(sizes) - min(sizes) <= 1
    for each in global_batches(count, batch, 0, 0):
        shares = [len(share(each, rank, world)) for rank in range(world)]
        assert max(shares) - min(shares) <= 1


def test_the_order_changes_with_epoch_and_seed_alone() -> None:
    first = np.concatenate(global_batches(50, 16, 1, 0))
    assert (first == np.concatenate(global_batches(50, 16, 1, 0))).all()
    assert (first != np.concatenate(global_batches(50, 16, 1, 1))).any()
    assert (first != np.concatenate(global_batches(50, 16, 2, 0))).any()


def test_sample_seeds_differ() -> None:
    seeds = {sample_seed(0, epoch, index) for epoch in range(20) for index in range(200)}
    assert len(seeds) == 4000
