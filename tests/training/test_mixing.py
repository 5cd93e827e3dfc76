import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.data.loader.batches import epoch_plan
from skindx.training.config.recipe import Mix, Recipe
from skindx.training.tasks.mixing import Mixture, blend, draw_mixture

SIDE, CLASSES = 16, 3


def _image(index: int) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def _mixed(
    mix: Mix, shares: list[np.ndarray], rank: int, sharded: bool = False
) -> tuple[torch.Tensor, torch.Tensor, Mixture]:
    mixture = draw_mixture(mix, shares, rank, (3, 1, 4), sharded=sharded)
    loaded = np.concatenate([shares[rank], mixture.borrowed])
    images = torch.from_numpy(np.stack([_image(index) for index in loaded.tolist()]))
    return (*blend(mixture, images, torch.from_numpy(loaded % CLASSES), CLASSES), mixture)


MIXES = st.builds(
    Mix,
    mixup=st.sampled_from([0.0, 0.2, 1.0]),
    cutmix=st.sampled_from([0.5, 1.0]),
    probability=st.sampled_from([0.4, 1.0]),
)


@given(mix=MIXES, count=st.integers(9, 40), world=st.integers(2, 4), epoch=st.integers(0, 3))
def test_ranks_change_no_mixture(mix: Mix, count: int, world: int, epoch: int) -> None:
    """Uneven shares, put together, are what one rank makes of the whole step."""
    alone = epoch_plan(count, 9, 3, epoch, 1, sharded=False)
    several = epoch_plan(count, 9, 3, epoch, world, sharded=False)
    for one, shares in zip(alone, several, strict=True):
        images, targets, mixture = _mixed(mix, one, 0)
        assert len(mixture.borrowed) == 0
        parts = [_mixed(mix, shares, rank) for rank in range(world)]
        assert torch.cat([part[0] for part in parts]).equal(images)
        assert torch.cat([part[1] for part in parts]).equal(targets)
        for (own, _, mixture), share in zip(parts, shares, strict=True):
            assert len(own) == len(share)
            assert len(mixture.borrowed) <= 2
            assert not set(mixture.borrowed.tolist()) & set(share.tolist())


@given(mix=MIXES, count=st.integers(9, 40), world=st.integers(2, 4))
def test_shards_borrow_nothing(mix: Mix, count: int, world: int) -> None:
    for shares in epoch_plan(count, 9, 3, 0, world, sharded=True):
        drawn = [_mixed(mix, shares, rank, sharded=True)[2] for rank in range(world)]
        assert all(len(mixture.borrowed) == 0 for mixture in drawn)
        assert all(len(m.kept_B) == len(share) for m, share in zip(drawn, shares, strict=True))


def test_each_shard_draws_for_itself() -> None:
    """Else all ranks would cut the same rectangles out of a step's images."""
    shares = [np.arange(6), np.arange(6, 12)]
    drawn = [draw_mixture(Mix(mixup=0), shares, rank, (0, 1), sharded=True) for rank in (0, 1)]
    assert not np.array_equal(drawn[0].box_B4, drawn[1].box_B4)


@given(mix=MIXES, pairs=st.integers(1, 12))
def test_labels_weigh_what_they_weighed(mix: Mix, pairs: int) -> None:
    step = np.arange(2 * pairs)
    _, targets, mixture = _mixed(mix, [step], 0)
    assert (mixture.partner_B[mixture.partner_B] == step).all()
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(2 * pairs))
    counts = torch.from_numpy(np.bincount(step % CLASSES, minlength=CLASSES)).float()
    torch.testing.assert_close(targets.sum(dim=0), counts)


def test_the_odd_one_out_takes_its_neighbour() -> None:
    mixture = draw_mixture(Mix(), [np.arange(5)], 0, (0,), sharded=False)
    assert mixture.partner_B.tolist() == [1, 0, 3, 2, 3]
    single = draw_mixture(Mix(), [np.arange(1)], 0, (0,), sharded=False)
    assert single.partner_B.tolist() == [0]


def _by_hand(own: float, box: tuple[float, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    mixture = Mixture(
        np.empty(0, np.int64),
        np.array([1, 0]),
        np.full(2, own, np.float32),
        np.array([box, box], np.float32),
    )
    images = torch.stack([torch.full((8, 8, 3), value, dtype=torch.uint8) for value in (40, 200)])
    return blend(mixture, images, torch.tensor([0, 2]), 3)


def test_mixup_by_hand() -> None:
    images, targets = _by_hand(0.75, (0, 0, 0, 0))
    assert images[0].unique().tolist() == [80]  # 0.75 * 40 + 0.25 * 200
    assert images[1].unique().tolist() == [160]
    torch.testing.assert_close(targets, torch.tensor([[0.75, 0, 0.25], [0.25, 0, 0.75]]))


def test_cutmix_by_hand() -> None:
    """A rectangle that ends at the edge: its label counts the pixels that are left of it."""
    images, targets = _by_hand(1, (0.5, 0, 1, 0.25))
    expected = torch.full((8, 8), 40.0)
    expected[4:, :2] = 200
    assert (images[0] == expected[..., None]).all()
    torch.testing.assert_close(targets[0], torch.tensor([1 - 8 / 64, 0, 8 / 64]))


@given(count=st.integers(2, 30))
def test_the_label_of_cutmix_is_the_share_of_pixels(count: int) -> None:
    shares = [np.arange(count)]
    mixture = draw_mixture(Mix(mixup=0), shares, 0, (count,), sharded=False)
    value = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, SIDE, SIDE, 3)
    images, targets = blend(mixture, value, torch.arange(count), count)
    for at in range(count):
        own = (images[at] == at).float().mean().item()
        assert targets[at, at].item() == pytest.approx(own, abs=1e-6)


def test_probability_leaves_pairs_alone() -> None:
    step = [np.arange(400)]
    images, targets, _ = _mixed(Mix(probability=0.25), step, 0)
    whole = (targets.max(dim=1).values == 1).float().mean().item()
    assert 0.6 < whole < 0.9
    untouched = int((targets.max(dim=1).values == 1).nonzero()[0])
    assert images[untouched].equal(torch.from_numpy(_image(untouched)).float())


def test_what_is_drawn_has_the_distributions_of_the_papers() -> None:
    """Half of the pairs are mixed, 0.3 of these by CutMix, none by both.

    Mixup keeps Beta(0.2, 0.2). CutMix's square of side s = sqrt(1 - lambda), lambda uniform, has
    E (s - s^2 / 4)^2 = 0.3208 of the image once it is cut at the edges.
    """
    mix = Mix(mixup=0.2, cutmix=1, cutmix_share=0.3, probability=0.5)
    drawn = draw_mixture(mix, [np.arange(40_000)], 0, (0, 1, 2), sharded=False)
    kept, (top, left, bottom, right) = drawn.kept_B[::2], drawn.box_B4[::2].T
    area = (bottom - top) * (right - left)
    assert ((kept < 1) & (area > 0)).sum() == 0
    assert (area > 0).mean() == pytest.approx(0.5 * 0.3, abs=0.01)
    up = kept[(kept < 1) & (area == 0)].astype(float)
    assert len(up) / len(kept) == pytest.approx(0.5 * 0.7, abs=0.02)  # some keep 1 to the bit
    assert up.mean() == pytest.approx(0.5, abs=0.03)
    assert up.var() == pytest.approx(1 / (4 * (2 * 0.2 + 1)), abs=0.01)
    assert area[area > 0].mean() == pytest.approx(0.3208, abs=0.01)


def test_seeds_decide() -> None:
    def boxes(*seeds: int) -> list[list[float]]:
        mix = Mix(mixup=0)
        return draw_mixture(mix, [np.arange(8)], 0, seeds, sharded=False).box_B4.tolist()

    assert boxes(0, 1, 2) == boxes(0, 1, 2)
    assert boxes(0, 1, 2) != boxes(0, 1, 3)
    assert boxes(0, 1, 2) != boxes(1, 1, 2)


def test_mixing_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"mix\.mixup or mix\.cutmix must be above 0"):
        Recipe.parse({"mix": {"mixup": 0, "cutmix": 0}})
