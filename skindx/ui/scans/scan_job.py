"""One scan of the server: the order in its private folder, its state, and its process."""

import asyncio
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from skindx.core.atomic_files import write_json
from skindx.core.machine import ONE_THREAD
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json
from skindx.ui.faults import FAILED

_FILE = "order.json"
PHOTOS, RESULTS, ANSWER, LIST = "photos", "results", "answer.json", "list.html"
"""Parts of a job's folder: photos until the scan ends; results, and the two forms of the answer."""
RULER, RULER_IMAGE = "ruler.json", "ruler.jpg"
"""Of a search for a ruler: the ruler, and the photo's part with the ticks drawn."""


class Order(Settings):
    """One scan."""

    bundle: str
    digest: str
    photos: int
    mm_per_pixel: tuple[float | None, ...]
    """Of each photo; empty: of none."""
    miss_rate: float | None
    workers: int
    most_megapixels: int

    def save(self, folder: Path) -> None:
        """Write it into the job's folder."""
        write_json(folder / _FILE, self.model_dump(mode="json"))

    @classmethod
    def of(cls, folder: Path) -> "Order":
        """Read what `save` wrote."""
        return cls.parse(read_json(folder / _FILE), _FILE, expand=False)


def photo_paths(folder: Path, count: int) -> list[Path]:
    """Return where the photos of a job lie.

    Results name them so: a file's own name may tell who it is of.
    """
    return [folder / PHOTOS / f"photo {number}" for number in range(1, count + 1)]


log = logging.getLogger(__name__)

State = Literal["queued", "running", "done", "failed"]
Stage = Literal["", "opening", "searching", "diagnosing", "writing"]

_STAGES: dict[str, Stage] = {
    "opening": "opening",
    "1-tiles": "searching",
    "2-tiles": "searching",
    "3-lesions": "diagnosing",
    "4-lesions": "diagnosing",
    "writing": "writing",
}
_STARTS = 3
"""A process that was killed is started again so often in all: it goes on where it was."""
_GRACE_S = 5.0
_LONGEST_LINE = 1 << 16


@dataclass(eq=False)
class ScanJob:
    """One scan, from its photos to its result; `folder` holds all of its files."""

    folder: Path
    client: str
    """Whose share it counts to."""
    owner: str
    """Login name; "" on a server without logins."""
    way: str
    """page or api."""
    id: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    state: State = "queued"
    stage: Stage = ""
    tiles_done: int = 0
    tiles_known: int = 0
    error: str = ""
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    """Both by the monotonic clock."""
    work: "asyncio.Task[None] | None" = None

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in ("done", "failed")

    def end(self, state: Literal["done", "failed"], error: str = "") -> None:
        """Note how it ended."""
        self.state, self.error, self.ended = state, error, time.monotonic()

    def hear(self, message: dict[str, Any]) -> None:
        """Note how far the process is."""
        stage = _STAGES.get(message["stage"], self.stage)
        if stage == "searching" and message["stage"] == "1-tiles":
            self.tiles_done, self.tiles_known = message["done"], message["known"]
        self.stage = stage


async def do(job: ScanJob, command: Sequence[str]) -> None:
    """Run a job's process until it ends, and again where it was killed; never raises for that."""
    job.state = "running"
    for _ in range(_STARTS):
        message = await run(job.folder, command, job.hear)
        if message is None:
            log.warning("the process of a scan ended and is started again")
            continue
        if "error" in message:
            job.end("failed", message["error"])
        elif "failed" in message:
            job.end("failed", FAILED)
        else:
            job.end("done")
        return
    job.end("failed", FAILED)


async def run(
    folder: Path, command: Sequence[str], hear: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, Any] | None:
    """Return the last message of one process for a folder; None: it ended without any."""
    process = await asyncio.create_subprocess_exec(
        *command,
        str(folder),
        env=os.environ | ONE_THREAD | {"TMPDIR": str(folder)},
        stdin=asyncio.subprocess.PIPE,  # it ends with this process
        stdout=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
        start_new_session=True,  # Ctrl+C goes to the server alone: it ends its processes itself
    )
    assert process.stdout is not None
    try:
        while line := await process.stdout.readline():
            message = json.loads(line)
            if "stage" not in message:
                return dict(message)
            hear(message)
        return None
    except ValueError:  # no message, or half of one
        return None
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End a process, which ends its own workers."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
    ending = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait([ending], timeout=_GRACE_S)
    finally:
        if not ending.done():
            with suppress(ProcessLookupError):
                process.kill()
            await ending
        if process.stdin is not None:
            process.stdin.close()


def remove(folder: Path) -> None:
    """Delete a job's folder, also while a process that was killed writes its last file."""
    for pause_s in (0.0, 0.05, 0.2, 0.5, 1.0):
        time.sleep(pause_s)
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
    log.error("files of a deleted scan are still there: they cannot be removed")
