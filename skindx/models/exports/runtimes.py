"""The runtimes that bodies are exported to, as kinds; whether this machine can run an export.

Each runtime uses one thread: an image is too little work to share, and a server has a worker a
core. What an export is stands in its record, `exports/TO-PRECISION/export.json` in a bundle.
"""

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

import skindx
from skindx.core.errors import UserError
from skindx.core.kinds import Family
from skindx.core.machine import cpu_flags, go_offline, how_to_install, missing_modules
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json
from skindx.models.bundle.bundle_index import EXPORTS
from skindx.models.metadata_head import AnswerRules

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from skindx.models.classifier.classifier import Classifier
    from skindx.models.classifier.preprocess import Preprocess
    from skindx.models.ensemble import Body, Member


Precision = Literal["fp32", "bf16", "int8"]

BACKENDS = Family(
    "export backend",
    "skindx.export_backends",
    {
        "onnx": "skindx.models.exports.onnx_backend:OnnxBackend",
        "openvino": "skindx.models.exports.openvino_backend:OpenVinoBackend",
    },
)

if TYPE_CHECKING:
    Runtime = str
    Backend = str
else:
    Runtime = Literal[tuple(BACKENDS.names)]
    Backend = Literal["auto", "eager", *BACKENDS.names]

INPUT, OUTPUT = "pictures", "map"
"""Names of a graph's ends: uint8 B x S x S x 3 in, the body's last map out."""

_INSTRUCTIONS: dict[Precision, tuple[str, ...]] = {
    "bf16": ("avx512_bf16", "amx_bf16"),
    # Older ones add pairs of products in 16 bits, which overflow: other answers than checked.
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8"),
}


@dataclass(frozen=True)
class Prepared:
    """A graph in fp32 with constants folded and shapes known, and what int8 learns from."""

    graph: Path
    samples: "Sequence[NDArray[np.uint8]]"
    """Squares S x S x 3 of training images."""
    layers: tuple[str, ...]
    """Names of the nodes that int8 is for, in the order of the graph."""
    attends: bool
    """Whether there is attention in it, which the quantisers treat apart."""

    @property
    def ranges(self) -> Path:
        """Where the ranges of all tensors are kept between two quantisations."""
        return self.graph.with_suffix(".ranges.json")


class ExportBackend(ABC):
    """A runtime: what it needs, and how a body is written for it and loaded."""

    kind: ClassVar[str]
    module: ClassVar[str]
    """The package that runs it, whose version is recorded."""
    suffix: ClassVar[str]
    """Suffix of the file that holds a member's body."""
    quantisers: ClassVar[tuple[str, ...]] = ()
    """The packages that make an int8 export; what runs one is the runtime alone."""
    unsupported: ClassVar[Mapping[Precision, str]] = {}
    """Why it never has a precision, in a sentence."""

    @classmethod
    @abstractmethod
    def write(
        cls,
        file: Path,
        classifier: "Classifier",
        size: int,
        precision: Precision,
        samples: "Sequence[NDArray[np.uint8]]",
    ) -> None:
        """Write a body: uint8 squares of any number in, the body's last map out.

        Raises UserError for a network that the exporter cannot follow.
        """

    @classmethod
    @abstractmethod
    def load(cls, file: Path, precision: Precision) -> "Body":
        """Load a body for CPU tensors. Raises what the runtime raises for a bad file."""

    @classmethod
    def quantise(cls, prepared: Prepared, file: Path, kept: Collection[str] = ()) -> None:
        """Write a graph in int8; the layers `kept` stay in fp32.

        With any of them, additions and poolings do too: sums of residual branches lose as much as
        layers, and only NNCF rounds them at all.
        """
        raise NotImplementedError(f"{cls.kind} has no int8")


def backend_of(to: Runtime) -> type[ExportBackend]:
    """Return the backend of a runtime. Raises UserError for an unknown one."""
    backend: type[ExportBackend] = BACKENDS.load(to)
    return backend


def unsupported(to: Runtime, precision: Precision) -> str:
    """Return why this machine cannot run such an export, in a sentence; empty when it can."""
    backend = backend_of(to)
    if precision in backend.unsupported:
        return backend.unsupported[precision]
    if missing_modules(backend.module):
        command = how_to_install("runtimes")
        return f"{to} needs {backend.module}, which is not installed; run {command}."
    needed = _INSTRUCTIONS.get(precision)
    if needed and not cpu_flags().intersection(needed):
        return (
            f"{to} {precision} is unsupported: this CPU has none of {', '.join(needed)}; "
            "use --precision fp32."
        )
    return ""


def versions(to: Runtime, precision: Precision = "fp32") -> dict[str, str]:
    """Return the versions of what makes and runs an export."""
    import torch

    backend = backend_of(to)
    packages = backend.quantisers if precision == "int8" else ()
    return {
        "skindx": skindx.__version__,
        "torch": torch.__version__,
        **{name: metadata.version(name) for name in packages if name != backend.module},
        backend.module: str(offline_module(backend.module).__version__),
    }


def make_body(
    file: Path,
    classifier: "Classifier",
    preprocess: "Preprocess",
    *,
    to: Runtime,
    precision: Precision,
    samples: "Sequence[NDArray[np.uint8]]" = (),
) -> None:
    """Write a body for a runtime; see `ExportBackend.write`."""
    backend_of(to).write(file, classifier, preprocess.size, precision, samples)


def load_body(file: Path, to: Runtime, precision: Precision) -> "Body":
    """Load a graph for CPU tensors. Raises what the runtime raises for a bad file."""
    return backend_of(to).load(file, precision)


def quantise(prepared: Prepared, file: Path, to: Runtime, kept: Collection[str] = ()) -> None:
    """Write a graph in int8 for a runtime; see `ExportBackend.quantise`."""
    backend_of(to).quantise(prepared, file, kept)


def with_export(member: "Member", file: Path, to: Runtime, precision: Precision) -> "Member":
    """Return the member with its exported body. Raises what the runtime raises for a bad file."""
    return replace(member, exported=load_body(file, to, precision))


def offline_module(name: str) -> Any:
    """Import a runtime: OpenVINO reports each import to its makers unless it is kept offline."""
    go_offline()
    return importlib.import_module(name)


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
    """25th and 75th percentile of these ratios."""


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
    """Temperature of the ensemble."""


class ExportSpec(Settings):
    """One export: for what, from what, and how it passed its check."""

    format: Literal[1] = 1
    to: Runtime
    precision: Precision
    made: str
    """UTC, ISO 8601."""
    versions: dict[str, str]
    """Versions of the packages that made and checked it."""
    manifest: str
    """SHA-256 of the manifest whose validation images checked it."""
    parity: tuple[Parity, ...] = Field(min_length=1)
    kept: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Layers of an int8 export that stay in fp32 because int8 hurt there, by member."""
    gain: Gain | None = None
    accuracy: PairedAccuracy | None = None
    """Accuracy on the test split; None without a test split or without labels of its classes."""
    calibration: ExportCalibration | None = None
    """Calibration of this export; None: the bundle's own applies."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # What exports had no need of before is written where it is used.
        parts: dict[str, Any] = write(self)
        unused = {key for key in ("kept", "gain", "accuracy", "calibration") if not parts[key]}
        return {key: value for key, value in parts.items() if key not in unused}

    @property
    def name(self) -> str:
        """The export's name as shown to people, such as `openvino bf16`."""
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
                    "%s is for %s, which gave no faster answers and is no longer used; `skindx "
                    "export %s --to onnx` makes a faster one.",
                    *(path, parts["to"], bundle),
                )
                continue
            spec = ExportSpec.parse(parts, str(path), expand=False)
            if spec.folder != folder:
                raise UserError(
                    f"{path} needs its file {spec.name}, which is not in its folder; run `skindx "
                    "export` again."
                )
            exports.append(spec)
    return exports
