"""Images are made clean in decoding processes: profiles and metadata are hostile too.

An image of a dataset has been decoded strictly, but its colour profile was not read yet, and
the files may have changed since. A process writes what it made of an image to a file of its own;
all else that it says is JSON.
"""

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skindx.core.machine import cpu_count
from skindx.data.publish.clean import clean_image
from skindx.data.screening.measures import ScreenSettings
from skindx.imaging.decode import import_decoders
from skindx.imaging.formats import DamagedImage
from skindx.workers.sandbox import Failure, Limits, Work, for_each, run_sandboxed, sandboxed

_PER_PROCESS = 64
"""So few images are cleaned sooner than another process starts."""
_TIMES = 4
"""As much memory and time as screening has: pixels are converted, coded and decoded once more."""


@dataclass(frozen=True, slots=True)
class CleanFile:
    """Outcome of one image: a file at `path`, or a `problem` with the reason."""

    path: Path
    problem: str = ""
    sha256: str = ""
    """Of the bytes that were read."""
    suffix: str = ""
    width: int = 0
    height: int = 0
    reencoded: bool = False


def clean_files(
    paths: Sequence[Path], folder: Path, settings: ScreenSettings
) -> Generator[CleanFile]:
    """Yield the clean image of each file, in order; `folder` takes those not yet fetched."""
    limits = Limits(_TIMES * settings.timeout_s, _TIMES * settings.memory_mb)
    workers = min(cpu_count(), -(-len(paths) // _PER_PROCESS))
    job = {"folder": str(folder.absolute()), "max_pixels": settings.max_pixels}
    waiting: dict[int, CleanFile] = {}
    following = 0
    for position, answer in run_sandboxed(cleaning, job, paths, limits, workers):
        waiting[position] = (
            CleanFile(Path(), answer.detail)
            if isinstance(answer, Failure)
            else CleanFile(**{**answer, "path": Path(answer["path"])})
        )
        while following in waiting:
            yield waiting.pop(following)
            following += 1


def _prepare() -> None:
    from PIL import ImageCms  # noqa: F401

    import_decoders()


@sandboxed(_prepare)
def cleaning(job: dict[str, Any]) -> Work:
    """Return what cleans each file into the job's `folder`."""
    folder = Path(job["folder"])
    return for_each(lambda path: clean_file(path, folder, max_pixels=job["max_pixels"]))


def clean_file(path: Path, folder: Path, *, max_pixels: int) -> dict[str, Any]:
    """Clean one image into `folder`, in a decoding process; return a `CleanFile` as JSON."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return {"path": "", "problem": f"cannot be read ({error.strerror})"}
    sha256 = hashlib.sha256(data).hexdigest()
    target = folder / sha256
    try:
        clean = clean_image(data, max_pixels=max_pixels)
        target.write_bytes(clean.data)
    except (DamagedImage, MemoryError) as error:
        problem = f"does not decode ({error or 'not enough memory'})"
        return {"path": "", "problem": problem, "sha256": sha256}
    facts = {name: value for name, value in asdict(clean).items() if name != "data"}
    return {"path": str(target), "sha256": sha256, **facts}
