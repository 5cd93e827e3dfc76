"""`nt_gemm`: C = A B^T, as this machine is measured to compute it faster.

M, N, K = sizes of a product; S = blocks of a stack
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import product
from typing import cast, get_args

import torch
from pydantic import Field
from torch import Tensor, nn

from skindx.core.machine import free_memory
from skindx.core.settings_base import Settings
from skindx.gemm.record import Device, choice_in_force
from skindx.gemm.shape import Dtype, Shape
from skindx.gemm.tree import Tree

log = logging.getLogger(__name__)

Multiply = Callable[[Tensor, Tensor], Tensor]
"""A and B -> A B^T."""

SHARE_OF_FREE = 0.5
"""A transposed copy may take this much of the free memory."""
_SMALL_BYTES = 16 * 2**20
"""Copies up to this size are made without a look at the free memory, which takes longer."""
_REMEMBERED = 4096
"""Shapes whose choice is remembered."""
_DTYPES: dict[torch.dtype, Dtype] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
_PLAIN_TYPES = (Tensor, nn.Parameter)

_linear = nn.functional.linear
_bound: Multiply | None = None


def nt_gemm(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """Return A B^T, M x N; also of stacks S x M x K and S x N x K, and of A with more dimensions.

    NT, to the bit what torch computes, unless this machine has learned a tree (`skindx bench gemm
    --fit`) that says otherwise for the shape. A transposed copy may round otherwise in the last
    bits; the choice is read once and then holds for the process. Where a gradient is needed, under
    autocast and while torch traces or compiles, it is always NT.
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

    tree: Tree
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

    @lru_cache(_REMEMBERED)
    def ever_transposes(a_shape: torch.Size, b_shape: torch.Size) -> bool:
        """Return whether some type and number of threads is multiplied by a copy in this shape."""
        if not 2 <= len(b_shape) <= 3 or 0 in (*a_shape, *b_shape):
            return False
        threads = range(1, int(tree.most["threads"]) + 1)
        sizes = _sizes(a_shape, b_shape)
        return any(tree.transposes(Shape(*sizes, *own)) for own in product(tree.dtypes, threads))

    @lru_cache(_REMEMBERED)
    def transposes(shape: Shape) -> bool:
        return tree.transposes(shape)

    def multiply(a_MK: Tensor, b_NK: Tensor) -> Tensor:
        if torch._C._get_tracing_state() or torch.compiler.is_compiling():
            return plain_nt(a_MK, b_NK)
        # Nothing else is asked of products that NT always wins, which may be tiny.
        if not ever_transposes(a_MK.shape, b_NK.shape) or not _has_choice(a_MK, b_NK, device):
            return plain_nt(a_MK, b_NK)
        threads = choice.threads or current_threads(device)
        sizes = _sizes(a_MK.shape, b_NK.shape)
        if not transposes(Shape(*sizes, _DTYPES[b_NK.dtype], threads)):
            return plain_nt(a_MK, b_NK)
        b_KN = _transposed(b_NK, choice.copy_bytes)
        return plain_nt(a_MK, b_NK) if b_KN is None else a_MK @ b_KN

    return multiply


def current_threads(device: str) -> int:
    """Return the threads of a product: torch's on a CPU, 1 elsewhere."""
    return torch.get_num_threads() if device == "cpu" else 1


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device."""
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
    on_cpu = nt_product(learned("cpu"))
    _bound = _by_device(on_cpu) if torch.cuda.is_available() else on_cpu
    return _bound


def _by_device(on_cpu: Multiply) -> Multiply:
    known = {"cpu": on_cpu}

    def multiply(a_MK: Tensor, b_NK: Tensor) -> Tensor:
        device = b_NK.device.type
        if device not in known:
            known[device] = nt_product(learned(device), device)
        return known[device](a_MK, b_NK)

    return multiply


def _sizes(a_shape: torch.Size, b_shape: torch.Size) -> tuple[int, int, int, int]:
    """Return m, n, k and blocks."""
    *blocks, n, k = b_shape
    stack = blocks[0] if blocks else 0
    return a_shape.numel() // k // max(1, stack), n, k, stack


def _has_choice(a_MK: Tensor, b_NK: Tensor, device: str) -> bool:
    """Return whether there is a choice between NT and a copy; what is a view of B^T has none."""
    return (
        type(a_MK) in _PLAIN_TYPES
        and type(b_NK) in _PLAIN_TYPES
        and a_MK.dtype == b_NK.dtype
        and b_NK.dtype in _DTYPES
        and b_NK.device.type == device
        and b_NK.stride(-1) == 1
        and (b_NK.ndim == 2 or (b_NK.ndim == a_MK.ndim == 3 and len(a_MK) == len(b_NK)))
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
