"""Command lines where skindx-methods is not installed, several in one process: a start is slow."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """How a command line ended."""

    code: int
    out: str
    err: str


def environment() -> dict[str, str]:
    """Return an environment in which no Python, child or grandchild, has the kit."""
    folders = [str(Path(__file__).parent / "no_kit"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def without_kit(*commands: Sequence[object], where: Path) -> list[Ended]:
    """Run `skindx COMMAND` of each, one after the other, in the folder `where`."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps([[str(word) for word in command] for command in commands]),
        env=environment(),
        cwd=where,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Ended(*ended) for ended in json.loads(done.stdout)]


def _end_of(words: list[str]) -> Ended:
    from skindx import cli

    sys.argv, code = ["skindx", *words], 0
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    return Ended(code, out.getvalue(), err.getvalue())


if __name__ == "__main__":
    print(json.dumps([_end_of(words) for words in json.load(sys.stdin)]))
