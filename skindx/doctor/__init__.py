"""`skindx doctor`: is this machine ready, and if not, what to do about it."""

import io
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from skindx.doctor.accelerator import nvidia_driver, torch_facts, torch_finding
from skindx.doctor.finding import Finding
from skindx.doctor.packages import extras, opencv
from skindx.doctor.storage import cache, disk, writable
from skindx.doctor.tools import (
    chromium,
    compiler,
    crop_kernel,
    headers,
    products,
    python,
    resize_kernel,
    sparse_kernel,
)

__all__ = ["Finding", "examine", "render"]


def examine() -> list[Finding]:
    """Look at everything skindx needs. Nothing is installed, compiled or changed."""
    return [
        python(sys.version_info[:3]),
        compiler(),
        headers(),
        torch_finding(torch_facts(), nvidia_driver()),
        *extras(),
        opencv(),
        chromium(),
        sparse_kernel(),
        resize_kernel(),
        crop_kernel(),
        products(),
        disk("disk here", Path.cwd()),
        disk("disk of the cache", cache()),
        writable(cache()),
    ]


def render(findings: Sequence[Finding]) -> str:
    """Return the findings as a table in plain text, as wide as the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "check", "found", "what to do")
    for finding in findings:
        mark = "ok" if finding.ok else "FIX" if finding.required else "note"
        # Text: a path in square brackets is no markup.
        table.add_row(
            mark, finding.name, Text(finding.detail), Text("" if finding.ok else finding.advice)
        )
    buffer = io.StringIO()
    Console(file=buffer, width=shutil.get_terminal_size((100, 24)).columns).print(table)
    return buffer.getvalue()
