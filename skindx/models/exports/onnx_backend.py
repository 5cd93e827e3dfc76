"""ONNX Runtime: a body as a graph of ONNX, and the same in int8 by static quantisation."""

import mmap
import os
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from skindx.core.errors import UserError
from skindx.core.untrusted import open_plain
from skindx.models.exports.runtimes import (
    INPUT,
    OUTPUT,
    ExportBackend,
    Precision,
    Prepared,
    offline_module,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from skindx.models.classifier.classifier import Classifier
    from skindx.models.ensemble import Body

_OPSET = 18
_KINDS = ("Conv", "MatMul")
"""Operators in which the work is; what else becomes int8 depends on them."""


class OnnxBackend(ExportBackend):
    """A graph of ONNX, run by ONNX Runtime."""

    kind = "onnx"
    module = "onnxruntime"
    suffix = ".onnx"
    quantisers = ("onnx", "onnxruntime")
    unsupported: ClassVar[Mapping[Precision, str]] = {
        "bf16": "onnx bf16 is unsupported: ONNX Runtime computes nothing in bf16 on this kind of "
        "CPU; use --to openvino."
    }

    @classmethod
    def write(
        cls,
        file: Path,
        classifier: "Classifier",
        size: int,
        precision: Precision,
        samples: "Sequence[NDArray[np.uint8]]",
    ) -> None:
        """Write the graph; in int8 by the ranges of activations in `samples`."""
        write_onnx(file, classifier, size)
        if precision == "int8":
            quantise_graph(cls, file, file, samples)

    @classmethod
    def load(cls, file: Path, precision: Precision) -> "Body":
        """Load the graph for one thread. Raises UserError for one with data outside itself."""
        _refuse_foreign_data(file)
        onnxruntime = offline_module(cls.module)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Not ONNX Runtime's own format, which it would else recognise by its first bytes.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        providers = ["CPUExecutionProvider"]
        return _OnnxBody(onnxruntime.InferenceSession(file, options, providers=providers))

    @classmethod
    def quantise(cls, prepared: Prepared, file: Path, kept: Collection[str] = ()) -> None:
        """Write the graph in int8: weights by channel, activations by their ranges in samples."""
        from onnxruntime import quantization

        class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
            def __init__(self, squares: "Iterator[NDArray[np.uint8]]") -> None:
                self.squares = squares

            def get_next(self) -> dict[str, Any] | None:
                square = next(self.squares, None)
                return None if square is None else {INPUT: square[None]}

        quantization.quantize_static(
            prepared.graph,
            file,
            Reader(iter(prepared.samples)),
            op_types_to_quantize=list(_KINDS),
            nodes_to_exclude=list(kept),
            per_channel=True,
            # Instructions such as VNNI multiply unsigned by signed.
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            calibration_cache_path=prepared.ranges,
        )


@dataclass(frozen=True)
class _OnnxBody:
    session: Any

    def __call__(self, squares_BSS3: "Tensor") -> "Tensor":
        import torch

        (map_,) = self.session.run(None, {INPUT: squares_BSS3.contiguous().numpy()})
        return torch.from_numpy(map_)


def write_onnx(file: Path, classifier: "Classifier", size: int) -> None:
    """Write the body of a classifier in fp32. Raises UserError for what cannot be followed."""
    import torch

    from skindx.models.classifier.classifier import ClassifierBody

    body = ClassifierBody(classifier).eval()  # or the exporter leaves it in training mode
    squares_BSS3 = torch.zeros((2, size, size, 3), dtype=torch.uint8)
    with warnings.catch_warnings(), torch.no_grad():
        # The exporter by tracing is deprecated, but the newer one needs a package more. What it
        # warns of while tracing, answers that fit one input alone, the parity check would find.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                body,
                (squares_BSS3,),
                str(file),
                dynamo=False,
                opset_version=_OPSET,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_axes={INPUT: {0: "B"}, OUTPUT: {0: "B"}},
            )
        except (RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            network = type(classifier.net).__name__
            raise UserError(
                f"a network of the type {network} cannot be exported ({reason}); use the bundle "
                "without an export."
            ) from None


def prepare(graph: Path, samples: "Sequence[NDArray[np.uint8]]", folder: Path) -> Prepared:
    """Fold the constants of a graph, into `folder`, and list its layers."""
    import onnx
    from onnxruntime.quantization import shape_inference

    whole = folder / "whole.onnx"
    shape_inference.quant_pre_process(graph, whole, skip_symbolic_shape=True)
    nodes = onnx.load_model(whole).graph.node
    layers = tuple(node.name for node in nodes if node.op_type in _KINDS)
    return Prepared(whole, samples, layers, any(node.op_type == "Softmax" for node in nodes))


def quantise_graph(
    backend: type[ExportBackend], graph: Path, file: Path, samples: "Sequence[NDArray[np.uint8]]"
) -> None:
    """Write a graph of ONNX in int8 for a backend, all layers."""
    with tempfile.TemporaryDirectory(prefix=f"{file.name}.tmp-", dir=file.parent) as folder:
        backend.quantise(prepare(graph, samples, Path(folder)), file)


def _refuse_foreign_data(file: Path) -> None:
    """Raise UserError for a graph that takes tensors from other files.

    ONNX names such a file under the key `location`, which no graph of ours holds; the bytes of a
    string lie together in protobuf, however it was written.
    """
    from skindx.models.bounded_files import MOST_BYTES  # with torch

    descriptor = open_plain(file, MOST_BYTES)
    try:
        problem = "" if os.fstat(descriptor).st_size else "is empty"
        if not problem:
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
                if content.find(b"location") >= 0:
                    problem = "refers to data outside itself"
    finally:
        os.close(descriptor)
    if problem:
        raise UserError(f"{file} {problem}; run `skindx export` again.")
