"""`nt_gemm`: C = A B^T, directly (NT) or by a transposed copy of B, as this machine is measured.

Shi, Xu and Chu 2017 (arXiv 1702.03192): a small decision tree over the shape of a product, learned
from timings by `skindx bench gemm --fit` and kept in the user's cache, says where the copy is
faster. Without one it is NT everywhere, to the bit what torch computes.

M, N, K = sizes of a product; S = blocks of a stack
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import cast, get_args

import torch
from pydantic import Field
from torch import Tensor, nn

from skindx.core.machine import cpu_flags, cpu_vendor, free_memory
from skindx.core.settings_base import Settings
from skindx.models.nt_record import DTYPES, Device, Dtype, ProductShape, ShapeTree, choice_in_force

PAPER = (
    "MTNN | Shi, Xu and Chu, Supervised Learning Based Algorithm Selection for Deep Neural "
    "Networks, arXiv 1702.03192, 2017 | tests/models/test_nt_users.py | "
    "docs/measured/gemm.json"
)

log = logging.getLogger(__name__)

_DTYPES: dict[torch.dtype, Dtype] = {getattr(torch, name): name for name in DTYPES}


SHARE_OF_FREE = 0.5
"""A transposed copy may take this much of the free memory."""
_SMALL_BYTES = 16 * 2**20
"""Copies up to this size are made without a look at the free memory, which takes longer."""
LEAST = 2**20
"""Below so many multiplications the call of oneDNN takes longer than it saves."""

Multiply = Callable[[Tensor, Tensor], Tensor]
"""A and B -> A B^T."""
_linear = nn.functional.linear
_bound: Multiply | None = None


def nt_gemm(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """Return A B^T, M x N; also of stacks S x M x K and S x N x K, and of A with more dimensions.

    A transposed copy may round otherwise in the last bits; the choice is read once and then holds
    for the process. Where a gradient is needed, under autocast and while torch traces or compiles,
    it is always NT.
    """
    return (_bound or _bind())(a_MK, b_NK)


def plain_nt(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """Return A B^T as torch computes it."""
    return _linear(a_MK, b_NK) if b_NK.ndim == 2 else a_MK @ b_NK.mT


class NtChoice(Settings):
    """A tree, and what else decides. What is left out is looked at for each product.

    Where products must be the same to the bit on all ranks and when a training goes on, nothing is
    left out.
    """

    tree: ShapeTree
    copy_bytes: int | None = Field(None, ge=0)
    """Largest transposed copy; none: by the free memory."""
    threads: int | None = Field(None, ge=1)
    """Of which the tree is asked; none: those that torch has."""


def nt_product(choice: NtChoice | None, device: str = "cpu") -> Multiply:
    """Return what multiplies by a choice; torch's own product for None and for NT always.

    It decides for as long as its caller keeps it, whatever this machine learns meanwhile.
    """
    if choice is None or choice.tree.always_nt:
        return plain_nt
    tree = choice.tree
    transposes = lru_cache(4096)(lambda *shape: tree.transposes(ProductShape(*shape)))

    def multiply(a_MK: Tensor, b_NK: Tensor) -> Tensor:
        if not _has_choice(a_MK, b_NK, device):
            return plain_nt(a_MK, b_NK)
        *blocks, n, k = b_NK.shape
        m = a_MK.numel() // k // (blocks[0] if blocks else 1)
        threads = choice.threads or current_threads(device)
        if not transposes(m, n, k, blocks[0] if blocks else 0, _DTYPES[b_NK.dtype], threads):
            return plain_nt(a_MK, b_NK)
        b_KN = _transposed(b_NK, choice.copy_bytes)
        return plain_nt(a_MK, b_NK) if b_KN is None else a_MK @ b_KN

    return multiply


def current_threads(device: str) -> int:
    """Return the threads of a product: torch's on a CPU, 1 elsewhere."""
    return torch.get_num_threads() if device == "cpu" else 1


def free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


@contextmanager
def bound(multiply: Multiply | None) -> Iterator[None]:
    """Let `nt_gemm` multiply by this meanwhile; None: by what is in force, read again."""
    global _bound  # noqa: PLW0603 (one choice a process)
    before, _bound = _bound, multiply
    try:
        yield
    finally:
        _bound = before


def learned(device: str) -> NtChoice | None:
    """Return what is in force for the products of a device; None for NT always."""
    tree = choice_in_force(cast(Device, device)).tree if device in get_args(Device) else None
    return NtChoice(tree=tree) if tree else None


def _bind() -> Multiply:
    """Read the choice of this machine, once; a GPU's when the first product is on it."""
    global _bound  # noqa: PLW0603
    known = {"cpu": nt_product(learned("cpu"))}

    def by_device(a_MK: Tensor, b_NK: Tensor) -> Tensor:
        device = b_NK.device.type
        if device not in known:
            known[device] = nt_product(learned(device), device)
        return known[device](a_MK, b_NK)

    _bound = by_device if torch.cuda.is_available() else known["cpu"]
    return _bound


def _has_choice(a_MK: Tensor, b_NK: Tensor, device: str) -> bool:
    """Return whether there is a choice between NT and a copy; what is a view of B^T has none."""
    return (
        not torch._C._get_tracing_state()  # first: in a trace, sizes are tensors
        and not torch.compiler.is_compiling()
        and (b_NK.ndim == 2 or (b_NK.ndim == a_MK.ndim == 3 and len(a_MK) == len(b_NK)))
        and b_NK.stride(-1) == 1
        and a_MK.dtype == b_NK.dtype
        and b_NK.dtype in _DTYPES
        and 0 not in (*a_MK.shape, *b_NK.shape)
        and b_NK.device.type == device
        and type(a_MK) in (Tensor, nn.Parameter)
        and type(b_NK) in (Tensor, nn.Parameter)
        and not (torch.is_grad_enabled() and (a_MK.requires_grad or b_NK.requires_grad))
        and not torch.is_autocast_enabled(device)
    )


def _transposed(b_NK: Tensor, most_bytes: int | None) -> Tensor | None:
    """Return the transposed copy; None where the memory does not take it."""
    needed = b_NK.numel() * b_NK.element_size()
    if most_bytes is None and needed > _SMALL_BYTES:
        most_bytes = int(SHARE_OF_FREE * free_bytes(b_NK.device))
    if most_bytes is not None and needed > most_bytes:
        log.info("no memory for a transposed copy of %.1f GB: NT", needed / 1e9)
        return None
    try:
        return b_NK.mT.contiguous()
    except RuntimeError as error:  # torch's own out of memory, and its allocator's on a CPU
        log.info("no transposed copy (%s): NT", error)
        return None


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
