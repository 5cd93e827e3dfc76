"""Seeds and windows of many images at once: NumPy's and Python's own, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.core import compiled_loops
from skindx.data.loader import crops
from skindx.data.loader.crops import (
    Window,
    draw_windows,
    random_window,
    sample_seeds,
    window_places,
)

SIDES = st.integers(1, 5000)
NUMBERS = st.integers(0, 2**32 - 1)


@given(prefix=st.lists(st.integers(0, 2**70), max_size=4), numbers=st.lists(NUMBERS, max_size=5))
def test_seeds_are_those_of_numpy(prefix: list[int], numbers: list[int]) -> None:
    expected = [
        int(np.random.SeedSequence((*prefix, number)).generate_state(1)[0]) for number in numbers
    ]
    assert sample_seeds(prefix, numbers) == expected


@given(
    sizes=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=5),
    seed=NUMBERS,
    low=st.floats(0.01, 1),
    ratio=st.sampled_from([(0.8, 1.25), (1.0, 1.0), (0.1, 3.0)]),
)
def test_windows_are_those_of_one_image_at_a_time(
    sizes: list[tuple[int, int]], seed: int, low: float, ratio: tuple[float, float]
) -> None:
    sizes_T2 = np.array(sizes)
    seeds = [(seed + n) % 2**32 for n in range(len(sizes))]
    windows_T4 = draw_windows(sizes_T2, seeds, (low, 1.0), ratio)
    places_T4 = window_places(windows_T4, sizes_T2)
    for size, own, row, place in zip(sizes, seeds, windows_T4.tolist(), places_T4, strict=True):
        window = random_window(*size, (low, 1.0), ratio, np.random.default_rng(own))
        assert Window(*row) == window
        assert tuple(place) == window.place(*size)


def test_ten_thousand_windows_are_the_same_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes_T2 = np.random.default_rng(0).integers(1, 1000, (10_000, 2))

    def drawn() -> tuple[object, ...]:
        seeds = sample_seeds((3, 1), range(10_000))
        windows_T4 = draw_windows(sizes_T2, seeds, (0.3, 1.0), (0.8, 1.25))
        return seeds, windows_T4.tobytes(), window_places(windows_T4, sizes_T2).tobytes()

    fast = drawn()
    monkeypatch.setattr(compiled_loops, "compiler", lambda: "")
    for cached in (compiled_loops.CppSource.kernel, crops._library):
        cached.cache_clear()
    try:
        assert drawn() == fast
    finally:
        for cached in (compiled_loops.CppSource.kernel, crops._library):
            cached.cache_clear()


@pytest.mark.skipif(not compiled_loops.compiler(), reason="there is no C++ compiler")
def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="one size for each seed"):
        draw_windows(np.ones((2, 2), np.int64), [1], (0.5, 1.0), (0.8, 1.25))
    with pytest.raises(ValueError, match="give one size for each"):
        window_places(np.ones((1, 4)), np.ones((2, 2), np.int64))
