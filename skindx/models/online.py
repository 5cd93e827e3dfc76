"""Fetch something in a process of its own: this one is offline, and stays so."""

import os
import subprocess
import sys


def fetch_by(module: str, *arguments: str, limit_s: int) -> str:
    """Run a module online; return why it may have brought nothing: its last words, or its code.

    The caller looks for what it wanted.
    """
    # The hub's client reads the variable when it is imported: here it was, and stays offline.
    online = {**os.environ, "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"}
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command, env=online, check=False, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return f"nothing came within {limit_s} s"
    last = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
    # A short last line is the cause; a long one describes it after the error's name.
    reason = last if len(last) < 80 else last.split(":")[0].rsplit(".", 1)[-1]
    return reason.rstrip(".")
