"""A B^T by NT and by a transposed copy: the same numbers, and when no copy is made."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planted_products import ALWAYS_COPY, one_leaf
from torch import Tensor, nn

from skindx.models import nt_product as product
from skindx.models.nt_product import NtChoice, bound, nt_gemm, nt_product, plain_nt
from skindx.models.nt_record import NtRecord

COPY = NtChoice(tree=ALWAYS_COPY)
SIZES = st.integers(1, 24)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of which a copy was made."""
    made: list[tuple[int, ...]] = []
    real = product._transposed

    def spy(b_NK: Tensor, most_bytes: int | None) -> Tensor | None:
        found = real(b_NK, most_bytes)
        if found is not None:
            made.append(tuple(b_NK.shape))
        return found

    monkeypatch.setattr(product, "_transposed", spy)
    return made


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "transposed": lambda x: x.mT.contiguous().mT,
    "rows of a larger one": lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]],
    "every second column": lambda x: torch.repeat_interleave(x, 2, dim=-1)[..., ::2],
    "every second row": lambda x: torch.repeat_interleave(x, 2, dim=-2)[..., ::2, :],
}


@given(
    m=SIZES,
    n=SIZES,
    k=SIZES,
    blocks=st.sampled_from([0, 1, 3]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    views=st.tuples(st.sampled_from(list(VIEWS)), st.sampled_from(list(VIEWS))),
    seed=st.integers(0, 99),
)
def test_both_ways_are_the_product(
    m: int, n: int, k: int, blocks: int, dtype: torch.dtype, views: tuple[str, str], seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    stack = [blocks] if blocks else []
    a = VIEWS[views[0]](torch.randn(*stack, m, k, generator=random).to(dtype))
    b = VIEWS[views[1]](torch.randn(*stack, n, k, generator=random).to(dtype))
    wanted = a.double() @ b.double().mT
    rounding = 4 * torch.finfo(dtype).eps
    close = {"rtol": rounding, "atol": rounding * (1 + k)}
    assert torch.equal(nt_product(None)(a, b), a @ b.mT)
    for multiply in (plain_nt, nt_product(COPY)):
        found = multiply(a, b)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), wanted, **close)


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (2, 1, 3, 7), (7,)])
def test_a_may_have_any_dimensions_beside_matrices(
    shape: tuple[int, ...], copies: list[Any]
) -> None:
    a, b = torch.randn(shape), torch.randn(4, 7)
    torch.testing.assert_close(nt_product(COPY)(a, b), a @ b.T)
    assert copies == [(4, 7)]


def test_nan_and_infinity_are_where_nt_has_them() -> None:
    a, b = torch.randn(4, 6), torch.randn(5, 6)
    a[1, 2], b[3, 4], b[0, 0] = torch.nan, torch.nan, torch.inf
    torch.testing.assert_close(nt_product(COPY)(a, b), a @ b.T, equal_nan=True)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty_matrices(m: int, n: int, k: int, copies: list[Any]) -> None:
    found = nt_product(COPY)(torch.ones(m, k), torch.ones(n, k))
    assert torch.equal(found, torch.zeros(m, n))
    assert not copies


def test_shapes_that_do_not_fit_are_torchs_error() -> None:
    for multiply in (plain_nt, nt_product(COPY)):
        with pytest.raises(RuntimeError, match=r"shape|size"):
            multiply(torch.ones(2, 3), torch.ones(2, 4))


def test_without_a_choice_it_is_torchs_own_product() -> None:
    assert nt_product(None) is plain_nt
    assert nt_product(NtChoice(tree=one_leaf(transposed=False))) is plain_nt
    a, b = torch.randn(3, 4), torch.randn(5, 4)
    assert torch.equal(nt_gemm(a, b), a @ b.T)
    assert product._bound is plain_nt


def test_what_was_learned_holds_for_the_process(copies: list[Any]) -> None:
    """The file is read once: what is learned later counts for later processes."""
    a, b = torch.randn(3, 4), torch.randn(5, 4)
    record = NtRecord.of(ALWAYS_COPY, "cpu", seconds=1, products=9, nt_wins=0)
    file = record.write()
    torch.testing.assert_close(nt_gemm(a, b), a @ b.T)
    assert copies == [(5, 4)]
    file.unlink()
    nt_gemm(a, b)
    assert len(copies) == 2
    with bound(None):
        nt_gemm(a, b)
    assert len(copies) == 2


def _ones(*, grad: bool = False) -> tuple[Tensor, Tensor]:
    return torch.ones(3, 4), torch.ones(5, 4, requires_grad=grad)


def test_no_copy_where_a_gradient_is_needed_and_it_is_that_of_nt(copies: list[Any]) -> None:
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    multiply = nt_product(COPY)
    found = torch.autograd.grad(multiply(a, b).square().sum(), (a, b))
    wanted = torch.autograd.grad((a @ b.T).square().sum(), (a, b))
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    assert not copies
    with torch.no_grad():
        multiply(a, b)
    assert copies == [(5, 4)]


def test_no_copy_under_autocast_in_tracing_of_views_and_of_other_types(copies: list[Any]) -> None:
    multiply = nt_product(COPY)
    a, b = _ones()
    with torch.autocast("cpu", torch.bfloat16):
        assert multiply(a, b).dtype == torch.bfloat16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # tracing is how bodies are exported
        torch.jit.trace(multiply, (a, b), check_trace=False)
    multiply(a, torch.ones(4, 5).T)  # B^T is contiguous already
    multiply(a.double(), b.double())
    multiply(torch.ones(2, 3, 4), torch.ones(1, 5, 4))  # one B for all blocks

    class Marked(Tensor):
        pass

    multiply(a, b.as_subclass(Marked))
    multiply(a.to("meta"), b.to("meta"))
    assert not copies
    multiply(a, nn.Parameter(b, requires_grad=False))
    assert copies == [(5, 4)]


def test_a_tree_is_asked_for_the_shape_of_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    asked = []
    real = type(ALWAYS_COPY).transposes

    def spy(tree: Any, shape: Any) -> bool:
        asked.append((shape.m, shape.n, shape.k, shape.blocks, shape.dtype, shape.threads))
        return real(tree, shape)

    monkeypatch.setattr(type(ALWAYS_COPY), "transposes", spy)
    nt_product(COPY)(torch.ones(6, 2, 4), torch.ones(6, 5, 4))
    assert asked[-1] == (2, 5, 4, 6, "float32", 3)
    nt_product(COPY)(torch.ones(6, 2, 4), torch.ones(5, 4))
    assert asked[-1] == (12, 5, 4, 0, "float32", 3)
    nt_product(NtChoice(tree=ALWAYS_COPY, threads=8))(torch.ones(2, 4), torch.ones(5, 4))
    assert asked[-1] == (2, 5, 4, 0, "float32", 8)


def test_no_copy_beyond_the_free_memory(monkeypatch: pytest.MonkeyPatch, copies: list[Any]) -> None:
    monkeypatch.setattr(product, "_SMALL_BYTES", 0)
    a, b = _ones()
    needed = b.nbytes
    multiply = nt_product(COPY)
    for free, copied in ((2 * needed, 1), (2 * needed - 1, 1), (0, 1), (10**9, 2)):
        monkeypatch.setattr(product, "free_memory", lambda free=free: free)
        assert torch.equal(multiply(a, b), a @ b.T)
        assert len(copies) == copied


def test_a_fixed_limit_takes_the_place_of_the_free_memory(
    monkeypatch: pytest.MonkeyPatch, copies: list[Any]
) -> None:
    monkeypatch.setattr(product, "free_memory", lambda: 0)
    a, b = _ones()
    for limit, copied in ((b.nbytes, 1), (b.nbytes - 1, 1)):
        choice = NtChoice(tree=ALWAYS_COPY, copy_bytes=limit)
        assert torch.equal(nt_product(choice)(a, b), a @ b.T)
        assert len(copies) == copied


def test_a_copy_that_cannot_be_allocated_gives_way_to_nt(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Tensor.contiguous

    def full(tensor: Tensor, *arguments: Any) -> Tensor:
        if tensor.shape == (4, 5):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(tensor, *arguments)

    a, b = _ones()
    wanted = a @ b.T
    monkeypatch.setattr(Tensor, "contiguous", full)
    assert torch.equal(nt_product(COPY)(a, b), wanted)


def test_each_device_has_its_own_choice(monkeypatch: pytest.MonkeyPatch, copies: list[Any]) -> None:
    """On a machine with a GPU: a choice of the CPU does not count for other devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    NtRecord.of(ALWAYS_COPY, "cpu", seconds=1, products=9, nt_wins=0).write()
    a, b = _ones()
    assert torch.equal(nt_gemm(a, b), a @ b.T)
    assert copies == [(5, 4)]
    assert nt_gemm(a.to("meta"), b.to("meta")).shape == (3, 5)
    assert copies == [(5, 4)]
