"""The choice that was learned on this machine: its file in the user's cache, and what it says."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

import skindx
from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.machine import cache_folder, machine_fingerprint
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json
from skindx.gemm.tree import Tree

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
    tree: Tree

    @classmethod
    def of(cls, tree: Tree, device: Device, *, seconds: float, products: int, nt_wins: int) -> Self:
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
class InForce:
    """The tree that decides here, None for NT always, and a sentence on where it comes from."""

    tree: Tree | None
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


def choice_in_force(device: Device = "cpu") -> InForce:
    """Return the choice of this machine; NT where none was learned or the file cannot be used."""
    file = record_file(device)
    if not file.exists():
        others = kept_choices(device)
        beside = f" ({others} in the cache of other machines or versions of torch)" * bool(others)
        return InForce(None, f"none learned on this machine{beside}: {_NT}")
    try:
        record = NtRecord.read(file, device)
    except UserError as error:
        return InForce(None, f"{_NT}, since {str(error).rstrip('.')}", usable=False)
    learned = (
        f"learned {record.date[:10]} by skindx {record.skindx} in {record.seconds:.0f} s: NT was "
        f"not slower in {record.nt_wins} of {record.products} products"
    )
    if record.tree.always_nt:
        return InForce(None, f"NT always, {learned}")
    return InForce(record.tree, f"a tree of {record.tree.leaves} leaves, {learned}")
