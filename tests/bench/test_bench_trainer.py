import json
import subprocess
import sys
from pathlib import Path

import pytest

from skindx.bench.trainer import trainer
from skindx.errors import UserError


@pytest.mark.distributed
def test_keys_and_rows(tmp_path: Path) -> None:
    """In a process of its own: a bench joins a cluster of one and tunes memory."""
    file = tmp_path / "trainer.json"
    done = subprocess.run(
        [sys.executable, "-m", "skindx", "bench", "trainer", "--smallest", "--json", str(file)],
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
    for row in ("trainer, step", "bare loop, step"):
        assert row in done.stdout


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UserError, match=r"'steps' = 1"):
        trainer.Config.load(None, ["steps=1"])
