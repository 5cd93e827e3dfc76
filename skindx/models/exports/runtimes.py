"""The runtimes that bodies are exported to, as kinds; whether this machine can run an export.

Each runtime uses one thread: an image is too little work to share, and a server has a worker a
core.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import skindx
from skindx.core.kinds import Family
from skindx.core.machine import cpu_flags, go_offline, how_to_install, missing_modules

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
    """Of the file of a member's body."""
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
