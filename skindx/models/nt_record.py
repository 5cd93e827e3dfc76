"""What this machine has learned of products A B^T: a tree over their shapes, in the user's cache.

`skindx bench gemm --fit` times products and writes it; without torch, for `skindx doctor`.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, model_validator

import skindx
from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.machine import cache_folder, machine_fingerprint
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json

Feature = Literal["m", "n", "k", "blocks", "m_over_n", "n_over_k", "dtype", "threads"]
"""Sizes and their ratios as logarithms to base 2; the dtype as its place in `DTYPES`."""
Dtype = Literal["float32", "bfloat16", "float16"]
Device = Literal["cpu", "cuda"]
FEATURES: tuple[Feature, ...] = get_args(Feature)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)

FORMAT = 1
LEARN = "skindx bench gemm --fit"
MOST_NODES, MOST_THREADS = 63, 4096
_NT = "NT, as torch multiplies by itself"


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
        return 2 * self.m * self.n * self.k * max(1, self.blocks)

    @property
    def matrices(self) -> tuple[int, int, int, int]:
        """The shape alone: m, n, k, blocks."""
        return self.m, self.n, self.k, self.blocks

    def features(self) -> dict[Feature, float]:
        """Return the value of each feature; sizes are at least 1."""
        m, n, k = math.log2(self.m), math.log2(self.n), math.log2(self.k)
        blocks = math.log2(self.blocks) if self.blocks else -1.0
        dtype, threads = float(DTYPES.index(self.dtype)), float(self.threads)
        return dict(zip(FEATURES, (m, n, k, blocks, m - n, n - k, dtype, threads), strict=True))


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
        if any(set(bounds) != set(FEATURES) for bounds in (self.least, self.most)):
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
        return sum(isinstance(node, TreeLeaf) for node in self.nodes)

    def transposes(self, shape: ProductShape) -> bool:
        """Return whether a product of this shape is to be computed by a transposed copy."""
        values = shape.features()
        timed = all(self.least[name] <= values[name] <= self.most[name] for name in FEATURES)
        if shape.dtype not in self.dtypes or not timed:
            return False
        node = self.nodes[0]
        while isinstance(node, TreeSplit):
            node = self.nodes[node.below if values[node.feature] <= node.at else node.above]
        return node.transposed


class NtRecord(Settings):
    """The file of a learned tree, and where it comes from."""

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
    def of(cls, tree: ShapeTree, device: Device, **measured: Any) -> Self:
        """Return the record of a tree learned here now; `measured`: seconds, products, nt_wins."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        here = {"skindx": skindx.__version__, "machine": fingerprint(device), "date": now}
        return cls(tree=tree, device=device, **here, **measured)

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
    import torch

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
        stored = kept_choices(device)
        beside = f" ({stored} in the cache of other machines or versions of torch)" * bool(stored)
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
