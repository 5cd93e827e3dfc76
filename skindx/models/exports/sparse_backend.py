"""Convolutions that skip the zeros of ReLU, in torch: choices of layers, without weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.kinds import load_object
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json
from skindx.models.exports.runtimes import ExportBackend, Precision

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from skindx.models.classifier.classifier import Classifier
    from skindx.models.ensemble import Body, Member

_CODE = "skindx.models.exports.sparse_body"

Choice = Literal["sparse", "packed", "torch", "bf16"]
"""Zeros skipped; oneDNN with weights packed before; torch's own call; oneDNN in bf16."""
Setting = Literal["one", "many", "one_threaded", "many_threaded"]
"""One image or several at once, by one thread or by several."""


class LayerRecord(Settings):
    """One convolution."""

    zeros: float = Field(ge=0, le=1)
    """Share of zeros in its input, of calibration images."""
    choices: dict[Setting, Choice] = Field(default_factory=dict)
    dense: dict[Setting, Choice] = Field(default_factory=dict)
    """What was fastest without skipping zeros."""


class SparseRecord(Settings):
    """One network: its weights stay where the bundle has them."""

    format: Literal[1] = 1
    machine: str = ""
    """The `fingerprint` of the machine that measured."""
    layers: dict[str, LayerRecord] = Field(default_factory=dict)
    """By the name of the convolution in the network."""
    alone: str = ""
    """Why the network is left alone, in a sentence."""

    @classmethod
    def read(cls, file: Path) -> "SparseRecord":
        """Read an untrusted file. Raises UserError."""
        return cls.parse(read_json(file), str(file), expand=False)


class SparseBackend(ExportBackend):
    """Convolutions that skip the zeros of ReLU: choices for the network's layers, timed here.

    Shi and Chu 2017, arXiv 1704.07724.
    """

    kind = "sparse"
    module = "torch"
    suffix = ".json"
    unsupported: ClassVar[Mapping[Precision, str]] = {
        "int8": "sparse int8 is unsupported: its convolutions compute in fp32, and in bf16 where a "
        "CPU has it; use --precision fp32."
    }
    timed_images = 8

    @classmethod
    def write(
        cls,
        file: Path,
        classifier: "Classifier",
        size: int,
        precision: Precision,
        samples: "Sequence[NDArray[np.uint8]]",
    ) -> None:
        """Write the choices, measured here on `samples`."""
        load_object(f"{_CODE}:write_sparse")(file, classifier, samples, precision)

    @classmethod
    def load(cls, file: Path, precision: Precision, member: "Member | None" = None) -> "Body":
        """Return the member's body by its choices, measured again on another machine."""
        assert member is not None
        code = load_object(f"{_CODE}:load_sparse")
        body: Body = code(file, member.classifier, member.preprocess.size, precision)
        return body

    @classmethod
    def left_alone(cls, files: Mapping[str, Path]) -> dict[str, str]:
        """Return why networks have nothing to skip. Raises UserError if none has."""
        records = {name: SparseRecord.read(file) for name, file in files.items()}
        alone = {name: record.alone for name, record in records.items() if record.alone}
        if len(alone) == len(files):
            reasons = " ".join(f"{name}: {why}" for name, why in alone.items())
            raise UserError(
                f"the sparse export would change nothing; {reasons} The bundle is as it was, use "
                "--to onnx or --to openvino."
            )
        return alone

    @classmethod
    def summary(cls, files: Mapping[str, Path], alone: Mapping[str, str]) -> list[str]:
        """Return how many convolutions of each member skip zeros, or why it was left alone."""
        count = load_object(f"{_CODE}:layers_that_skip")
        lines = []
        for name, file in files.items():
            if name in alone:
                lines.append(f"{name} is left alone: {alone[name]}")
            else:
                skip, total = count(file)
                lines.append(f"{name}: {skip} of {total} convolutions skip zeros")
        return lines
