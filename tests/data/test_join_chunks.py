import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from skindx.core.errors import JobError
from skindx.data.copies import hash_links
from skindx.data.copies.hash_links import (
    chunk_pairs,
    in_order,
    near_links,
    near_links_by_chunks,
    turned_pairs_within,
)
from skindx.workers.task_runner import LocalRunner


@st.composite
def turned_codes(draw: st.DrawFn) -> NDArray[np.uint64]:
    """Return codes_NKO, many of them few bits from another's turned code."""
    n, kinds, orientations = draw(st.integers(1, 40)), draw(st.integers(1, 2)), 8
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    few = rng.integers(0, 2**64, (3, kinds, orientations), dtype=np.uint64)
    codes = np.empty((n, kinds, orientations), np.uint64)
    for i in range(n):
        codes[i] = few[rng.integers(3)][:, rng.permutation(orientations)]
        for _ in range(rng.integers(0, 4)):
            codes[i, rng.integers(kinds)] ^= np.uint64(1) << np.uint64(rng.integers(64))
    return codes


def by_chunks(codes: NDArray[np.uint64], radius: int, chunk: int) -> NDArray[np.int64]:
    pairs = itertools.combinations_with_replacement(range(-(-len(codes) // chunk)), 2)
    columns = in_order([chunk_pairs(codes, a, b, radius, chunk) for a, b in pairs])
    return np.stack(columns, axis=1, dtype=np.int64)


@given(turned_codes(), st.integers(0, 8), st.integers(1, 50))
def test_chunks_give_the_pairs_of_one_join(
    codes: NDArray[np.uint64], radius: int, chunk: int
) -> None:
    expected = np.stack(turned_pairs_within(codes, radius), axis=1, dtype=np.int64)
    np.testing.assert_array_equal(by_chunks(codes, radius, chunk), expected)


@pytest.mark.parametrize("chunk", [1500, 2999, 3000])
def test_chunks_large_enough_to_be_bucketed(chunk: int) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**64, (6001, 1, 8), dtype=np.uint64)
    codes[rng.permutation(6001)[:3000]] = codes[:3000] ^ np.uint64(5)
    expected = np.stack(turned_pairs_within(codes, 4), axis=1, dtype=np.int64)
    assert len(expected) > 1000
    np.testing.assert_array_equal(by_chunks(codes, 4, chunk), expected)


class Noted(LocalRunner):
    """A runner that remembers its tasks, and loses those of `losing`."""

    def __init__(self, losing: int = 0) -> None:
        super().__init__(1)
        self.asked: list[Any] = []
        self.losing = losing

    def run(self, function: Any, tasks: Any, on_done: Any = None) -> list[Any]:
        self.asked += tasks
        super().run(function, tasks[self.losing :], on_done)
        return list(tasks[: self.losing])


def test_a_killed_join_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_links, "CHUNK_CODES", 10)
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 2**64, (35, 2, 8), dtype=np.uint64)
    codes[20:30] = codes[:10] ^ np.uint64(1)
    with pytest.raises(JobError, match=r"3 of 10 parts .* run the same command again"):
        near_links_by_chunks(codes, 2, tmp_path, Noted(losing=3))
    again = Noted()
    reported: list[tuple[int, int]] = []
    links = near_links_by_chunks(codes, 2, tmp_path, again, lambda *count: reported.append(count))
    assert len(again.asked) == 3
    assert reported[-1] == (35, 35)
    np.testing.assert_array_equal(links, near_links(codes, 2))
    other = Noted()
    near_links_by_chunks(codes + np.uint64(1), 2, tmp_path, other)
    assert len(other.asked) == 10, "other codes, other links"
