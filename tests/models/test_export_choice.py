"""Which runtime answers: the fastest that is there, measured once."""

from pathlib import Path

import pytest
from tiny_bundle import pack_tiny

from skindx.core.errors import UserError
from skindx.diagnosis.predictor import Predictor
from skindx.models.bundle.bundle_changes import put_folder
from skindx.models.exports import backend_choice, runtimes

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")


def _no_runtime(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    real = runtimes.importlib.util.find_spec
    monkeypatch.setattr(
        runtimes.importlib.util, "find_spec", lambda name: None if name in missing else real(name)
    )


def _fastest_is(monkeypatch: pytest.MonkeyPatch, *order: str) -> list[list[str]]:
    """Let the first of `order` that is there be the fastest; return what was measured."""
    measured: list[list[str]] = []

    def fastest(candidates: dict[str, object]) -> str:
        measured.append(sorted(candidates))
        return next(name for name in order if name in candidates)

    monkeypatch.setattr(backend_choice, "fastest", fastest)
    return measured


def test_auto_takes_what_is_fastest_here_and_measures_once(
    exported: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = _fastest_is(monkeypatch, "openvino fp32", "onnx fp32")
    for _ in range(2):
        assert Predictor.load(exported).backend == "openvino fp32"
    assert measured == [["eager", "onnx fp32", "openvino fp32"]]
    measured = _fastest_is(monkeypatch, "eager")
    assert Predictor.load(pack_tiny(tmp_path / "plain").path).backend == "eager"
    assert measured == []  # nothing to choose from
    (file,) = (tmp_path / "skindx/runtimes").glob("*.json")
    file.unlink()
    assert Predictor.load(exported).backend == "eager"


def test_a_backend_of_an_older_version_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = pack_tiny(tmp_path / "run").path
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "tiny.json").write_text('{"format": 1}')
    (folder / "export.json").write_text('{"format": 1, "to": "sparse", "alone": {}}')
    put_folder(bundle, "exports/sparse-fp32", folder)
    assert Predictor.load(bundle).backend == "eager"
    assert f"`skindx export {bundle} --to onnx` makes a faster one" in caplog.text


def test_auto_takes_what_is_there(
    exported: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _fastest_is(monkeypatch, "onnx fp32", "openvino fp32")
    assert Predictor.load(exported).backend == "onnx fp32"
    with monkeypatch.context() as without:
        _no_runtime(without, "onnxruntime")
        assert Predictor.load(exported).backend == "openvino fp32"
        with pytest.raises(UserError, match=r"install .*\[runtimes\]'"):
            Predictor.load(exported, backend="onnx")
        _no_runtime(without, "onnxruntime", "openvino")
        assert Predictor.load(exported).backend == "eager"
    with pytest.raises(UserError, match="no such export; run `skindx export"):
        Predictor.load(pack_tiny(tmp_path / "new").path, backend="onnx")
