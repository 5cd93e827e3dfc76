import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from skindx.comm.sparse_exchange import Sparse, add_and_select, merge

VALUES = st.floats(-8, 8, width=32).map(lambda value: round(value * 2) / 2)  # many equal ones


def _reference(values: np.ndarray, k: int) -> list[int]:
    """The k largest magnitudes, among equals the first, in the order of their places."""
    order = sorted(range(len(values)), key=lambda at: (-abs(values[at]), at))
    return sorted(order[:k])


@given(
    gradient=arrays.arrays(np.float32, st.integers(1, 400), elements=VALUES),
    share=st.floats(0.001, 1),
    seed=st.integers(0, 9),
)
def test_selection_is_exact(gradient: np.ndarray, share: float, seed: int) -> None:
    residual = np.random.default_rng(seed).integers(-4, 5, len(gradient)).astype(np.float32)
    k = max(1, int(share * len(gradient)))
    total = gradient + residual
    flat = torch.from_numpy(gradient.copy())
    found = add_and_select(flat, torch.from_numpy(residual), k)
    assert found is not None
    assert found.at_K.tolist() == _reference(total, k)
    assert found.values_K.tolist() == total[_reference(total, k)].tolist()
    assert flat.tolist() == total.tolist()


@pytest.mark.parametrize("k", [1, 7, 300, 9_000, 60_000])
@pytest.mark.parametrize("kind", ["normal", "layers", "mostly zero", "equal"])
def test_the_guessed_threshold_misses_nothing(k: int, kind: str) -> None:
    """Large enough for the sampled threshold; some distributions make the guess a bad one."""
    generator = np.random.default_rng(3)
    values = generator.standard_normal(300_007).astype(np.float32)
    if kind == "layers":
        values[:1000] *= 1000
    if kind == "mostly zero":
        values[generator.random(len(values)) < 0.9999] = 0
    if kind == "equal":
        values[:] = 2
    found = add_and_select(torch.from_numpy(values.copy()), torch.zeros(len(values)), k)
    assert found is not None
    order = np.lexsort((np.arange(len(values)), -np.abs(values)))
    assert found.at_K.tolist() == sorted(order[:k].tolist())


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("at", [0, 77, 149_999])
@pytest.mark.parametrize("k", [10, 100_000])
def test_what_is_not_finite_is_found(strange: float, at: int, k: int) -> None:
    gradient = torch.randn(150_000, generator=torch.Generator().manual_seed(0))
    gradient[at] = strange
    assert add_and_select(gradient, torch.zeros(150_000), k) is None


def _sparse(values: dict[int, float]) -> Sparse:
    places = sorted(values)
    return Sparse(
        torch.tensor(places, dtype=torch.int32), torch.tensor([values[at] for at in places])
    )


def _dense(sparse: Sparse, size: int) -> Tensor:
    flat = torch.zeros(size)
    sparse.scatter(flat)
    return flat


@given(
    first=st.dictionaries(st.integers(0, 40), VALUES, min_size=5, max_size=5),
    second=st.dictionaries(st.integers(0, 40), VALUES, min_size=5, max_size=5),
)
def test_a_merge_keeps_the_largest_and_loses_nothing(
    first: dict[int, float], second: dict[int, float]
) -> None:
    kept, dropped = merge(_sparse(first), _sparse(second), 5)
    again, _ = merge(_sparse(second), _sparse(first), 5)
    total = _dense(_sparse(first), 41) + _dense(_sparse(second), 41)
    assert torch.equal(_dense(kept, 41) + _dense(dropped, 41), total)
    assert torch.equal(kept.pack(), again.pack())
    assert len(kept.at_K) == 5
    if len(dropped.at_K):
        assert kept.values_K.abs().min() >= dropped.values_K.abs().max()


def test_a_message_has_eight_bytes_an_element() -> None:
    sparse = _sparse({3: -1.5, 900_000: 2.25, 7: 0.0})
    message = sparse.pack()
    assert message.nbytes == 24
    back = Sparse.unpack(message)
    assert back.at_K.tolist() == [3, 7, 900_000]
    assert back.values_K.tolist() == [-1.5, 0.0, 2.25]


def test_poison_spoils_every_sum() -> None:
    poison = Sparse.poison(3, torch.device("cpu"))
    good = _sparse({1: 1.0, 2: 2.0, 3: 3.0})
    for first, second in ((poison, good), (good, poison), (poison, poison)):
        merged, dropped = merge(first, second, 3)
        assert not merged.finite
        assert not len(dropped.at_K)
        assert len(merged.at_K) == 3
    assert not Sparse.unpack(poison.pack()).finite
