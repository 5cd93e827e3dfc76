"""Which export of a bundle answers here, and an ensemble whose bodies are that export's."""

import logging
from dataclasses import replace

import numpy as np

from skindx.errors import UserError
from skindx.models.bundle import Bundle
from skindx.models.ensemble import Ensemble
from skindx.models.exports.runtimes import load_body, unsupported
from skindx.models.exports.spec import Backend, ExportSpec, Precision, Runtime, read_exports

log = logging.getLogger(__name__)

EAGER = "eager"

FASTEST: tuple[tuple[Runtime, Precision], ...] = (
    ("openvino", "int8"),
    ("openvino", "bf16"),
    ("onnx", "fp32"),
    ("openvino", "fp32"),
    ("onnx", "int8"),
)
"""As `skindx bench serve` finds them on one thread; on small networks the two fp32 tie."""


def with_backend(
    bundle: Bundle, ensemble: Ensemble, backend: Backend, device: str = "cpu"
) -> tuple[Ensemble, str]:
    """Return the ensemble with the bodies of `backend`, and the name of what answers.

    `auto` takes the fastest export that this machine can run, and else leaves the ensemble eager,
    as it is on any device but the CPU. Raises UserError for a named backend that cannot serve.
    """
    if backend == "eager" or (backend == "auto" and device != "cpu"):
        return ensemble, EAGER
    wanted = [spec for spec in _ranked(bundle) if backend in ("auto", spec.to)]
    problems = []
    if device != "cpu":
        problems = [f"exports run on the CPU, not on {device}"]
        wanted = []
    elif not wanted:
        problems = [f"the bundle has no such export; run `skindx export {bundle.path}` first"]
    for spec in wanted:
        why = unsupported(spec.to, spec.precision)
        if not why:
            try:
                return _attached(bundle, ensemble, spec), spec.name
            # The runtimes have exceptions of their own for a file of a later version than theirs.
            except Exception as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                why = f"{spec.name} cannot be loaded ({reason})"
                log.warning("%s: %s", bundle.path.name, why)
        problems.append(why)
    if backend == "auto":
        return ensemble, EAGER
    raise UserError(f"backend {backend!r} cannot serve {bundle.path}: {'; '.join(problems)}")


def _ranked(bundle: Bundle) -> list[ExportSpec]:
    exports = read_exports(bundle.path, bundle.spec.files)
    known = [spec for spec in exports if (spec.to, spec.precision) in FASTEST]
    return sorted(known, key=lambda spec: FASTEST.index((spec.to, spec.precision)))


def _attached(bundle: Bundle, ensemble: Ensemble, spec: ExportSpec) -> Ensemble:
    members = []
    for member in ensemble.members:
        file = bundle.path / spec.file(member.name)
        if spec.file(member.name) not in bundle.spec.files:
            raise UserError(f"the bundle does not list {spec.file(member.name)}")
        exported = replace(member, exported=load_body(file, spec.to, spec.precision))
        # A graph whose map does not fit the network's head shows it here, not in a diagnosis.
        side = member.preprocess.size
        exported.log_probabilities([np.zeros((side, side, 3), dtype=np.uint8)])
        members.append(exported)
    return replace(ensemble, members=tuple(members))
