"""The command line, run in the tests' own process."""

import sys
from collections.abc import Callable

import pytest

Skindx = Callable[..., tuple[int, str, str]]
"""Runs a command line: (exit code, stdout, stderr)."""


def running(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Skindx:
    from skindx import cli

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["skindx", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
