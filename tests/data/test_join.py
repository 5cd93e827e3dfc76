import functools
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import skindx
from skindx.core.errors import UserError
from skindx.data.copies import hash_links
from skindx.data.copies.hash_links import pairs_within, turned_pairs_within

ONES = 2**64 - 1


def brute_force(codes: NDArray[np.uint64], radius: int) -> list[tuple[int, int, int]]:
    distances = np.bitwise_count(codes[:, None] ^ codes[None])
    close = np.argwhere(np.triu(distances <= radius, k=1))
    return [(i, j, int(distances[i, j])) for i, j in close.tolist()]


def found(codes: NDArray[np.uint64], radius: int) -> list[tuple[int, int, int]]:
    columns = [column.tolist() for column in pairs_within(codes, radius)]
    return list(zip(*columns, strict=True))


@st.composite
def adversarial(draw: st.DrawFn) -> NDArray[np.uint64]:
    """Zeros, ones, equal codes, codes a few bits from each other, and any others."""
    centres = st.sampled_from([0, ONES, 1, 1 << 63, 0x00FF00FF00FF00FF]) | st.integers(0, ONES)
    few = draw(st.lists(centres, min_size=1, max_size=4))
    flips = st.lists(st.integers(0, 63), max_size=9)
    members = draw(st.lists(st.tuples(st.sampled_from(few), flips), max_size=40))
    codes = []
    for code, bits in members:
        codes.append(functools.reduce(lambda code, bit: code ^ (1 << bit), bits, code))
    return np.array(codes, np.uint64)


@given(adversarial(), st.integers(0, 16), st.integers(0, 3))
def test_the_join_is_brute_force(codes: NDArray[np.uint64], radius: int, agree: int) -> None:
    # Equality with this list also says: sorted, unique, first < second.
    assert found(codes, radius) == brute_force(codes, radius)
    # So few codes would be compared without buckets, so the blocks are asked for.
    with patch.object(hash_links, "_must_agree", lambda n, radius: agree):
        assert found(codes, radius) == brute_force(codes, radius)


@pytest.mark.parametrize("radius", [*range(17), 24, 31, 32, 63, 64, 70])
def test_every_radius_and_number_of_blocks(radius: int) -> None:
    rng = np.random.default_rng(radius)
    for n in (0, 1, 2, 300, 3000 if radius < 9 else 500):
        codes = rng.integers(0, ONES, n, dtype=np.uint64, endpoint=True)
        for _ in range(2 * radius // 3):
            at = rng.integers(1, max(n, 2), n // 3)
            codes[: len(at)] ^= np.uint64(1) << rng.integers(0, 64, len(at), dtype=np.uint64)
        codes[n // 2 : n // 2 + n // 3] = codes[: n // 3]
        flips = rng.integers(0, 64, (radius, n // 3), dtype=np.uint64)
        for row in flips:
            codes[: n // 3] ^= np.uint64(1) << row
        assert found(codes, radius) == brute_force(codes, radius)


@pytest.mark.parametrize("agree", [0, 1, 2, 5])
def test_many_equal_codes_give_each_pair_once(agree: int) -> None:
    n = 1000
    with patch.object(hash_links, "_must_agree", lambda n, radius: agree):
        first, second, distance = pairs_within(np.full(n, ONES, np.uint64), 4)
    expected_first, expected_second = np.triu_indices(n, k=1)
    np.testing.assert_array_equal(first, expected_first)
    np.testing.assert_array_equal(second, expected_second)
    assert not distance.any()


def test_the_plan_buckets_where_it_pays() -> None:
    assert hash_links._must_agree(100, 4) == 0
    assert hash_links._must_agree(1_000_000, 4) == 1
    assert hash_links._must_agree(1_000_000, 8) > 1
    assert hash_links._must_agree(10_000, 40) == 0
    assert hash_links._must_agree(1_000_000, 64) == 0


def test_single_bit_neighbours_by_hand() -> None:
    codes = np.array([0, *(1 << bit for bit in range(64)), ONES], np.uint64)
    first, second, distance = pairs_within(codes, 1)
    assert first.tolist() == [0] * 64
    assert second.tolist() == list(range(1, 65))
    assert set(distance.tolist()) == {1}
    assert len(pairs_within(codes, 2)[0]) == 64 + 64 * 63 // 2


@given(adversarial(), st.integers(0, 16), st.randoms(use_true_random=False))
def test_the_order_of_the_codes_does_not_matter(
    codes: NDArray[np.uint64], radius: int, random: Random
) -> None:
    order = list(range(len(codes)))
    random.shuffle(order)
    there = {frozenset((order[i], order[j])): d for i, j, d in found(codes[order], radius)}
    assert there == {frozenset((i, j)): d for i, j, d in found(codes, radius)}


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(0, 30),
    st.integers(1, 3),
    st.integers(0, 20),
    st.integers(0, 2),
)
def test_turned_codes_are_brute_force(
    seed: int, n: int, kinds: int, radius: int, agree: int
) -> None:
    rng = np.random.default_rng(seed)
    # Few distinct bits, so that close pairs are common, on both ends of the code.
    low, high = rng.integers(0, 2**6, (2, n, kinds, 8), dtype=np.uint64)
    codes = low | (high << np.uint64(58))
    expected = []
    for i in range(n):
        for j in range(i + 1, n):
            differ = np.bitwise_count(codes[i] ^ codes[j, :, :1])
            distance = int(differ.max(axis=0).min())
            if distance <= radius:
                expected.append((i, j, distance))
    with patch.object(hash_links, "_must_agree", lambda n, radius: agree):
        columns = [column.tolist() for column in turned_pairs_within(codes, radius)]
    assert list(zip(*columns, strict=True)) == expected


JOIN = (
    "import sys; from skindx.data.copies import hash_links; assert 'numba' not in sys.modules;"
    "import numpy;"
    "print(len(hash_links.near_links(numpy.zeros((5, 2, 8), numpy.uint64), 4)))"
)


def join_elsewhere(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", JOIN]
    where = str(Path(skindx.__file__).parents[1])
    settings = {**os.environ, "PYTHONPATH": where, "HOME": str(tmp_path), **environment}
    return subprocess.run(
        command, env=settings, capture_output=True, text=True, check=False, timeout=120
    )


def test_without_a_folder_for_compiled_code_it_still_joins(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder can be made below a file")
    done = join_elsewhere(tmp_path, NUMBA_CACHE_DIR=str(blocked / "cache"))
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr


def test_compiled_code_is_kept_where_numba_is_reported(tmp_path: Path) -> None:
    done = join_elsewhere(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
    assert list((tmp_path / "cache").rglob("candidate_kernels.emit-*.nbi"))


def test_without_numba_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "skindx.data.copies.candidate_kernels", raising=False)
    monkeypatch.delattr(skindx.data.copies, "candidate_kernels", raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(UserError, match=r"run `.* install .*\[data\]'`"):
        pairs_within(np.zeros(3, np.uint64), 4)
