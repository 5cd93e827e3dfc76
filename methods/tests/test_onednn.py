"""Large products by oneDNN, where MKL leaves AVX-512 unused."""

import pytest
import torch
from torch import Tensor

from skindx_methods.kfac import layers
from skindx_methods.kfac.layers import LEAST, by_onednn, onednn_is_faster, plain_nt

M, N, K = 120, 130, 100
needs_onednn = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN"
)


def _otherwise(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    raise AssertionError("a product of this size is oneDNN's")


def _layouts(rows: int) -> list[Tensor]:
    """A matrix in memory by rows, by columns, as a part of a wider one each way round."""
    matrix = torch.randn(rows, K, generator=torch.manual_seed(rows))
    wide, tall = torch.zeros(rows, 2 * K), torch.zeros(K, 2 * rows)
    wide[:, K:], tall[:, :rows] = matrix, matrix.T
    return [matrix, matrix.T.contiguous().T, wide[:, K:], tall[:, :rows].T]


@needs_onednn
@pytest.mark.parametrize("stacked", [False, True])
def test_it_is_the_product_in_any_layout(stacked: bool) -> None:
    assert M * N * K >= LEAST
    multiply = by_onednn(_otherwise)
    for a in _layouts(M):
        for b in _layouts(N):
            expected = a.double() @ b.double().T
            found = multiply(a[None], b[None])[0] if stacked else multiply(a, b)
            torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_small_products_stacks_and_other_types_are_made_otherwise() -> None:
    calls = []

    def spy(a_MK: Tensor, b_NK: Tensor) -> Tensor:
        calls.append(a_MK.shape)
        return plain_nt(a_MK, b_NK)

    multiply = by_onednn(spy)
    large = torch.randn(2, M, K), torch.randn(2, N, K)
    for a, b in (
        (torch.randn(3, K), torch.randn(4, K)),
        large,
        (large[0][0].double(), large[1][0].double()),
        (large[0][0].bfloat16(), large[1][0].bfloat16()),
    ):
        torch.testing.assert_close(multiply(a, b), a @ b.mT)
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("vendor", "flags", "faster"),
    [
        ("AuthenticAMD", {"avx2", "avx512f"}, True),
        ("AuthenticAMD", {"avx2"}, False),
        ("GenuineIntel", {"avx2", "avx512f"}, False),
        ("", {"avx512f"}, False),
    ],
)
def test_it_is_for_processors_that_mkl_does_not_serve_fully(
    vendor: str, flags: set[str], faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "cpu_fact", lambda _: vendor)
    monkeypatch.setattr(layers, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(torch._C, "has_mkl", True)
    monkeypatch.setattr(torch._C, "_has_mkldnn", True)
    expected = faster and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    assert onednn_is_faster.__wrapped__() == expected
