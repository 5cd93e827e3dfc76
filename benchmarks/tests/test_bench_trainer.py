import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx_bench.devices.gpu import AS_FAKE, TINY
from skindx_bench.train import trainer


@pytest.mark.lab
@pytest.mark.distributed
def test_keys_and_rows(tmp_path: Path) -> None:
    """In a process of its own: a bench joins a cluster of one and tunes memory.

    The CPU stands in for the GPU, so that all of the GPU's part runs as well.
    """
    file = tmp_path / "trainer.json"
    command = [sys.executable, "-m", "skindx_bench", "trainer"]
    as_fake = [
        argument for setting in (*TINY, "gpu_peers=[timm]") for argument in ("--set", setting)
    ]
    done = subprocess.run(
        [*command, "--smallest", "--json", str(file), *as_fake],
        env={**os.environ, **AS_FAKE},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["figures"]
    assert list(figures)[:2] == ["bare_loop_over_step", "loader_wait_share"]
    assert figures["bare_loop_over_step"]["value"] > 0
    assert 0 <= figures["loader_wait_share"]["value"] <= 1
    assert figures["ours_over_timm"]["value"] > 0
    assert figures["test_resnet, ceiling"]["unit"] == "images/s"
    for row in ("trainer, step", "bare loop, step"):
        assert row in done.stdout


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UserError, match=r"'steps' = 1"):
        trainer.Config.load(None, ["steps=1"])
