"""The stages that a member passes, checked for one network."""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from skindx.diagnosis.heat_maps import heat_maps
from skindx.models.classifier.classifier import (
    Classifier,
    ClassifierSettings,
    build_classifier,
    check_last_map,
    take_gradient,
)
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.ensemble import Ensemble, Member
from skindx.models.exports.runtimes import Runtime, backend_of, load_body, make_body
from skindx.training.tasks.optimizer import layer_depths

STAGES = ("build", "step", "layer_decay", "predict", "heat_map", "onnx", "openvino")
_CLASSES = 3
_TOLERANCE = 1e-2
"""Largest difference of a logit from the eager one, relative to the largest logit."""


def run_stages(model: str, size: int) -> Iterator[str]:
    """Yield for each stage "yes", or "no: " and why; after a network that is not built, no more."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = ClassifierSettings(model=model, preprocess=Preprocess(size=size))
    try:
        classifier = build_classifier(settings, _CLASSES)
    except Exception as error:
        yield _no(error)
        yield from ["no: not built"] * (len(STAGES) - 1)
        return
    yield "yes"
    yield _tried(lambda: take_gradient(classifier, size, _CLASSES))
    yield _tried(lambda: layer_depths(classifier))
    yield _tried(lambda: check_last_map(classifier, size, _CLASSES))
    yield _tried(lambda: _heat(classifier, settings))
    for runtime in ("onnx", "openvino"):
        yield _tried(lambda to=runtime: _export(classifier, settings, to))  # type: ignore[misc]


def _tried(stage: Callable[[], object]) -> str:
    try:
        stage()
    except Exception as error:
        return _no(error)
    return "yes"


def _no(error: Exception) -> str:
    return f"no: {' '.join(str(error).split())[:120] or type(error).__name__}"


def _heat(classifier: Classifier, settings: ClassifierSettings) -> None:
    member = Member(settings.model, classifier.eval(), settings.preprocess)
    side = settings.preprocess.size
    photo = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    ensemble = Ensemble((member,))
    maps = ensemble.predict_with_features([photo]).maps
    # With random weights one class' heat may be zero everywhere by chance, not that of each.
    found = [heat_maps(ensemble, maps, [number], [photo])[0] for number in range(_CLASSES)]
    if all(heat is None for heat in found):
        raise ValueError("no heat for any class")


def _export(classifier: Classifier, settings: ClassifierSettings, to: Runtime) -> None:
    side = settings.preprocess.size
    squares = torch.randint(0, 256, (3, side, side, 3), dtype=torch.uint8)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        file = Path(folder) / f"body{backend_of(to).suffix}"
        make_body(file, classifier.eval(), settings.preprocess, to=to, precision="fp32")
        theirs_BC = classifier.forward_head(load_body(file, to, "fp32")(squares))
        ours_BC = classifier(squares)
    if not (theirs_BC - ours_BC).abs().max() <= _TOLERANCE * ours_BC.abs().max():
        raise ValueError("the export answers otherwise than the network")
