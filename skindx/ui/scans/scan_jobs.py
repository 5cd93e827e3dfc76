"""The scans of a server: one at a time, a bounded line, results that are kept for a short time."""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from skindx.core.private_files import make_private, new_private
from skindx.models.shipped_detector import ShippedDetector
from skindx.texts.catalogue import speaking, text
from skindx.ui.scans.rulers import Rulers
from skindx.ui.scans.scan_job import (
    PHOTOS,
    ScanJob,
    ScanOrder,
    ScanRefused,
    ScanServing,
    do,
    photo_paths,
    remove,
)
from skindx.workers.worker_process import module_command

_SCAN_RETRY_S = 30
_SWEEP_S = 5.0

COMMAND = module_command("skindx.ui.scans.scan_process")
"""What starts the process of a scan; the job's folder is added."""


class Counts(Protocol):
    """Who counts scans."""

    def scan_ended(self, way: str, outcome: str, seconds: float) -> None:
        """Count a scan: done, failed, deleted or busy."""


@dataclass(frozen=True)
class ScanBundle:
    """What every scan of a server has in common."""

    bundle: Path
    digest: str
    miss_rate: float | None = None
    detector: ShippedDetector | None = None
    """What takes the place of the bundle's; None: the bundle's own."""


class ScanJobs:
    """Takes, does, keeps and deletes scans; their files lie in `folder`, private to this user."""

    def __init__(
        self,
        folder: Path,
        served: ScanBundle,
        settings: ScanServing,
        counts: Counts,
        command: Sequence[str] = (),
    ) -> None:
        self.settings = settings
        self._folder, self._served, self._counts = folder, served, counts
        self._command = command or COMMAND
        self.rulers = Rulers(folder, settings.most_megapixels)
        self._jobs: dict[str, ScanJob] = {}
        self._line: deque[ScanJob] = deque()
        self._came = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._do_all()), asyncio.create_task(self._sweep())]
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the scan at work, and delete the files of all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.rulers.close()
        for job in list(self._jobs.values()):
            await asyncio.to_thread(remove, job.folder)
        self._jobs.clear()

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def running(self) -> int:
        """How many are at work: none or one."""
        return sum(job.state == "running" for job in self._jobs.values())

    async def submit(
        self,
        photos: Sequence[bytes],
        *,
        client: str,
        owner: str,
        way: str,
        mm_per_pixel: Sequence[float | None] = (),
    ) -> ScanJob:
        """Take a scan; `mm_per_pixel` is of each photo, or empty.

        Raises ScanRefused where too many are there, OSError for a full disk.
        """
        self._check_room(client, way)
        job = ScanJob(self._folder / secrets.token_hex(16), client, owner, way)
        self._jobs[job.id] = job  # from here on it counts
        shipped = self._served.detector
        order = ScanOrder(
            bundle=str(self._served.bundle.resolve()),
            digest=self._served.digest,
            photos=len(photos),
            mm_per_pixel=tuple(mm_per_pixel),
            miss_rate=self._served.miss_rate,
            workers=self.settings.workers,
            most_megapixels=self.settings.most_megapixels,
            language=job.language,
            detector=str(shipped.path.resolve()) if shipped else "",
            detector_digest=shipped.digest if shipped else "",
        )
        writing = asyncio.create_task(asyncio.to_thread(_write_photos, job.folder, order, photos))
        try:
            await asyncio.shield(writing)
        except BaseException:
            await asyncio.wait(
                [writing]
            )  # a cancelled task must not leave a thread that still writes
            self._jobs.pop(job.id, None)
            await asyncio.to_thread(remove, job.folder)
            raise
        self._line.append(job)
        self._came.set()
        return job

    def get(self, id_: str, owner: str) -> ScanJob | None:
        """Return a scan of this owner; None: it does not exist, or another user owns it."""
        job = self._jobs.get(id_)
        return job if job is not None and job.owner == owner else None

    def before(self, job: ScanJob) -> int:
        """Return how many scans come before one that waits."""
        ahead = self._line.index(job) if job in self._line else 0
        return ahead + (self.running if job.state == "queued" else 0)

    def expires_in(self, job: ScanJob) -> float | None:
        """Return in how many seconds a scan that ended is deleted; None: it has not ended."""
        if job.ended is None:
            return None
        return max(0.0, job.ended + self.settings.keep_s - time.monotonic())

    async def delete(self, job: ScanJob) -> None:
        """Delete a scan and its files at once, also while it is at work."""
        self._jobs.pop(job.id, None)
        with suppress(ValueError):
            self._line.remove(job)
        if not job.over:
            self._counts.scan_ended(job.way, "deleted", time.monotonic() - job.began)
        if job.work is not None:
            job.work.cancel()
            await asyncio.wait([job.work])
        await asyncio.to_thread(remove, job.folder)

    def _check_room(self, client: str, way: str) -> None:
        open_jobs = [job for job in self._jobs.values() if not job.over]
        if sum(job.client == client for job in open_jobs) >= self.settings.per_client:
            status, key = 429, "scan_yours_busy"
        elif len(open_jobs) > self.settings.waiting:
            status, key = 503, "scan_busy"
        else:
            return
        self._counts.scan_ended(way, "busy", 0.0)
        raise ScanRefused(status, key, _SCAN_RETRY_S)

    async def _do_all(self) -> None:
        while True:
            await self._came.wait()
            if not self._line:
                self._came.clear()
                continue
            job = self._line.popleft()
            job.work = asyncio.create_task(self._do(job))
            try:
                await asyncio.wait([job.work])
            finally:
                if not job.work.done():  # the server ends
                    job.work.cancel()
                    await asyncio.wait([job.work])
                job.work = None

    async def _do(self, job: ScanJob) -> None:
        with speaking(job.language):
            try:
                async with asyncio.timeout(self.settings.longest_s):
                    await do(job, self._command)
            except TimeoutError:
                minutes = round(self.settings.longest_s / 60)
                job.end("failed", text("scan_long", minutes=minutes))
        self._counts.scan_ended(job.way, job.state, time.monotonic() - job.began)
        if job.state == "failed":
            await asyncio.to_thread(remove, job.folder)
        await self._make_room(job.client)

    async def _make_room(self, client: str) -> None:
        """Delete the oldest results beyond the share of a client and of all, and old failures.

        A failure has no files, only its sentence; it takes no result's place.
        """
        for state in ("done", "failed"):
            ended = sorted(
                (job for job in self._jobs.values() if job.state == state),
                key=lambda job: job.ended or 0.0,
            )
            of_client = [job for job in ended if job.client == client]
            beyond = of_client[: max(0, len(of_client) - self.settings.kept_per_client)]
            rest = [job for job in ended if job not in beyond]
            beyond += rest[: max(0, len(rest) - self.settings.kept)]
            for job in beyond:
                await self.delete(job)

    async def _sweep(self) -> None:
        """Delete what was kept long enough, until cancelled."""
        while True:
            await asyncio.sleep(min(_SWEEP_S, self.settings.keep_s / 4))
            for job in list(self._jobs.values()):
                if self.expires_in(job) == 0.0:
                    await self.delete(job)


def _write_photos(folder: Path, order: ScanOrder, photos: Sequence[bytes]) -> None:
    make_private(folder, parents=False)
    make_private(folder / PHOTOS)
    for path, photo in zip(photo_paths(folder, len(photos)), photos, strict=True):
        with new_private(path) as file:
            file.write(photo)
    order.save(folder)
