"""The record of an export: `exports/TO-PRECISION/export.json` in a bundle."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from skindx.config import Settings
from skindx.errors import UserError
from skindx.untrusted import read_json

Runtime = Literal["onnx", "openvino"]
Precision = Literal["fp32", "bf16", "int8"]
Backend = Literal["auto", "eager", "onnx", "openvino"]

EXPORTS, SPEC = "exports", "export.json"
INPUT, OUTPUT = "pictures", "map"
"""Names of the graph's ends: uint8 B x S x S x 3 in, the body's last map out."""

SUFFIX: dict[Runtime, str] = {"onnx": ".onnx", "openvino": ".xml"}


class Parity(Settings):
    """How one member answers by its export, beside its eager answers to the same images."""

    member: str
    pictures: int = Field(ge=1)
    same: int = Field(ge=0)
    """Images with the same first class."""
    low: float = Field(ge=0, le=1)
    high: float = Field(ge=0, le=1)
    """95 % interval of the share of such images, where those of a group count as alike."""
    cosine: float
    """The least of all images, of logits around their mean."""

    @property
    def share(self) -> float:
        """Share of the images with the same first class."""
        return self.same / self.pictures


class ExportSpec(Settings):
    """One export: for what, from what, and how it passed its check."""

    format: Literal[1] = 1
    to: Runtime
    precision: Precision
    made: str
    """UTC, ISO 8601."""
    versions: dict[str, str]
    """Of the packages that made and checked it."""
    manifest: str
    """SHA-256 of the manifest whose validation images checked it."""
    parity: tuple[Parity, ...] = Field(min_length=1)

    @property
    def name(self) -> str:
        """As people read it, such as `openvino bf16`."""
        return f"{self.to} {self.precision}"

    @property
    def folder(self) -> str:
        """Its folder in the bundle."""
        return folder_of(self.to, self.precision)

    def file(self, member: str) -> str:
        """The path of a member's body inside the bundle."""
        return f"{self.folder}/{member}{SUFFIX[self.to]}"


def folder_of(to: Runtime, precision: Precision) -> str:
    """Return where a bundle keeps an export."""
    return f"{EXPORTS}/{to}-{precision}"


def read_exports(bundle: Path, files: Iterable[str]) -> list[ExportSpec]:
    """Return what a bundle with these verified `files` was exported to. Raises UserError."""
    found = []
    for name in sorted(files):
        folder, _, file = name.rpartition("/")
        if folder.startswith(f"{EXPORTS}/") and file == SPEC:
            path = bundle / name
            spec = ExportSpec.parse(read_json(path), str(path), expand=False)
            if spec.folder != folder:
                raise UserError(f"{path} is of {spec.name}, which lies elsewhere; export it again.")
            found.append(spec)
    return found
