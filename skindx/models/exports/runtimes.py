"""The runtimes: whether this machine can run an export, and how a body is loaded.

Each uses one thread: an image is too little work to share, and a server has a worker a core.
"""

import contextlib
import ctypes
import importlib
import io
import logging
import mmap
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import skindx
from skindx.core.errors import UserError
from skindx.core.machine import cpu_flags, go_offline, how_to_install, missing_modules
from skindx.core.untrusted import open_plain
from skindx.models.bounded_files import MOST_BYTES
from skindx.models.classifier.classifier import Classifier, ClassifierBody
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.ensemble import Body, Member
from skindx.models.exports.export_record import INPUT, OUTPUT, Precision, Runtime
from skindx.models.exports.sparse_body import load_sparse, write_sparse


class _Stack(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def own_signal_stack() -> Iterator[None]:
    """Give this thread the alternate signal stack back that it had before the block.

    Each `openvino.Core` that loads the CPU plugin gives the thread an alternate stack, and when it
    is deleted restores the one before. Where two live at once, and the first is deleted first, the
    second restores the memory that the first has unmapped: the process dies of its next signal,
    such as SIGTERM or SIGCHLD. A Core that finds another stack than its own restores none.
    """
    if sys.platform != "linux":
        yield
        return
    sigaltstack = ctypes.CDLL(None).sigaltstack
    before = _Stack()
    found = sigaltstack(None, ctypes.byref(before)) == 0
    try:
        yield
    finally:
        if found:
            sigaltstack(ctypes.byref(before), None)


# OpenVINO's alternate stack for signals, which it takes away while it is still in use.

_MODULES: dict[Runtime, str] = {
    "onnx": "onnxruntime",
    "openvino": "openvino",
    "sparse": "torch",
}
QUANTISERS: dict[Runtime, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "onnxruntime", "nncf"),
    "sparse": (),
}
"""What makes an int8 export; what runs one is the runtime alone."""
_INSTRUCTIONS: dict[Precision, tuple[str, ...]] = {
    "bf16": ("avx512_bf16", "amx_bf16"),
    # Older ones add pairs of products in 16 bits, which overflow: other answers than checked.
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8"),
}


def unsupported(to: Runtime, precision: Precision) -> str:
    """Return why this machine cannot run such an export, in a sentence; empty when it can."""
    if to == "onnx" and precision == "bf16":
        return (
            "onnx bf16 is unsupported: ONNX Runtime computes nothing in bf16 on this kind of CPU; "
            "use --to openvino."
        )
    if to == "sparse" and precision == "int8":
        return (
            "sparse int8 is unsupported: its convolutions compute in fp32, and in bf16 where a CPU "
            "has it; use --precision fp32."
        )
    if missing_modules(_MODULES[to]):
        return f"{to} needs {_MODULES[to]}, which is not installed; run {how_to_install('serve')}."
    needed = _INSTRUCTIONS.get(precision)
    if needed and not cpu_flags().intersection(needed):
        return (
            f"{to} {precision} is unsupported: this CPU has none of {', '.join(needed)}; "
            "use --precision fp32."
        )
    return ""


def versions(to: Runtime, precision: Precision = "fp32") -> dict[str, str]:
    """Return the versions of what makes and runs an export."""
    own = {"skindx": skindx.__version__, "torch": torch.__version__}
    made = QUANTISERS[to] if precision == "int8" else ()
    own |= {name: metadata.version(name) for name in made if name != _MODULES[to]}
    return own | {_MODULES[to]: str(_module(to).__version__)}


def load_body(file: Path, to: Runtime, precision: Precision) -> Body:
    """Load a graph for CPU tensors. Raises what the runtime raises for a bad file."""
    return _LOADERS[to](file, precision)


def with_export(member: Member, file: Path, to: Runtime, precision: Precision) -> Member:
    """Return the member with its exported body. Raises what the runtime raises for a bad file."""
    if to == "sparse":  # a file of choices, without weights
        body = load_sparse(file, member.classifier, member.preprocess.size, precision)
    else:
        body = load_body(file, to, precision)
    return replace(member, exported=body)


@dataclass(frozen=True)
class _OnnxBody:
    session: Any

    def __call__(self, squares_BSS3: Tensor) -> Tensor:
        (map_,) = self.session.run(None, {INPUT: _array(squares_BSS3)})
        return torch.from_numpy(map_)


@dataclass(frozen=True)
class _OpenVinoBody:
    one: Any
    """For one square: a graph of fixed shapes is a tenth faster on small networks."""
    many: Any
    requests: threading.local = field(default_factory=threading.local)
    """A request holds the intermediate results of one call: threads must not share it."""

    def __call__(self, squares_BSS3: Tensor) -> Tensor:
        kind = "one" if len(squares_BSS3) == 1 else "many"
        if not hasattr(self.requests, kind):
            setattr(self.requests, kind, getattr(self, kind).create_infer_request())
        request = getattr(self.requests, kind)
        return torch.from_numpy(request.infer({INPUT: _array(squares_BSS3)})[0])


def _array(squares_BSS3: Tensor) -> NDArray[np.uint8]:
    return squares_BSS3.contiguous().numpy()


def _module(to: Runtime) -> Any:
    go_offline()  # OpenVINO reports each import to its makers
    return importlib.import_module(_MODULES[to])


def _refuse_foreign_data(file: Path) -> None:
    """Raise UserError for a graph that takes tensors from other files.

    ONNX names such a file under the key `location`, which no graph of ours holds; the bytes of a
    string lie together in protobuf, however it was written.
    """
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
        raise UserError(f"{file} {problem}; export it again.")


def _onnx(file: Path, _: Precision) -> Body:
    _refuse_foreign_data(file)
    onnxruntime = _module("onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Not ONNX Runtime's own format, which it would else recognise by its first bytes.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    return _OnnxBody(
        onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    )


def _openvino(file: Path, precision: Precision) -> Body:
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": 1,
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
        # Each worker would bind its only thread to the same core.
        "ENABLE_CPU_PINNING": False,
    }
    with own_signal_stack():
        core = _module("openvino").Core()
        model = core.read_model(file)
        many = core.compile_model(model, "CPU", options)
        _, *square = model.input(0).partial_shape
        model.reshape([1, *square])
        return _OpenVinoBody(core.compile_model(model, "CPU", options), many)


_LOADERS: dict[Runtime, Callable[[Path, Precision], Body]] = {
    "onnx": _onnx,
    "openvino": _openvino,
}


# A graph in fp32 becomes one in int8: weights by channel, activations by their ranges in samples.
#
# Both ways are quantisation after training: ONNX Runtime's static quantisation, and NNCF for
# OpenVINO, which also corrects the biases (Nagel et al. 2019, arXiv 1906.04721, section 4.2).

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


# A classifier's body becomes a file for another runtime.

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
