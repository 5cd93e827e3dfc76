"""Bodies in other runtimes: the same answers, in a bundle that stays itself."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from exporting import export_image
from tiny_bundle import pack_tiny

from skindx.core.errors import UserError
from skindx.diagnosis.bundle_statement import bundle_version
from skindx.diagnosis.predictor import Predictor
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_changes import add_metrics
from skindx.models.bundle.bundle_index import INDEX
from skindx.models.class_calibration import ClassCalibration
from skindx.models.exports import runtimes
from skindx.models.exports.backend_choice import with_backend, with_temperatures
from skindx.models.exports.bundle_export import export_bundle
from skindx.models.exports.runtimes import Gain, Precision, Runtime

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_an_exported_bundle_sees_the_same(exported: Path, backend: Runtime) -> None:
    eager = Predictor.load(exported, backend="eager")
    other = Predictor.load(exported, backend=backend)
    assert (eager.backend, other.backend) == ("eager", f"{backend} fp32")
    for count in (1, 3):
        images = [export_image(100 + n) for n in range(count)]
        ours, theirs = (
            eager.ensemble.predict_with_features(images),
            other.ensemble.predict_with_features(images),
        )
        np.testing.assert_allclose(theirs.probabilities_NC, ours.probabilities_NC, atol=1e-5)
        np.testing.assert_allclose(theirs.embeddings_ND, ours.embeddings_ND, atol=1e-5)
        for map_, same in zip(theirs.maps, ours.maps, strict=True):
            torch.testing.assert_close(map_, same, atol=1e-4, rtol=1e-4)
    # A calibration by class is the ensemble's, whatever runtime its bodies have.
    by_class = ClassCalibration(slope=1.3, biases=tuple(np.linspace(-2, 2, 9).tolist()))
    calibrated = replace(eager.ensemble, class_calibration=by_class)
    served = with_backend(eager.bundle, calibrated, backend).ensemble
    served = with_temperatures(served, (1.0, 1.0), served.temperature)  # as for int8
    expected_NC, answer_NC = (one.probabilities(images)[0] for one in (calibrated, served))
    np.testing.assert_allclose(answer_NC, expected_NC, atol=1e-5)
    assert np.abs(answer_NC - theirs.probabilities_NC).max() > 0.01
    # Grad-CAM differentiates the head by the runtime's map.
    leaf = theirs.maps[0].clone().requires_grad_()
    with torch.enable_grad():
        other.ensemble.members[0].classifier.forward_head(leaf)[:, 0].sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().sum() > 0


def test_threads_do_not_mix_their_images(exported: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    ensemble = Predictor.load(exported, backend="openvino").ensemble
    images = [[export_image(n)] for n in range(16)]
    alone = [ensemble.probabilities(image)[0] for image in images]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda each: ensemble.probabilities(each)[0], images))
    np.testing.assert_allclose(np.concatenate(together), np.concatenate(alone), atol=1e-6)


def test_the_bundle_stays_itself(exported: Path, export_data: Path, tmp_path: Path) -> None:
    plain = pack_tiny(tmp_path / "bundle")
    created = {"created": open_bundle(exported).spec.created}
    same = replace(plain, spec=plain.spec.model_copy(update=created))
    assert bundle_version(open_bundle(exported)) == bundle_version(same)
    before = {name for name in plain.spec.files if name != INDEX}
    added = set(open_bundle(exported).spec.files) - before
    assert added == {
        "exports/onnx-fp32/export.json",
        "exports/onnx-fp32/resnet.onnx",
        "exports/onnx-fp32/vit.onnx",
        "exports/openvino-fp32/export.json",
        *(f"exports/openvino-fp32/{name}{end}" for name in MEMBERS for end in (".xml", ".bin")),
    }


MEMBERS = ("resnet", "vit")


def test_an_export_outlives_an_evaluation_and_is_verified(
    export_data: Path, tmp_path: Path
) -> None:
    from tiny_bundle import measured

    bundle = pack_tiny(tmp_path / "bundle").path
    export_bundle(bundle, "onnx", "fp32", export_data)
    export_bundle(bundle, "onnx", "fp32", export_data)  # takes the older one's place
    add_metrics(bundle, measured(0.5))
    assert Predictor.load(bundle, backend="onnx").backend == "onnx fp32"
    file = bundle / "exports/onnx-fp32/resnet.onnx"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(UserError, match=r"resnet\.onnx was altered"):
        Predictor.load(bundle)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_cpu_without_the_instructions_is_reported_so(
    precision: Precision, exported: Path, export_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "cpu_flags", lambda: frozenset({"avx2"}))
    with pytest.raises(UserError, match=f"openvino {precision} is unsupported"):
        export_bundle(exported, "openvino", precision, export_data)
    with pytest.raises(UserError, match="onnx bf16 is unsupported"):
        export_bundle(exported, "onnx", "bf16", export_data)


# At int8 by OpenVINO in the long tests: test_int8_exports packs and serves int8 by ONNX Runtime.
@pytest.mark.parametrize("precision", ["bf16", pytest.param("int8", marks=pytest.mark.long)])
def test_a_coarser_export_is_checked_and_served_first(
    precision: Precision, export_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := runtimes.unsupported("openvino", precision):
        pytest.skip(why)
    # Random weights tell no class from another by much: what is tried here is the way.
    monkeypatch.setattr("skindx.models.exports.fidelity.LEAST_SHARE", 0.0)
    faster = Gain(over="openvino bf16", value=2, low=2, high=2)
    monkeypatch.setattr("skindx.models.exports.bundle_export.measure_gain", lambda *_: faster)
    bundle = pack_tiny(tmp_path / "bundle").path
    spec = export_bundle(bundle, "openvino", precision, export_data)
    assert [result.cosine > 0.8 for result in spec.parity] == [True, True]
    assert [result.cosine < 1 for result in spec.parity] == [True, True]
    assert Predictor.load(bundle, backend="openvino").backend == f"openvino {precision}"
