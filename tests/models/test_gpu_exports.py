"""An ONNX export on the CPU answers as the eager networks do on a GPU."""

from pathlib import Path

import numpy as np
import pytest
from exporting import export_image
from tiny_bundle import pack_tiny

from skindx.diagnosis.predictor import Predictor
from skindx.models.exports.bundle_export import export_bundle

pytestmark = pytest.mark.gpu


def test_the_export_answers_as_the_device(device: str, export_data: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    bundle = pack_tiny(tmp_path / "bundle").path
    export_bundle(bundle, "onnx", "fp32", export_data)
    images = [export_image(100 + n) for n in range(3)]
    exported = Predictor.load(bundle, backend="onnx")
    assert exported.backend == "onnx fp32"
    eager = Predictor.load(bundle, device=device)
    for found, wanted in zip(exported.predict(images), eager.predict(images), strict=True):
        np.testing.assert_allclose(found.probabilities_C, wanted.probabilities_C, atol=5e-3)
