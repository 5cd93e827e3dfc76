import json
import subprocess
import sys
from pathlib import Path

import pytest

from skindx.models.bundle.bundle import open_bundle


@pytest.mark.long
def test_the_whole_demo_keeps_its_promises(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "skindx", "demo", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"serve {out / 'bundle'}" in done.stdout
    assert "Ensemble minus its best member" in done.stdout
    metrics = json.loads((out / "evaluation" / "metrics.json").read_text())
    assert [member["name"] for member in metrics["members"]] == ["resnet", "efficientnet"]
    assert all(member["top1"]["value"] >= 0.6 for member in metrics["members"])
    assert metrics["detector"]["map50"] >= 0.5
    assert metrics["difference"]["top1"]["low"] <= metrics["difference"]["top1"]["high"]
    assert open_bundle(out / "bundle").metrics() == metrics
    planted = done.stdout.split("What was planted")[1].splitlines()[2:8]
    assert len(planted) == 6
    assert all(float(line.split()[-1]) >= 0.9 for line in planted), planted
