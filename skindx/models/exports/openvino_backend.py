"""OpenVINO: a body compiled for one square and for many, in fp32, bf16, or int8 by NNCF."""

import contextlib
import ctypes
import importlib
import io
import logging
import sys
import threading
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.machine import go_offline
from skindx.models.exports.onnx_backend import quantise_graph, write_onnx
from skindx.models.exports.runtimes import INPUT, ExportBackend, Precision, Prepared, offline_module

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from skindx.models.classifier.classifier import Classifier
    from skindx.models.ensemble import Body

_KINDS = {"Convolution", "GroupConvolution", "MatMul"}
"""Operators in which the work is, by OpenVINO's names."""
_BIAS_APART = "/WithoutBiases"
"""What OpenVINO's reader of ONNX adds to the name of a convolution whose bias it takes out."""


class OpenVinoBackend(ExportBackend):
    """OpenVINO's graph, in bf16 where the CPU has it."""

    kind = "openvino"
    module = "openvino"
    suffix = ".xml"
    quantisers = ("onnx", "onnxruntime", "nncf")

    @classmethod
    def write(
        cls,
        file: Path,
        classifier: "Classifier",
        size: int,
        precision: Precision,
        samples: "Sequence[NDArray[np.uint8]]",
    ) -> None:
        """Write the graph, by way of ONNX's."""
        graph = file.with_suffix(".onnx")
        write_onnx(graph, classifier, size)
        if precision == "int8":
            quantise_graph(cls, graph, file, samples)
        else:
            # Not convert_model: it reports to OpenVINO's makers. Half precision fails the check.
            openvino = offline_module(cls.module)
            openvino.save_model(openvino.Core().read_model(graph), file, compress_to_fp16=False)
        graph.unlink()

    @classmethod
    def load(cls, file: Path, precision: Precision) -> "Body":
        """Compile the graph for one thread, for one square and for any number."""
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": 1,
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
            # Each worker would bind its only thread to the same core.
            "ENABLE_CPU_PINNING": False,
        }
        with restored_signal_stack():
            core = offline_module(cls.module).Core()
            model = core.read_model(file)
            many = core.compile_model(model, "CPU", options)
            _, *square = model.input(0).partial_shape
            model.reshape([1, *square])
            return _OpenVinoBody(core.compile_model(model, "CPU", options), many)

    @classmethod
    def quantise(cls, prepared: Prepared, file: Path, kept: Collection[str] = ()) -> None:
        """Write the graph in int8 by NNCF, which also corrects the biases.

        Nagel et al. 2019, arXiv 1906.04721, section 4.2.
        """
        nncf = _nncf()
        openvino = offline_module(cls.module)
        model = openvino.Core().read_model(prepared.graph)
        names = [
            operation.get_friendly_name()
            for operation in model.get_ops()
            if operation.get_friendly_name().removesuffix(_BIAS_APART) in kept
        ]
        ignored_types = {operation.get_type_name() for operation in model.get_ops()} - _KINDS
        # Its own `set_log_level` also changes handlers that other loggers share.
        logging.getLogger("nncf").setLevel(logging.ERROR)
        # It always draws progress bars.
        quiet = contextlib.redirect_stdout(io.StringIO())
        with restored_signal_stack(), quiet, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantised = nncf.quantize(
                model,
                nncf.Dataset([square[None] for square in prepared.samples]),
                preset=nncf.QuantizationPreset.PERFORMANCE,
                subset_size=len(prepared.samples),
                model_type=nncf.ModelType.TRANSFORMER if prepared.attends else None,
                ignored_scope=nncf.IgnoredScope(
                    names=names, types=sorted(ignored_types), validate=False
                )
                if names
                else None,
            )
        openvino.save_model(quantised, file, compress_to_fp16=False)


@dataclass(frozen=True)
class _OpenVinoBody:
    one: Any
    """The graph for one square: fixed shapes make small networks a tenth faster."""
    many: Any
    requests: threading.local = field(default_factory=threading.local)
    """A request holds the intermediate results of one call: threads must not share it."""

    def __call__(self, squares_BSS3: "Tensor") -> "Tensor":
        import torch

        kind = "one" if len(squares_BSS3) == 1 else "many"
        if not hasattr(self.requests, kind):
            setattr(self.requests, kind, getattr(self, kind).create_infer_request())
        request = getattr(self.requests, kind)
        return torch.from_numpy(request.infer({INPUT: squares_BSS3.contiguous().numpy()})[0])


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


class _Stack(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def restored_signal_stack() -> Iterator[None]:
    """Give this thread the alternate signal stack back that it had before the block.

    Each `openvino.Core` that loads the CPU plugin gives the thread an alternate stack, and when it
    is deleted restores the one before. Where two live at once, and the first is deleted first, the
    second restores the memory that the first has unmapped: the process dies of its next signal,
    such as SIGTERM or SIGCHLD. A Core that meets another stack than its own restores none.
    """
    if sys.platform != "linux":
        yield
        return
    sigaltstack = ctypes.CDLL(None).sigaltstack
    before = _Stack()
    known = sigaltstack(None, ctypes.byref(before)) == 0
    try:
        yield
    finally:
        if known:
            sigaltstack(ctypes.byref(before), None)
