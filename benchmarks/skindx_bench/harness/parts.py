"""The parts of a check: each a process of its own, with a time limit and a log.

`python -m skindx_bench.harness.parts PARENT COMMAND…` runs a command that ends with its parent.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from skindx.core.machine import python_command

_SHOWN_LINES = 60

_OUTCOME = re.compile(
    r"^((?:\w+/)?tests/\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)(?: \((.*)\))?", re.MULTILINE
)
_OF_WORKER = re.compile(
    r"^\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|ERROR|SKIPPED) "
    r"((?:\w+/)?tests/\S+::[^@\n]+?)(?:@.*)? *$",
    re.MULTILINE,
)
"""How pytest-xdist writes it, with the test's group after an @."""


@dataclass(frozen=True)
class Part:
    """A command, and the seconds that it may take."""

    name: str
    command: Sequence[str]
    limit_s: float


@dataclass(frozen=True)
class Outcome:
    """How a part ended."""

    status: Literal["passed", "failed", "timed out"]
    seconds: float
    log: Path
    code: int | None = None
    """Exit code of one that ended by itself."""

    def facts(self) -> dict[str, Any]:
        """Return what the JSON says of every part."""
        return {"status": self.status, "seconds": round(self.seconds, 1)}


def run_part(
    part: Part,
    environment: Mapping[str, str],
    folder: Path,
    grace_s: float = 0,
    *,
    cwd: Path | None = None,
    held: int | None = None,
) -> Outcome:
    """Run a part to its end or its time limit; the end of a log that is no success is printed.

    A part that is out of time, or in whose time Ctrl-C is pressed, is interrupted as by Ctrl-C and
    has `grace_s` seconds to write what it has. No process of the part outlives the call. A part
    with the descriptor of a lock, `held`, gets SIGTERM when this process is killed, and holds the
    lock until it has ended too.
    """
    command = [*part.command]
    if held is not None:
        command = [*python_command("-m", "skindx_bench.harness.parts", str(os.getpid())), *command]
    log = folder / f"{part.name}.log"
    print(f"{part.name}: {' '.join(part.command)} (at most {part.limit_s:g} s, log: {log})")
    start = time.monotonic()
    with (
        log.open("wb") as file,
        subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=cwd,
            pass_fds=() if held is None else (held,),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        status: Literal["passed", "failed", "timed out"]
        code = None
        try:
            code = process.wait(part.limit_s)
            status = "failed" if code else "passed"
        except subprocess.TimeoutExpired:
            status = "timed out"
            _interrupt(process, grace_s)
        except KeyboardInterrupt:
            _interrupt(process, grace_s)
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # ranks and data loaders with it
    outcome = Outcome(status, time.monotonic() - start, log, code)
    if status != "passed":
        print("\n".join(_text(log).splitlines()[-_SHOWN_LINES:]))
    print(f"{part.name}: {status} in {outcome.seconds:.0f} s", flush=True)
    return outcome


def _interrupt(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    if grace_s > 0:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)


def count_tests(log: Path) -> dict[str, Any]:
    """Return how many tests passed, and which ones failed or were skipped.

    Read line by line, so that an interrupted run reports what it had done.
    """
    text = _text(log)
    ended = _OUTCOME.findall(text)
    ended += [(test, word, "") for word, test in _OF_WORKER.findall(text)]
    return {
        "passed": sum(word == "PASSED" for _, word, _ in ended),
        "failed": [test for test, word, _ in ended if word in ("FAILED", "ERROR")],
        "skipped": {test: why for test, word, why in ended if word == "SKIPPED"},
    }


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def main(arguments: Sequence[str]) -> None:
    """Become a command that gets SIGTERM when its parent, whose number comes first, ends."""
    from skindx.training.launching.supervise import end_with_parent

    parent, *command = arguments
    end_with_parent()
    if os.getppid() == int(parent):
        os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
