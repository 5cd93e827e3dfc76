"""The result of a check, and what the checks share."""

import importlib.metadata
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked; `advice` is how to fix it when it is not `ok`.

    Work cannot begin while a `required` finding is not ok; any other is a note.
    """

    name: str
    ok: bool
    detail: str
    advice: str = ""
    required: bool = True


def installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def run(
    command: Sequence[str], *, stdin: str = "", timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
