"""Patches and blending: every element covered, constants kept, any order, any number of axes."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.scan.patches import (
    Patches,
    axis_weights,
    blend,
    blend_block,
    blocks,
    bump,
    create_map,
    starts,
)


@st.composite
def some_patches(draw: st.DrawFn) -> Patches:
    axes = draw(st.integers(1, 4))
    most = {1: 60, 2: 24, 3: 12, 4: 7}[axes]
    shape = tuple(draw(st.integers(1, most)) for _ in range(axes))
    patch = tuple(draw(st.integers(1, most)) for _ in range(axes))
    overlap = tuple(draw(st.integers(0, size - 1)) for size in patch)
    return Patches(shape, patch, overlap)


@given(some_patches())
def test_every_element_is_covered_and_no_patch_stands_out(patches: Patches) -> None:
    seen = np.zeros(patches.shape, int)
    for number in range(len(patches)):
        place = patches[number]
        assert all(0 <= p.start < p.stop <= n for p, n in zip(place, patches.shape, strict=True))
        assert tuple(p.stop - p.start for p in place) == patches.size
        seen[place] += 1
    assert seen.min() >= 1


@given(some_patches(), st.floats(-1e4, 1e4))
def test_a_constant_is_reproduced_even_at_the_corners(patches: Patches, value: float) -> None:
    out = np.full(patches.shape, np.nan)
    blend(patches, lambda _: np.full(patches.size, value), out, block=patches.shape)
    np.testing.assert_allclose(out, value, rtol=1e-9, atol=1e-12)


@given(some_patches(), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_blocks_do_not_matter(patches: Patches, side: int, seed: int) -> None:
    answers = np.random.default_rng(seed).normal(size=(len(patches), *patches.size))
    whole, parts = np.empty(patches.shape), np.empty(patches.shape)
    blend(patches, answers.__getitem__, whole, block=patches.shape)
    blend(patches, answers.__getitem__, parts, block=(side,) * len(patches.shape))
    assert np.array_equal(whole, parts)


@given(some_patches(), st.integers(0, 2**32 - 1))
def test_it_is_the_weighted_mean_of_the_formula(patches: Patches, seed: int) -> None:
    """Accumulate w y and w in any order and divide, as the paper has it."""
    rng = np.random.default_rng(seed)
    answers = rng.normal(size=(len(patches), *patches.size))
    sum_, weights = np.zeros(patches.shape), np.zeros(patches.shape)
    for number in rng.permutation(len(patches)):
        sum_[patches[number]] += bump(patches.size) * answers[number]
        weights[patches[number]] += bump(patches.size)
    out = np.empty(patches.shape)
    blend(patches, answers.__getitem__, out, block=patches.shape)
    np.testing.assert_allclose(out, sum_ / weights, rtol=1e-5, atol=1e-9)


def test_the_weight_is_the_bump_of_the_paper() -> None:
    x = np.array([-0.75, -0.25, 0.25, 0.75])
    expected = np.exp(-(1 / (1 - x[:, None] ** 2) + 1 / (1 - x**2)))
    np.testing.assert_allclose(bump((4, 4)) / bump((4, 4)).max(), expected / expected.max())
    assert axis_weights(2048).min() > 0


def test_starts_by_hand() -> None:
    assert starts(10, 4, 1) == (0, 3, 6)
    assert starts(11, 4, 1) == (0, 3, 6, 7)
    assert starts(3, 4, 1) == (0,)
    assert starts(4, 4, 1) == (0,)
    with pytest.raises(ValueError, match="cannot overlap"):
        starts(10, 4, 4)


@given(some_patches(), st.integers(1, 7))
def test_touching_names_exactly_the_patches_that_share_an_element(
    patches: Patches, side: int
) -> None:
    for block in blocks(patches.shape, (side,) * len(patches.shape)):
        found = list(patches.touching(block))
        marked = np.zeros(patches.shape, bool)
        marked[block] = True
        assert found == [n for n in range(len(patches)) if marked[patches[n]].any()]


def test_what_no_patch_answers_is_filled() -> None:
    patches = Patches((10,), (4,), (1,))
    out = blend_block(patches, lambda n: np.ones(4) if n else None, (slice(0, 10),), fill=-1.0)
    assert out.tolist() == [-1.0] * 3 + [1.0] * 7


def test_a_stack_of_three_axes_with_channels_goes_through_the_same_code(tmp_path: Path) -> None:
    """A local filter over a volume is the same by patches as at once, away from the seams."""
    volume = np.random.default_rng(0).normal(size=(18, 33, 29)).astype(np.float32)

    def network(part: np.ndarray) -> np.ndarray:
        return np.stack([part, 2 * part], axis=-1)

    patches = Patches(volume.shape, (8, 16, 16), (3, 5, 5))
    out = create_map(tmp_path / "map", (*volume.shape, 2), (8, 16, 16, 2))
    answers = [network(volume[place]) for place in map(patches.__getitem__, range(len(patches)))]
    blend(patches, answers.__getitem__, out, block=(8, 16, 16), channels=(2,))
    made = out[:]
    np.testing.assert_allclose(made, network(volume), atol=1e-5)
    again = np.empty_like(made)
    blend(patches, answers.__getitem__, again, block=(18, 33, 29), channels=(2,))
    np.testing.assert_allclose(again, made, atol=1e-6)


def test_memory_does_not_grow_with_the_map(tmp_path: Path) -> None:
    def peak(rows: int) -> int:
        patches = Patches((rows, 64), (64, 64), (16, 16))
        out = create_map(tmp_path / str(rows), patches.shape, (64, 64))
        blend(patches, lambda _: np.ones((64, 64), np.float32), out, block=(64, 64))
        tracemalloc.start()
        try:
            blend(patches, lambda _: np.ones((64, 64), np.float32), out, block=(64, 64))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(64)  # imports and caches
    assert peak(64 * 64) < 1.5 * peak(64 * 4)
