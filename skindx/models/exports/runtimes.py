"""The runtimes: whether this machine can run an export, and how a body is loaded.

Each uses one thread: an image is too little work to share, and a server has a worker a core.
"""

import importlib
import mmap
import os
import threading
from collections.abc import Callable
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
from skindx.models.ensemble.ensemble import Body, Member
from skindx.models.exports.signal_stack import own_signal_stack
from skindx.models.exports.sparse.body import load_sparse
from skindx.models.exports.spec import INPUT, Precision, Runtime
from skindx.models.tensors import MOST_BYTES

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
