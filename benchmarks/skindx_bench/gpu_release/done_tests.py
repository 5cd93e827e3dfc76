"""A pytest plugin: each outcome goes into a file at once, and tests that are in it are left out.

`pytest -p skindx_bench.gpu_release.done_tests` with SKINDX_DONE_TESTS=FILE.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

FILE = "SKINDX_DONE_TESTS"
_GROUP = re.compile(r"@[^@\]/]*$")
"""What pytest-xdist adds to the name of a test that has a group."""


def read_outcomes(file: Path) -> dict[str, Mapping[str, str]]:
    """Return the outcome of each test that has ended; a line that a kill cut short is none."""
    found = {}
    lines = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    for line in lines.splitlines():
        with suppress(ValueError):
            row = json.loads(line)
            found[row["test"]] = row
    return found


def pytest_collection_modifyitems(config: "pytest.Config", items: "list[pytest.Item]") -> None:
    """Leave out what has ended."""
    done = read_outcomes(Path(os.environ[FILE]))
    left = [item for item in items if _GROUP.sub("", item.nodeid) not in done]
    config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = left


def pytest_configure(config: "pytest.Config") -> None:
    """Write outcomes down in the process that every worker of pytest-xdist reports to."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Outcomes())


class _Outcomes:
    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        """Write down a test that has failed, in whatever phase, or has ended."""
        _note(report)


def _note(report: "pytest.TestReport") -> None:
    if report.when == "call" or report.failed or report.skipped:
        row = {"test": _GROUP.sub("", report.nodeid), "outcome": report.outcome}
        if report.skipped and isinstance(report.longrepr, tuple):
            row["why"] = str(report.longrepr[2])
        # One write of a whole line, which begins anew after one that a kill has cut short.
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps(row)}\n")
