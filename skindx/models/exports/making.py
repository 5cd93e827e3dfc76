"""A classifier's body becomes a file for another runtime."""

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.machine import go_offline
from skindx.models.classifier.classifier import Classifier, ClassifierBody
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.exports.quantising import prepare, quantise
from skindx.models.exports.sparse.body import write_sparse
from skindx.models.exports.spec import INPUT, OUTPUT, Precision, Runtime

_OPSET = 18


def make_body(
    file: Path,
    classifier: Classifier,
    preprocess: Preprocess,
    *,
    to: Runtime,
    precision: Precision,
    samples: Sequence[NDArray[np.uint8]] = (),
) -> None:
    """Write `file`: uint8 squares of any number in, the body's last map out.

    `samples` are squares from which int8 learns its ranges, and on which sparse times its layers.
    Raises UserError for a network that the exporter cannot follow.
    """
    if to == "sparse":
        write_sparse(file, classifier, samples, precision)
        return
    graph = file if to == "onnx" else file.with_suffix(".onnx")
    write_onnx(graph, classifier, preprocess.size)
    if precision == "int8":
        with tempfile.TemporaryDirectory(prefix=f"{file.name}.tmp-", dir=file.parent) as folder:
            quantise(prepare(graph, samples, Path(folder)), file, to)
    elif to == "openvino":
        _write_openvino(graph, file)
    if graph != file:
        graph.unlink()


def write_onnx(file: Path, classifier: Classifier, size: int) -> None:
    """Write the body of a classifier in fp32. Raises UserError for what cannot be followed."""
    body = ClassifierBody(
        classifier
    ).eval()  # or the exporter leaves the classifier in training mode
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
            kind = type(classifier.net).__name__
            raise UserError(
                f"a network of the kind {kind} cannot be exported ({reason}); serve it as it is."
            ) from None


def _write_openvino(graph: Path, file: Path) -> None:
    go_offline()
    import openvino

    # Not convert_model: it reports to OpenVINO's makers. Half precision would fail the check.
    openvino.save_model(openvino.Core().read_model(graph), file, compress_to_fp16=False)
