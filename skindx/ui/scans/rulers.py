"""Rulers on wide photos, for a person to confirm before a scan.

They are found by workers of their own, which start with the first photo: a search takes seconds,
and no diagnosis waits for one. A photo lies in its worker's private folder until it is answered.
"""

import asyncio
import base64
import io
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from skindx.core.errors import JobError, UserError
from skindx.core.machine import cpu_count, go_offline
from skindx.core.private_files import make_private, write_private
from skindx.core.startup import collect_rarely
from skindx.scan.pixel_store import LevelledPhoto
from skindx.texts.catalogue import LANGUAGE, joined, speaking, spoken, text
from skindx.ui.page_basics import hide_messages
from skindx.ui.scans.scan_job import PHOTOS, ScanRefused, photo_paths
from skindx.ui.scans.scan_process import outcome_of
from skindx.workers import worker_process
from skindx.workers.worker_pool import NoAnswerError, PoolSettings, QueueFullError, WorkerPool
from skindx.workers.worker_process import Answers, module_command

log = logging.getLogger(__name__)

_COMMAND = module_command("skindx.ui.scans.rulers")
_RETRY_S = 10
_LIMITS = PoolSettings(
    workers=min(2, cpu_count()), batch=1, waiting=4, waiting_mb=128, work_s=60, patience_s=180
)
_NICE = 10
"""People wait for diagnoses on the page; a search gives way to them."""
_QUALITY = 92
"""Quality of the JPEG: lines of one pixel must stay sharp."""


Question = tuple[bytes, str]
"""A photo, and the language of its answer."""


class RulerAnswer(BaseModel):
    """A ruler that a person has to confirm: nothing uses it before."""

    mm_per_pixel: float = Field(
        description="Send it as `scale_mm_per_pixel` once a person has confirmed the ruler."
    )
    relative_error: float = Field(description="Half of the 95 % interval, as a share.")
    ticks: int = Field(description="How many were found.")
    pixels_a_tick: float
    unit: str = Field(description="What the ruler is divided in, such as mm.")
    sentence: str = Field(description="The above for a person, and what to check.")
    image: str = Field(
        description="The ruler with a line on each tick and thick ones 1 cm apart: a data URI."
    )


class Rulers:
    """Finds rulers, one at a time for each client; nothing of a photo is kept."""

    def __init__(
        self,
        folder: Path,
        most_megapixels: int,
        command: Sequence[str] = _COMMAND,
        limits: PoolSettings = _LIMITS,
    ) -> None:
        self._pool: WorkerPool[Question, RulerAnswer] = WorkerPool(
            (*command, str(most_megapixels)),
            limits,
            encode=list,
            decode=_decode,
            size_bytes=lambda question: len(question[0]),
            folder=folder,
        )
        self._clients: set[str] = set()
        self._starting = asyncio.Lock()
        self._running: AsyncExitStack | None = None

    async def find(self, photo: bytes, client: str) -> RulerAnswer:
        """Return the ruler on a photo.

        Raises ScanRefused where too many wait, UserError without a ruler that can be read,
        JobError.
        """
        if client in self._clients:
            raise ScanRefused(429, "scan_ruler_busy", _RETRY_S)
        self._clients.add(client)
        try:
            await self._start()
            return await self._pool.ask((photo, spoken()))
        except QueueFullError:
            raise ScanRefused(503, "scan_rulers_busy", _RETRY_S) from None
        except NoAnswerError as error:
            if error.reason == "stopped":
                raise JobError(text("scan_failed")) from None
            given_up = joined(text("ruler_given_up"), text("ruler_instead_page"))
            raise UserError(given_up) from None
        finally:
            self._clients.discard(client)

    async def _start(self) -> None:
        async with self._starting:
            if self._running is None:
                async with AsyncExitStack() as stack:
                    await stack.enter_async_context(self._pool)
                    self._running = stack.pop_all()

    async def close(self) -> None:
        """End the workers, whose folders go with them."""
        if self._running is not None:
            await self._running.aclose()


def _decode(plain: dict[str, Any]) -> RulerAnswer | Exception:
    if "error" in plain:
        return UserError(plain["error"])
    if "failed" in plain:
        return JobError(text("scan_failed"))
    image = base64.b64encode(plain["image"]).decode()
    return RulerAnswer(**plain["ruler"], image=f"data:image/jpeg;base64,{image}")


def main(arguments: Sequence[str]) -> None:
    """Run a worker: MEGAPIXELS DESCRIPTOR FOLDER."""
    go_offline()
    collect_rarely()
    hide_messages()
    os.nice(_NICE)
    megapixels, descriptor, folder = arguments
    with socket.socket(fileno=int(descriptor)) as connection:
        load = partial(_load, Path(folder), int(megapixels) * 10**6)
        worker_process.serve(connection, Path(folder), load)


def _load(folder: Path, most_pixels: int) -> Answers:
    from PIL import Image  # noqa: F401

    from skindx.scan import photo_store, ruler  # noqa: F401

    return lambda asked: [answer_photo(photo, folder, most_pixels, said) for photo, said in asked]


def answer_photo(
    photo: bytes, folder: Path, most_pixels: int, language: str = LANGUAGE
) -> dict[str, Any]:
    """Return a message on one photo, whose files below `folder` are gone then."""
    work = Path(tempfile.mkdtemp(dir=folder))
    found: dict[str, Any] = {}
    try:
        with speaking(language):
            ended = outcome_of(work, lambda: found.update(_find(photo, work, most_pixels)))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return ended if "ended" not in ended else found


def _find(photo: bytes, work: Path, most_pixels: int) -> dict[str, Any]:
    from PIL import Image

    from skindx.scan.photo_store import photo_store
    from skindx.scan.ruler import confirmation_image, find_ruler

    (path,) = photo_paths(work, 1)
    make_private(work / PHOTOS)
    write_private(path, photo)
    store = photo_store(path, work / "store", most_pixels)
    read, (width, height) = LevelledPhoto(store), store.size()
    ruler = find_ruler(read, width, height, path.name)
    drawn = io.BytesIO()
    image = Image.fromarray(confirmation_image(read, width, height, ruler))
    image.save(drawn, "JPEG", quality=_QUALITY, subsampling=0)
    facts = {
        "mm_per_pixel": ruler.mm_per_pixel,
        "relative_error": ruler.relative_error,
        "ticks": len(ruler.row.ticks_T2),
        "pixels_a_tick": ruler.row.period,
        "unit": ruler.unit.division,
        "sentence": ruler.sentence,
    }
    return {"ruler": facts, "image": drawn.getvalue()}


if __name__ == "__main__":
    main(sys.argv[1:])
