"""The record of an export: `exports/TO-PRECISION/export.json` in a bundle."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json
from skindx.models.bundle.bundle_index import EXPORTS
from skindx.models.exports.runtimes import Precision, Runtime, backend_of
from skindx.models.metadata_head import AnswerRules

SPEC = "export.json"
_RETIRED = ("sparse",)
"""Backends of 0.2 that were slower than the others."""

log = logging.getLogger(__name__)


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


class Gain(Settings):
    """How many times faster an export answers than the fastest of a higher precision."""

    over: str
    """What that was: eager, or a runtime and its precision."""
    value: float = Field(gt=0)
    """Median of the ratios of interleaved rounds, one image on one thread."""
    low: float
    high: float
    """Their 25th and 75th percentile."""


class PairedAccuracy(Settings):
    """Balanced accuracy of the ensemble by its export and by its networks, on the same images."""

    pictures: int = Field(ge=1)
    eager: float = Field(ge=0, le=1)
    exported: float = Field(ge=0, le=1)
    low: float | None
    high: float | None
    """95 % interval of `exported` - `eager` over groups; None where one group is all there is."""


class ExportCalibration(AnswerRules):
    """What is fitted again for an export that rounds coarsely; it serves in the bundle's place."""

    members: tuple[Annotated[float, Field(gt=0)], ...]
    """Temperatures of the members."""
    temperature: float = Field(gt=0)
    """Of the ensemble."""


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
    kept: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By member: the layers of an int8 export that stayed in fp32, since int8 hurt there."""
    gain: Gain | None = None
    accuracy: PairedAccuracy | None = None
    """On the test split; None where the dataset has none, or no labels of the bundle's classes."""
    calibration: ExportCalibration | None = None
    """None: the bundle's own serves."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # What exports had no need of before is written where it is used.
        parts: dict[str, Any] = write(self)
        unused = {key for key in ("kept", "gain", "accuracy", "calibration") if not parts[key]}
        return {key: value for key, value in parts.items() if key not in unused}

    @property
    def name(self) -> str:
        """As people read it, such as `openvino bf16`."""
        return f"{self.to} {self.precision}"

    @property
    def folder(self) -> str:
        return folder_of(self.to, self.precision)

    def file(self, member: str) -> str:
        """The path of a member's body inside the bundle."""
        return f"{self.folder}/{member}{backend_of(self.to).suffix}"


def folder_of(to: Runtime, precision: Precision) -> str:
    """Return where a bundle keeps an export."""
    return f"{EXPORTS}/{to}-{precision}"


def read_exports(bundle: Path, files: Iterable[str]) -> list[ExportSpec]:
    """Return what a bundle with these verified `files` was exported to. Raises UserError.

    Exports to a backend that skindx no longer has stay in the bundle and are not used.
    """
    exports = []
    for name in sorted(files):
        folder, _, file = name.rpartition("/")
        if folder.startswith(f"{EXPORTS}/") and file == SPEC:
            path = bundle / name
            parts = read_json(path)
            if parts.get("to") in _RETIRED:
                log.warning(
                    "%s is for %s, which answers no faster than others and is no longer used; "
                    "`skindx export %s --to onnx` makes a faster one.",
                    *(path, parts["to"], bundle),
                )
                continue
            spec = ExportSpec.parse(parts, str(path), expand=False)
            if spec.folder != folder:
                raise UserError(f"{path} is of {spec.name}, which lies elsewhere; export it again.")
            exports.append(spec)
    return exports
