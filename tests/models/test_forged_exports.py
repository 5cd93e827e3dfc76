"""Damaged and forged exports: one sentence; test_bundle_apart looks at what they open."""

import json
import os
import shutil
from pathlib import Path

import pytest
from forged_bundle import forge

from skindx.core.errors import UserError
from skindx.diagnosis.predictor import Predictor

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")


def _forged(exported: Path, folder: Path, name: str, content: bytes) -> Path:
    bundle = Path(shutil.copytree(exported, folder / "bundle"))
    forge(bundle, name, content)
    return bundle


def _external(graph: bytes, location: str) -> bytes:
    """Return a graph that takes its largest tensor from another file."""
    import onnx

    model = onnx.load_model_from_string(graph)
    tensor = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    length = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return bytes(model.SerializeToString())


def test_a_graph_takes_no_tensor_from_another_file(exported: Path, tmp_path: Path) -> None:
    """Wherever the file lies: one that is opened for reading would be a pipe that never answers."""
    name = "exports/onnx-fp32/resnet.onnx"
    graph = (exported / name).read_bytes()
    os.mkfifo(tmp_path / "secret")
    for location in ("../../../secret", str(tmp_path / "secret"), "../../taxonomy.yaml"):
        bundle = _forged(exported, tmp_path / location.replace("/", "_"), name, b"")
        forge(bundle, name, _external(graph, location))
        with pytest.raises(UserError, match="refers to data outside itself"):
            Predictor.load(bundle, backend="onnx")
    assert Predictor.load(bundle, backend="auto").backend != "onnx fp32"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("exports/onnx-fp32/resnet.onnx", b""),
        ("exports/onnx-fp32/resnet.onnx", b"\x18\0\0\0ORTM" + b"\0" * 64),
        ("exports/onnx-fp32/resnet.onnx", b"\0" * 100),
        ("exports/openvino-fp32/resnet.xml", b""),
        ("exports/openvino-fp32/resnet.bin", b""),
        (
            "exports/openvino-fp32/resnet.xml",
            b'<!DOCTYPE n [<!ENTITY e SYSTEM "file:///etc/passwd">]><net name="&e;"/>',
        ),
        ("exports/onnx-fp32/export.json", b"{}"),
        ("exports/onnx-fp32/export.json", b'{"format": 1, "format": 1}'),
    ],
)
def test_a_damaged_export_is_one_sentence(
    exported: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    bundle = _forged(exported, tmp_path, name, content)
    with pytest.raises(UserError) as caught:
        Predictor.load(bundle, backend="onnx" if "onnx" in name else "openvino")
    assert "\n" not in str(caught.value)


def test_a_graph_of_another_network_does_not_serve(exported: Path, tmp_path: Path) -> None:
    """Its map does not fit the network's head: that shows at loading, not in a diagnosis."""
    other = (exported / "exports/onnx-fp32/vit.onnx").read_bytes()
    bundle = _forged(exported, tmp_path, "exports/onnx-fp32/resnet.onnx", other)
    with pytest.raises(UserError, match="onnx fp32 cannot be loaded"):
        Predictor.load(bundle, backend="onnx")


def test_an_export_of_another_kind_than_its_folder_is_refused(
    exported: Path, tmp_path: Path
) -> None:
    spec = json.loads((exported / "exports/onnx-fp32/export.json").read_text())
    content = json.dumps({**spec, "precision": "bf16"}).encode()
    bundle = _forged(exported, tmp_path, "exports/onnx-fp32/export.json", content)
    with pytest.raises(UserError, match="which is not in its folder"):
        Predictor.load(bundle)
