"""A graph in fp32 becomes one in int8: weights by channel, activations by their ranges in samples.

Both ways are quantisation after training: ONNX Runtime's static quantisation, and NNCF for
OpenVINO, which also corrects the biases (Nagel et al. 2019, arXiv 1906.04721, section 4.2).
"""

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import go_offline
from skindx.models.exports.signal_stack import own_signal_stack
from skindx.models.exports.spec import INPUT, Runtime

_KINDS = ("Conv", "MatMul")
"""Operators in which the work is; what else becomes int8 depends on them."""

_OPENVINO_KINDS = {"Convolution", "GroupConvolution", "MatMul"}
"""The same operators by OpenVINO's names."""

_BIAS_APART = "/WithoutBiases"
"""What OpenVINO's reader of ONNX adds to the name of a convolution whose bias it takes out."""


@dataclass(frozen=True)
class Prepared:
    """A graph in fp32 with constants folded and shapes known, and what int8 learns from."""

    graph: Path
    samples: Sequence[NDArray[np.uint8]]
    """Squares S x S x 3 of training images."""
    layers: tuple[str, ...]
    """Names of the nodes that int8 is for, in the order of the graph."""
    attends: bool
    """Whether there is attention in it, which the quantisers treat apart."""

    @property
    def ranges(self) -> Path:
        """Where the ranges of all tensors are kept between two quantisations."""
        return self.graph.with_suffix(".ranges.json")


def prepare(graph: Path, samples: Sequence[NDArray[np.uint8]], folder: Path) -> Prepared:
    """Fold the constants of a graph, into `folder`, and list its layers."""
    import onnx
    from onnxruntime.quantization import shape_inference

    whole = folder / "whole.onnx"
    shape_inference.quant_pre_process(graph, whole, skip_symbolic_shape=True)
    nodes = onnx.load_model(whole).graph.node
    return Prepared(
        whole,
        samples,
        tuple(node.name for node in nodes if node.op_type in _KINDS),
        any(node.op_type == "Softmax" for node in nodes),
    )


def quantise(prepared: Prepared, file: Path, to: Runtime, kept: Collection[str] = ()) -> None:
    """Write the graph in int8 for a runtime; the layers `kept` stay in fp32.

    With any of them, additions and poolings do too: sums of residual branches lose as much as
    layers, and only NNCF rounds them at all.
    """
    _QUANTISERS[to](prepared, file, kept)


def _quantise_onnx(prepared: Prepared, file: Path, kept: Collection[str]) -> None:
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, squares: Iterator[NDArray[np.uint8]]) -> None:
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


def _quantise_openvino(prepared: Prepared, file: Path, kept: Collection[str]) -> None:
    go_offline()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that it reads, of its own future
        import nncf
    import openvino

    model = openvino.Core().read_model(prepared.graph)
    names = [
        operation.get_friendly_name()
        for operation in model.get_ops()
        if operation.get_friendly_name().removesuffix(_BIAS_APART) in kept
    ]
    others = {operation.get_type_name() for operation in model.get_ops()} - _OPENVINO_KINDS
    # Its own `set_log_level` also changes handlers that other loggers share.
    logging.getLogger("nncf").setLevel(logging.ERROR)
    # It always draws progress bars.
    with own_signal_stack(), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = nncf.quantize(
            model,
            nncf.Dataset([square[None] for square in prepared.samples]),
            preset=nncf.QuantizationPreset.PERFORMANCE,
            subset_size=len(prepared.samples),
            model_type=nncf.ModelType.TRANSFORMER if prepared.attends else None,
            ignored_scope=nncf.IgnoredScope(names=names, types=sorted(others), validate=False)
            if names
            else None,
        )
    openvino.save_model(done, file, compress_to_fp16=False)


def _nncf() -> Any:
    """Return NNCF, imported without the messages that it and torch's extension builder print."""
    go_offline()
    before, logger_class = logging.root.manager.disable, logging.getLoggerClass()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("nncf")
    finally:
        logging.disable(before)
        logging.setLoggerClass(logger_class)  # it makes its own the class of all later loggers


_QUANTISERS: dict[Runtime, Callable[[Prepared, Path, Collection[str]], None]] = {
    "onnx": _quantise_onnx,
    "openvino": _quantise_openvino,
}
