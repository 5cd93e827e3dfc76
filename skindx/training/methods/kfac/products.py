"""How K-FAC multiplies by a transpose: as torch does, and large products by oneDNN where faster."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from skindx.core.machine import cpu_flags, cpu_vendor

# M, N, K = sizes of a product

LEAST = 2**20
"""Below so many multiplications the call of oneDNN takes longer than it saves."""

Multiply = Callable[[Tensor, Tensor], Tensor]
"""A and B -> A B^T."""


def plain_nt(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """Return A B^T as torch computes it."""
    return nn.functional.linear(a_MK, b_NK) if b_NK.ndim == 2 else a_MK @ b_NK.mT


@cache
def onednn_is_faster() -> bool:
    """Return True where torch's products are MKL's and MKL leaves AVX-512 unused.

    MKL computes with AVX2 on a processor that is not Intel's, whatever that processor has; oneDNN,
    which comes with torch too, computes with AVX-512 there.
    """
    return (
        "avx512f" in cpu_flags()
        and cpu_vendor() not in ("", "GenuineIntel")
        and bool(torch._C.has_mkl)
        and bool(torch._C._has_mkldnn)
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def by_onednn(otherwise: Multiply) -> Multiply:
    """Return what makes large products on the CPU, in single precision, by oneDNN.

    The others, and stacks of several blocks, go to `otherwise`. A product rounds otherwise than
    torch's own in the last bits. It has no gradient.
    """

    def multiply(a_MK: Tensor, b_NK: Tensor) -> Tensor:
        a, b = a_MK, b_NK
        if a.ndim == 3 and len(a) == 1 == len(b):
            a, b = a[0], b[0]
        single = a.dtype == b.dtype == torch.float32 and a.device.type == "cpu"
        if not single or a.ndim != 2 or b.ndim != 2 or a.shape[0] * b.numel() < LEAST:
            return otherwise(a_MK, b_NK)
        # Other layouts are copied anyway, or go to a kernel that is a hundred times as slow.
        a = a.contiguous()
        b = b if b.mT.is_contiguous() else b.contiguous()
        c: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        return c if a_MK.ndim == 2 else c[None]

    return multiply
