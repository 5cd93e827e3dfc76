"""The bench's side of a worker: a command line, a question, an answer."""

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from skindx.core.errors import JobError

_END_S = 30
_SHOWN_LINES = 5


class Agent:
    """A worker that runs a task when it is asked. Raises JobError when the worker ends."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        job: Mapping[str, Any],
    ) -> None:
        self.name, self._log = name, log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._write(job)

    def seconds(self, task: str, slow: float, repeats: int) -> float:
        """Return the seconds that the worker took for `repeats` calls of a task."""
        self._write({"do": "run", "task": task, "slow": slow, "repeats": repeats})
        return float(self._read()["seconds"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._write({"do": "end"})
                self._read()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(_END_S if kind is None else 5)
        except (JobError, OSError, subprocess.TimeoutExpired):
            pass  # it is ended below, whatever it still does
        finally:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):  # the reader has closed its end
                        stream.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None

    def _read(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        found: Mapping[str, Any] = json.loads(line)
        return found

    def _ended(self) -> JobError:
        text = self._log.read_text(encoding="utf-8", errors="replace").strip()
        said = " | ".join(text.splitlines()[-_SHOWN_LINES:]) or "no message"
        return JobError(f"the worker {self.name} of bench container ended: {said}")
