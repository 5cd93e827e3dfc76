from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx.models.exports import runtimes
from skindx_bench.serve import int8
from skindx_bench.subjects import run_bench

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
pytest.importorskip("nncf")


@pytest.mark.lab
def test_int8_is_measured_beside_its_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bf16 the peer is OpenVINO in fp32, and a note says so."""
    monkeypatch.setattr(runtimes, "cpu_flags", lambda: frozenset({"avx_vnni"}))
    result = run_bench("int8", tmp_path / "int8.json", smallest=True)
    keys = ["int8_over_openvino_fp32", "int8_over_eager"]
    keys += ["ort_int8_over_ort_fp32", "ort_int8_over_eager"]
    assert list(result.figures) == [*(f"test_resnet_{key}" for key in keys), *keys]
    assert set(result.models["test_resnet"]) == {
        "eager",
        "eager_channels_last",
        *(name for name in int8.RUNTIMES if name != "openvino_bf16"),
    }
    assert "has none of avx512_bf16" in result.notes[1]


def test_without_int8_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "cpu_flags", lambda: frozenset({"avx2"}))
    with pytest.raises(UserError, match="openvino int8 is unsupported"):
        run_bench("int8", smallest=True)
