"""One scan of the server: who is offered one, its order, its state, and its process."""

import asyncio
import json
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.machine import ONE_THREAD, child_environment, missing_modules
from skindx.core.private_files import write_private_json
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json
from skindx.diagnosis.network_gates import WideRule
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import Photo
from skindx.texts.catalogue import LANGUAGE, joined, spoken, text

if TYPE_CHECKING:
    from skindx.models.bundle.bundle import Bundle
    from skindx.models.shipped_detector import ShippedDetector


def seen_of_refused(error: Refused) -> dict[int, Photo]:
    """Return the photos that the networks saw and refused, by their place in the case.

    A wide photo is often unlike the close-ups that classifiers are trained on.
    """
    return {refusal.photo: refusal.seen for refusal in error.refusals if refusal.seen}


class ScanRefused(UserError):  # noqa: N818
    """Too many scans, of this client (429) or in all (503); `key` is that of the sentence."""

    def __init__(self, status: int, key: str, retry_after_s: int) -> None:
        super().__init__(text(key, seconds=retry_after_s))
        self.status, self.retry_after_s = status, retry_after_s


class NoScans(UserError):  # noqa: N818
    """This server cannot scan: 501 without the packages, 409 with a bundle without a detector.

    Its sentences are in the language that is spoken when they are read.
    """

    def __init__(self, status: int, lacks: Sequence[str] = (), extra: str = "") -> None:
        super().__init__()
        self.status, self._lacks, self._extra = status, lacks, extra

    def __str__(self) -> str:
        if self.status == 409:
            return joined(text("scan_no_detector"), text("scan_no_detector_do"))
        lacks = text("scan_lacks", modules=self._lacks)
        return joined(lacks, text("scan_lacks_do", extra=self._extra))


_EXTRAS = {"scan": ("pyvips", "sqlalchemy", "zarr"), "detect": ("ultralytics",)}


def why_no_scans(bundle: "Bundle", detector: "ShippedDetector | None" = None) -> NoScans | None:
    """Return why a server of this bundle, or with this detector, cannot scan; None: it can."""
    if bundle.spec.detector is None and detector is None:
        return NoScans(409)
    for extra, modules in _EXTRAS.items():
        if missing := missing_modules(*modules):
            return NoScans(501, missing, extra)
    return None


class ScanServing(Settings):
    """What the server's scans may take."""

    keep_s: float = Field(1800.0, gt=0, le=1e6)
    """A result is deleted so many seconds after the scan ended: long enough to read it and to
    download it, and no longer, since it shows a person's skin."""
    waiting: int = Field(4, ge=1, le=64)
    """Most scans that wait, beside the one at work; one more is refused."""
    per_client: int = Field(2, ge=1, le=64)
    """Most scans of one client that wait or are at work."""
    kept: int = Field(32, ge=1, le=10**6)
    """Most results that are kept at a time; a further one takes the place of the oldest."""
    kept_per_client: int = Field(8, ge=1, le=10**6)
    """Most kept results of one client; a further one takes the place of that client's oldest."""
    workers: int = Field(1, ge=1, le=64)
    """Processes that search: each holds the bundle, and diagnoses must not wait for a scan."""
    longest_s: float = Field(1800.0, gt=0, le=1e6)
    """A scan that takes longer is ended."""
    wide: WideRule = Field(default_factory=WideRule)
    """Which photos of a diagnosis the page offers a scan."""
    most_megapixels: int = Field(200, ge=1, le=2000)
    """Largest photo: its pixels lie on the disk, 4 bytes each, while it is scanned."""


_FILE = "order.json"
PHOTOS, RESULTS, ANSWER, LIST = "photos", "results", "answer.json", "list.html"
"""Parts of a job's folder: photos until the scan ends; results, and the two forms of the answer."""


class ScanOrder(Settings):
    """One scan."""

    bundle: str
    digest: str
    photos: int
    mm_per_pixel: tuple[float | None, ...]
    """The scale of each photo; empty: no photo has one."""
    miss_rate: float | None
    workers: int
    most_megapixels: int
    language: str = LANGUAGE
    detector: str = ""
    """The folder of one in the place of the bundle's; empty: the bundle's."""
    detector_digest: str = ""

    def save(self, folder: Path) -> None:
        write_private_json(folder / _FILE, self.model_dump(mode="json"))

    @classmethod
    def read(cls, folder: Path) -> "ScanOrder":
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
    language: str = field(default_factory=spoken)
    """Of its sentences: the one spoken where it is taken."""
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
        self.state, self.error, self.ended = state, error, time.monotonic()

    def note_progress(self, message: dict[str, Any]) -> None:
        stage = _STAGES.get(message["stage"], self.stage)
        if stage == "searching" and message["stage"] == "1-tiles":
            self.tiles_done, self.tiles_known = message["done"], message["known"]
        self.stage = stage


async def do(job: ScanJob, command: Sequence[str]) -> None:
    """Run a job's process until it ends, and again where it was killed; never raises for that."""
    job.state = "running"
    for _ in range(_STARTS):
        message = await run(job.folder, command, job.note_progress)
        if message is None:
            log.warning("the process of a scan ended and is started again")
            continue
        if "error" in message:
            job.end("failed", message["error"])
        elif "failed" in message:
            job.end("failed", text("scan_failed"))
        else:
            job.end("done")
        return
    job.end("failed", text("scan_failed"))


async def run(
    folder: Path,
    command: Sequence[str],
    note_progress: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any] | None:
    """Return the last message of one process for a folder; None: it ended without any."""
    process = await asyncio.create_subprocess_exec(
        *command,
        str(folder),
        env=child_environment(ONE_THREAD, {"TMPDIR": str(folder)}),
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
            note_progress(message)
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
