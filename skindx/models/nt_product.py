"""The shape of a product C = A B^T, with A m x k and B n x k, and what a tree sees of it."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

import skindx
from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.machine import (
    cache_folder,
    cpu_flags,
    cpu_vendor,
    free_memory,
    machine_fingerprint,
)
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json

Feature = Literal["m", "n", "k", "blocks", "m_over_n", "n_over_k", "dtype", "threads"]
"""Sizes and their ratios as logarithms to base 2; the dtype as its place in `DTYPES`."""
Dtype = Literal["float32", "bfloat16", "float16"]

FEATURES: tuple[Feature, ...] = get_args(Feature)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


@dataclass(frozen=True, slots=True)
class ProductShape:
    """`blocks` such products in a stack, or a single one of matrices (0), on so many threads."""

    m: int
    n: int
    k: int
    blocks: int = 0
    dtype: Dtype = "float32"
    threads: int = 1

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k * max(1, self.blocks)

    @property
    def matrices(self) -> tuple[int, int, int, int]:
        """The shape alone: m, n, k, blocks."""
        return self.m, self.n, self.k, self.blocks

    def features(self) -> dict[Feature, float]:
        """Return the value of each feature; sizes are at least 1."""
        m, n, k = math.log2(self.m), math.log2(self.n), math.log2(self.k)
        return {
            "m": m,
            "n": n,
            "k": k,
            "blocks": math.log2(self.blocks) if self.blocks else -1.0,
            "m_over_n": m - n,
            "n_over_k": n - k,
            "dtype": float(DTYPES.index(self.dtype)),
            "threads": float(self.threads),
        }


# A small decision tree over the shape of a product, as plain values that a JSON file holds.

MOST_NODES = 63
MOST_THREADS = 4096


class TreeLeaf(Settings):
    """What is done with shapes that come here."""

    transposed: bool
    """True: by a transposed copy; False: NT."""
    products: int = Field(ge=0)
    """Timed products that came here."""
    gain: float
    """Mean over them of log(time of NT / time with the copy)."""


class TreeSplit(Settings):
    """Shapes whose feature is at most `at` go on at the node `below`, others at `above`."""

    feature: Feature
    at: float
    below: int = Field(ge=1)
    above: int = Field(ge=1)


class ShapeTree(Settings):
    """Nodes, the root first. Shapes outside of what was timed are left to NT."""

    nodes: tuple[TreeSplit | TreeLeaf, ...] = Field(min_length=1, max_length=MOST_NODES)
    dtypes: tuple[Dtype, ...] = Field(min_length=1)
    least: dict[Feature, float]
    most: dict[Feature, float]
    """Of each feature, among the products that were timed."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        reached = [0]
        for number, node in enumerate(self.nodes):
            if isinstance(node, TreeSplit):
                if min(node.below, node.above) <= number:
                    raise ValueError("a node of the tree leads back")
                reached += [node.below, node.above]
        if sorted(reached) != list(range(len(self.nodes))):
            raise ValueError("the nodes are no tree")
        for bounds in (self.least, self.most):
            if set(bounds) != set(FEATURES):
                raise ValueError("least and most must name every feature")
        if any(self.least[name] > self.most[name] for name in FEATURES):
            raise ValueError("least is above most")
        if self.most["threads"] > MOST_THREADS:
            raise ValueError(f"no machine has more than {MOST_THREADS} threads")
        return self

    @property
    def always_nt(self) -> bool:
        """True where no shape is multiplied by a transposed copy."""
        return not any(isinstance(node, TreeLeaf) and node.transposed for node in self.nodes)

    @property
    def leaves(self) -> int:
        """How many leaves it has."""
        return sum(isinstance(node, TreeLeaf) for node in self.nodes)

    def transposes(self, shape: ProductShape) -> bool:
        """Return whether a product of this shape is to be computed by a transposed copy."""
        if shape.dtype not in self.dtypes:
            return False
        values = shape.features()
        if any(not self.least[name] <= values[name] <= self.most[name] for name in FEATURES):
            return False
        node = self.nodes[0]
        while isinstance(node, TreeSplit):
            node = self.nodes[node.below if values[node.feature] <= node.at else node.above]
        return node.transposed


# The choice that was learned on this machine: its file in the user's cache, and what it says.

FORMAT = 1
LEARN = "skindx bench gemm --fit"
Device = Literal["cpu", "cuda"]

_NT = "NT, as torch multiplies by itself"


class NtRecord(Settings):
    """A learned tree, and where it comes from."""

    format: Literal[1] = 1
    skindx: str = Field(max_length=40)
    """Version that learned it."""
    machine: str = Field(max_length=64)
    """The `fingerprint` of the machine and device that were timed."""
    device: Device
    date: str = Field(max_length=40)
    """UTC, ISO 8601."""
    seconds: float = Field(ge=0)
    """What measuring and learning took."""
    products: int = Field(ge=1)
    """Products that were timed."""
    nt_wins: int = Field(ge=0)
    """Those in which the transposed copy was not faster."""
    tree: ShapeTree

    @classmethod
    def of(
        cls, tree: ShapeTree, device: Device, *, seconds: float, products: int, nt_wins: int
    ) -> Self:
        """Return the record of a tree that this machine has learned now."""
        return cls(
            skindx=skindx.__version__,
            machine=fingerprint(device),
            device=device,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=seconds,
            products=products,
            nt_wins=nt_wins,
            tree=tree,
        )

    def write(self) -> Path:
        """Write it into the cache and return its file. Raises UserError."""
        file = record_file(self.device)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, self.model_dump(mode="json"))
        except OSError as error:
            raise UserError(
                f"the choice cannot be written ({error}); make {file.parent} writable or point "
                "XDG_CACHE_HOME at a folder that is."
            ) from None
        return file

    @classmethod
    def read(cls, file: Path, device: Device) -> Self:
        """Read an untrusted file of this machine and device. Raises UserError."""
        raw: dict[str, Any] = read_json(file)
        if raw.get("format") != FORMAT:
            raise UserError(f"{file} is of another version; learn again with `{LEARN}`.")
        record = cls.parse(raw, str(file), expand=False)
        if (record.machine, record.device) != (fingerprint(device), device):
            raise UserError(f"{file} was learned on another machine; learn here with `{LEARN}`.")
        return record


@dataclass(frozen=True)
class ChoiceInForce:
    """The tree that decides here, None for NT always, and a sentence on where it comes from."""

    tree: ShapeTree | None
    reason: str
    usable: bool = True
    """False: there is a file, and it cannot be used."""


def fingerprint(device: Device) -> str:
    """Return what stands for this machine and one of its devices."""
    if device == "cpu":
        return machine_fingerprint()
    import torch  # which `doctor` does without

    return machine_fingerprint(torch.cuda.get_device_name(), str(torch.version.cuda))


def record_file(device: Device) -> Path:
    """Return where this machine's choice is kept; machines that share a home have their own."""
    return cache_folder() / "gemm" / f"nt-{device}-{fingerprint(device)}.json"


def kept_choices(device: Device) -> int:
    """Return how many choices for such a device the cache holds, of this machine and of others."""
    return len(list((cache_folder() / "gemm").glob(f"nt-{device}-*.json")))


def choice_in_force(device: Device = "cpu") -> ChoiceInForce:
    """Return the choice of this machine; NT where none was learned or the file cannot be used."""
    file = record_file(device)
    if not file.exists():
        others = kept_choices(device)
        beside = f" ({others} in the cache of other machines or versions of torch)" * bool(others)
        return ChoiceInForce(None, f"none learned on this machine{beside}: {_NT}")
    try:
        record = NtRecord.read(file, device)
    except UserError as error:
        return ChoiceInForce(None, f"{_NT}, since {str(error).rstrip('.')}", usable=False)
    learned = (
        f"learned {record.date[:10]} by skindx {record.skindx} in {record.seconds:.0f} s: NT was "
        f"not slower in {record.nt_wins} of {record.products} products"
    )
    if record.tree.always_nt:
        return ChoiceInForce(None, f"NT always, {learned}")
    return ChoiceInForce(record.tree, f"a tree of {record.tree.leaves} leaves, {learned}")


# `nt_gemm`: C = A B^T, as this machine is measured to compute it faster.
#
# M, N, K = sizes of a product; S = blocks of a stack

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

    @lru_cache(_REMEMBERED)
    def ever_transposes(a_shape: torch.Size, b_shape: torch.Size) -> bool:
        """Return whether some type and number of threads is multiplied by a copy in this shape."""
        if not 2 <= len(b_shape) <= 3 or 0 in (*a_shape, *b_shape):
            return False
        threads = range(1, int(tree.most["threads"]) + 1)
        sizes = _sizes(a_shape, b_shape)
        return any(
            tree.transposes(ProductShape(*sizes, *own)) for own in product(tree.dtypes, threads)
        )

    @lru_cache(_REMEMBERED)
    def transposes(shape: ProductShape) -> bool:
        return tree.transposes(shape)

    def multiply(a_MK: Tensor, b_NK: Tensor) -> Tensor:
        if torch._C._get_tracing_state() or torch.compiler.is_compiling():
            return plain_nt(a_MK, b_NK)
        # Nothing else is asked of products that NT always wins, which may be tiny.
        if not ever_transposes(a_MK.shape, b_NK.shape) or not _has_choice(a_MK, b_NK, device):
            return plain_nt(a_MK, b_NK)
        threads = choice.threads or current_threads(device)
        sizes = _sizes(a_MK.shape, b_NK.shape)
        if not transposes(ProductShape(*sizes, _DTYPES[b_NK.dtype], threads)):
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


#
# M, N, K = sizes of a product; S = blocks of a stack

LEAST = 2**20
"""Below so many multiplications the call of oneDNN takes longer than it saves."""


@cache
def onednn_is_faster() -> bool:
    """Return True where torch's products are MKL's and MKL leaves AVX-512 unused."""
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
        if (
            a.ndim != 2
            or b.ndim != 2
            or a.shape[0] * b.numel() < LEAST
            or a.dtype != torch.float32
            or b.dtype != torch.float32
            or a.device.type != "cpu"
        ):
            return otherwise(a_MK, b_NK)
        # Other layouts are copied anyway, or go to a kernel that is a hundred times as slow.
        a = a.contiguous()
        b = b if b.mT.is_contiguous() else b.contiguous()
        c: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        return c if a_MK.ndim == 2 else c[None]

    return multiply
