"""The runtimes report nothing to their makers."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from network_guard import run_guarded

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")


QUIET = """
import json
from skindx.core.machine import go_offline
go_offline()
import sys, openvino
print(json.dumps(openvino.get_version()))
"""


def test_openvino_reports_nothing_to_its_makers(tmp_path: Path) -> None:
    done = run_guarded(["-c", QUIET], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert (done.calls, done.stderr) == ([], "")
    assert not (tmp_path / "intel").exists()


def test_without_us_openvino_would_report_its_import(tmp_path: Path) -> None:
    calls = run_guarded(["-c", QUIET.replace("go_offline()\n", "\n")], tmp_path).calls
    assert calls, "the guard sees no report: is the test above worth anything?"


REPORTS = ".cache/Microsoft"
"""Where ONNX Runtime keeps the device's identifier and what it is about to send."""


def onnx_runtime_reports(home: Path, first: str = "") -> bool:
    """Import ONNX Runtime in a new process, and say whether it prepared a report below `home`.

    Its reports leave by a thread in C++, which no hook in Python sees. Where a variable of the
    environment says no to them, that is taken away.
    """
    environment = {key: value for key, value in os.environ.items() if "TELEMETRY" not in key}
    environment["HOME"] = str(home)
    environment.pop("XDG_CACHE_HOME", None)
    command = [sys.executable, "-c", f"{first}\nimport onnxruntime"]
    subprocess.run(command, check=True, env=environment, timeout=120)
    return (home / REPORTS).exists()


def test_onnx_runtime_reports_nothing_to_its_makers(tmp_path: Path) -> None:
    quiet = "from skindx.core.machine import go_offline; go_offline()"
    assert not onnx_runtime_reports(tmp_path, quiet)


def test_without_us_onnx_runtime_would_report_its_import(tmp_path: Path) -> None:
    """The control of the test above; it skips where nothing is reported anyway."""
    if not onnx_runtime_reports(tmp_path):
        pytest.skip(
            f"ONNX Runtime {metadata.version('onnxruntime')} writes no report here without us "
            "either: an older version, one built without reports, or a process that ended before "
            "its thread wrote"
        )


QUANTISES = """
import numpy as np
from skindx.models.exports.openvino_backend import _nncf
nncf = _nncf()
import openvino
from openvino import opset13 as ops
one = ops.parameter([1, 8, 8, 8], dtype=np.float32)
two = ops.convolution(one, ops.constant(np.ones((8, 8, 3, 3), np.float32)), [1, 1], [1, 1],
                      [1, 1], [1, 1])
model = openvino.Model([two], [one])
nncf.quantize(model, nncf.Dataset([np.ones((1, 8, 8, 8), np.float32)]), subset_size=1)
print("quantised")
"""


@pytest.mark.long
def test_nncf_reports_nothing_to_its_makers(tmp_path: Path) -> None:
    pytest.importorskip("nncf")
    done = run_guarded(["-c", QUANTISES], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "quantised" in done.stdout
    assert done.calls == []
    assert not (tmp_path / "intel").exists()
