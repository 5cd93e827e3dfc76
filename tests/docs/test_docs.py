"""Figures in README and guide are those of the committed JSON."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_rendered_figures_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs/render.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_measured_figures_name_no_folder_of_a_machine() -> None:
    for file in (ROOT / "docs/measured").glob("*.json"):
        text = file.read_text(encoding="utf-8")
        assert not any(root in text for root in ("/home/", "/root/", "/tmp/", "/work/")), file
