"""The ruler on a photo, found for a person to confirm before a scan takes millimetres from it."""

import asyncio
import base64
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from skindx.core.errors import JobError, UserError
from skindx.core.untrusted import read_json
from skindx.ui.faults import FAILED
from skindx.ui.scanning.errors import ScanRefused
from skindx.ui.scanning.job import remove, run
from skindx.ui.scanning.order import PHOTOS, photo_paths
from skindx.workers.process import module_command

FOUND, DRAWN = "ruler.json", "ruler.jpg"
"""Files of the process: what it found, and the photo's part with the ticks drawn."""
_COMMAND = module_command("skindx.ui.scanning.ruler_process")
_WAITING, _RETRY_S, _LONGEST_S = 4, 10, 120.0


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
    """Finds one ruler at a time, each in a process of its own; nothing of it is kept."""

    def __init__(self, folder: Path, most_megapixels: int, command: Sequence[str] = ()) -> None:
        self._folder = folder
        self._command = (*(command or _COMMAND), str(most_megapixels))
        self._one = asyncio.Semaphore()
        self._clients: list[str] = []

    async def find(self, photo: bytes, client: str) -> RulerAnswer:
        """Return the ruler on a photo.

        Raises ScanRefused where too many wait, UserError without a ruler that can be read,
        JobError, OSError for a full disk.
        """
        if client in self._clients:
            raise ScanRefused(429, "your last photo is still searched for a ruler;", _RETRY_S)
        if len(self._clients) > _WAITING:
            raise ScanRefused(503, "too many photos wait to be searched for a ruler;", _RETRY_S)
        self._clients.append(client)
        folder = self._folder / secrets.token_hex(16)
        try:
            async with self._one:
                await asyncio.to_thread(_write, folder, photo)
                async with asyncio.timeout(_LONGEST_S):
                    said = await run(folder, self._command)
                return await asyncio.to_thread(_answer, folder, said)
        except TimeoutError:
            raise UserError(
                "finding a ruler took too long; measure it and give the millimetres in a pixel."
            ) from None
        finally:
            self._clients.remove(client)
            await asyncio.to_thread(remove, folder)


def _write(folder: Path, photo: bytes) -> None:
    (folder / PHOTOS).mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    (path,) = photo_paths(folder, 1)
    path.touch(mode=0o600)
    path.write_bytes(photo)


def _answer(folder: Path, said: dict[str, Any] | None) -> RulerAnswer:
    if said is None or "failed" in said:
        raise JobError(FAILED)
    if "error" in said:
        raise UserError(said["error"])
    image = base64.b64encode((folder / DRAWN).read_bytes()).decode()
    return RulerAnswer(**read_json(folder / FOUND), image=f"data:image/jpeg;base64,{image}")
