"""Open what people pass around in a process that may not write, reach out or grow without end.

`python opening.py` reads lines of JSON from its input, {"kind": ..., "path": ...}, and answers each
with one line: what was said of it, which files outside its folder and which sockets were touched.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parent
SECONDS, GIBIBYTES = 30, 2
_LIBRARIES = (
    sys.prefix,
    sys.base_prefix,
    str(SUPPORT.parents[1] / "skindx"),
    "/usr",
    "/lib",
    "/proc",
)
_LIBRARIES += ("/sys", "/dev/null", "/etc/ld.so", "/etc/localtime", "<")


class Opener:
    """The other end: a process that opens one thing after the other."""

    def __init__(self, home: Path) -> None:
        environment = {**os.environ, "XDG_CACHE_HOME": str(home), "PYTHONPATH": str(SUPPORT)}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=home,
        )

    def open(self, kind: str, path: Path) -> dict[str, Any]:
        """Return what opening a bundle, run, checkpoint or export did."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"kind": kind, "path": str(path)}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the process ended with {self._process.wait()} on {path}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def _bundle(path: Path, backend: str = "auto") -> None:
    from skindx.core.errors import UserError
    from skindx.diagnosis.case import Case, Patient
    from skindx.diagnosis.diagnose import answer_many
    from skindx.diagnosis.photo_checks import read_photo
    from skindx.diagnosis.predictor import Predictor
    from skindx.diagnosis.report.answer_report import report_pdf

    predictor = Predictor.load(path, backend=backend)  # type: ignore[arg-type]
    predictor.bundle.seen()
    # As a server's worker does: the photo is ours, and a process of its own would have to write it.
    (answered,) = answer_many(predictor, [Case((read_photo(PHOTO),), Patient())])
    if isinstance(answered, UserError):
        raise answered
    from datetime import UTC, datetime

    report_pdf(answered, predictor.bundle.metrics(), datetime.now(UTC))


def _run(path: Path) -> None:
    from skindx.training.checkpoint.finished import load_member, load_parts

    load_parts(path)
    for member in sorted((path / "members").iterdir()):
        load_member(path, member.name)


def _checkpoint(path: Path) -> None:
    from skindx.training.checkpoint.keeper import read_shared, verify
    from skindx.training.checkpoint.saved_state import read_state

    ranks = verify(path)["ranks"]
    read_shared(path)
    for rank in range(ranks):
        read_state(path / f"rank-{rank}")


KINDS = {
    "bundle": _bundle,
    "onnx": lambda path: _bundle(path, "onnx"),
    "openvino": lambda path: _bundle(path, "openvino"),
    "run": _run,
    "checkpoint": _checkpoint,
}
FIXTURES = SUPPORT.parent / "fixtures/v0_1"
(PHOTO,) = (FIXTURES / "dataset/store").rglob("01605848*.jpg")
"""One that its networks know."""


def main() -> None:
    """Load all libraries once, then answer lines under limits."""
    from skindx.core.machine import go_offline
    from skindx.core.startup import collect_rarely

    go_offline()
    collect_rarely()
    with _silenced():
        _bundle(FIXTURES / "whole/bundle")
        _run(FIXTURES / "whole")
        import onnxruntime  # noqa: F401
        import openvino  # noqa: F401
    watch = _Watch()
    sys.addaudithook(watch)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = mapped + GIBIBYTES * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for line in sys.stdin:
        job = json.loads(line)
        started = time.monotonic()
        with _silenced():
            said = _said(job, watch)
        seconds = time.monotonic() - started
        answer = {"said": said, "touched": watch.touched, "seconds": seconds}
        print(json.dumps(answer), flush=True)


def _said(job: dict[str, str], watch: "_Watch") -> str:
    from skindx.core.errors import UserError
    from skindx.training.checkpoint.keeper import DamagedCheckpointError

    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    watch.start(job["path"])
    try:
        KINDS[job["kind"]](Path(job["path"]))
    except (UserError, DamagedCheckpointError) as error:
        return f"refused: {error}"
    except BaseException:
        return traceback.format_exc()
    else:
        return "opened"
    finally:
        watch.on = False
        signal.alarm(0)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"not opened within {SECONDS} s")


class _Watch:
    """Notes what is opened outside a folder and the libraries, each write, and each socket."""

    def __init__(self) -> None:
        self.on, self.touched, self.inside = False, list[str](), ""

    def start(self, path: str) -> None:
        self.on, self.touched, self.inside = True, [], os.path.realpath(path)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn")):
            self.touched.append(f"{event} {arguments[1:]}"[:200])
        elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink"):
            self.touched.append(f"{event} {arguments}"[:200])
        elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            flags = arguments[2] or 0
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            mine = path.startswith((self.inside, str(PHOTO), *_LIBRARIES))
            if (writes and path != "/dev/null") or not mine:
                self.touched.append(f"open {path} {arguments[1:]}"[:200])


@contextmanager
def _silenced() -> Iterator[None]:
    """Send what libraries print to nowhere: the output carries answers."""
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


if __name__ == "__main__":
    main()
