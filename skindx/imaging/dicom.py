"""DICOM photos of skin: pixels and facts, read in processes with the limits of every photo.

A photo is known by the DICM of its preamble, never by its name alone.
"""

import hashlib
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file
from skindx.core.machine import missing_modules, require_extra
from skindx.imaging import dicom_facts, dicom_pixels
from skindx.imaging.decode import MAX_PIXELS, ignore_warnings, import_decoders
from skindx.imaging.dicom_facts import DicomFacts, facts_of, kind_of
from skindx.imaging.dicom_pixels import BIG_ENDIAN, DEFLATED, IMPLICIT, FrameLayout
from skindx.imaging.image_formats import HEAD, DamagedImage, refusal
from skindx.imaging.srgb import FileColours
from skindx.imaging.stored_colours import PLAIN, SRGB, ColourNote, Decoding
from skindx.workers.sandbox import Failure, Work, for_each, run_sandboxed, sandboxed
from skindx.workers.worker_process import SandboxLimits

LIMITS = SandboxLimits(timeout_s=15, memory_mb=800)
_MODULES = ("pydicom", "gdcm", "openjpeg", "rle")
_KEYWORDS = (*dicom_facts.TAGS, *dicom_pixels.TAGS)
_HEADER_BYTES = 16 << 20
"""Room for a deflated file's elements other than its pixels."""


@dataclass(frozen=True)
class DicomPhoto:
    """A photo and what its file says of it."""

    pixels_HWC: NDArray[np.uint8]
    """uint8 sRGB, not turned."""
    facts: DicomFacts
    notes: frozenset[ColourNote] = frozenset()
    """What came of its colours."""


def can_read_dicom() -> bool:
    """Tell whether the libraries that read DICOM are installed (the extra `clinic` has them)."""
    return not missing_modules(*_MODULES)


def require_dicom() -> None:
    """Raise UserError where the libraries that read DICOM are not installed."""
    require_extra("clinic", *_MODULES, purpose="reading DICOM")


def is_dicom(head: bytes) -> bool:
    """Tell a DICOM file by its first 132 bytes."""
    return head[128:132] == b"DICM"


def read_dicom(data: bytes, decoding: Decoding = SRGB) -> DicomPhoto:
    """Return a photo's pixels and facts.

    Raises DamagedImage, whatever the bytes do, and UserError without the extra `clinic`. File and
    pixels pass between the processes in memory: no disk ever holds them.
    """
    with _in_memory(b"") as out:
        job = {"out": str(out), "kind": "npy", "max_pixels": MAX_PIXELS, "decoding": decoding}
        answer = _one(data, job, LIMITS)
        pixels_HWC: NDArray[np.uint8] = np.load(out, allow_pickle=False)
        return DicomPhoto(pixels_HWC, _facts(answer), frozenset(answer["notes"]))


def read_facts(data: bytes, *, limits: SandboxLimits = LIMITS) -> DicomFacts:
    """Return a photo's facts alone; its pixels are not decoded. Raises as `read_dicom`."""
    return _facts(_one(data, {"out": "", "kind": "", "max_pixels": MAX_PIXELS}, limits))


def spacing_of(path: Path) -> float | None:
    """Return the millimetres in a pixel that a DICOM photo names; None of any other file."""
    with path.open("rb") as file, suppress(DamagedImage):
        head = file.read(HEAD)
        return read_facts(head + file.read()).mm_per_pixel if is_dicom(head) else None
    return None


@dataclass(frozen=True)
class ImportedPhoto:
    """A DICOM photo made an image of a dataset."""

    file: Path
    """JPEG or PNG of sRGB without metadata, named by its SHA-256."""
    facts: DicomFacts
    notes: frozenset[ColourNote] = frozenset()
    """What came of its colours."""


def import_photos(
    paths: Sequence[Path], folder: Path, *, workers: int = 1, max_pixels: int = MAX_PIXELS
) -> Iterator[tuple[int, ImportedPhoto | DamagedImage]]:
    """Write each DICOM photo to a folder as an image; yield (position, what came of it).

    In any order; a photo that is refused leaves no file. A baseline JPEG of sRGB stays as it is
    compressed, without its notes; all others become PNG. Raises UserError without the extra
    `clinic`.
    """
    require_dicom()
    job = {"out": str(folder.absolute()), "kind": "image", "max_pixels": max_pixels}
    for place, answer in run_sandboxed(dicom_reading, job, paths, LIMITS, workers):
        try:
            facts = _facts(answer)
        except DamagedImage as error:
            yield place, error
        else:
            notes = frozenset(answer["notes"])
            yield place, ImportedPhoto(folder / answer["file"], facts, notes)


def _one(data: bytes, job: dict[str, Any], limits: SandboxLimits) -> Any:
    """Return a process's answer, which `_facts` reads. Raises DamagedImage."""
    require_dicom()
    with _in_memory(data) as path:
        ((_, answer),) = run_sandboxed(dicom_reading, job, [path], limits, workers=1)
    _facts(answer)
    return answer


def _facts(answer: Any) -> DicomFacts:
    if isinstance(answer, Failure):
        late = answer.reason == "decode-timeout"
        message = "decoding it takes too long" if late else "its decoder failed"
        raise DamagedImage(message, answer.reason)
    if "reason" in answer:
        raise DamagedImage(answer["detail"], answer["reason"])
    return DicomFacts.parse(answer["facts"])


@contextmanager
def _in_memory(data: bytes) -> Iterator[Path]:
    """Yield the path of a file that only memory holds."""
    with os.fdopen(os.memfd_create("skindx-dicom"), "w+b") as file:
        file.write(data)
        file.flush()
        yield Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")


def _prepare() -> None:
    import sys

    import_decoders()
    # gdcm imports a module of Python 2 of this name, which any folder may happen to have.
    sys.modules.setdefault("dl", None)  # type: ignore[arg-type]
    import gdcm  # noqa: F401
    import openjpeg  # noqa: F401
    import pydicom.pixels  # noqa: F401
    import rle  # noqa: F401


@sandboxed(_prepare)
def dicom_reading(job: dict[str, Any]) -> Work:
    """Return what writes a photo's pixels where the job says and answers its facts or a reason."""

    def read(path: Path) -> dict[str, Any]:
        try:
            with ignore_warnings():
                return _read(path, job)
        except RecursionError:
            return {"reason": "damaged", "detail": "its sequences are nested too deeply"}
        except Exception as error:
            damage = refusal(error)
            ours = damage is error and error.__cause__ is None  # no decoder's message
            detail = str(damage) if ours else "it is damaged or cut short"
            return {"reason": damage.reason, "detail": detail}

    return for_each(read)


def _read(path: Path, job: dict[str, Any]) -> dict[str, Any]:
    header, syntax = _header(path.read_bytes(), job["max_pixels"])
    kind, out = kind_of(header), Path(job["out"])
    layout = FrameLayout.from_header(header, syntax, job["max_pixels"])
    name = ""
    plain = job.get("decoding", SRGB) != SRGB
    colours = FileColours(PLAIN if plain else layout.stored_colours(header))
    if job["kind"] == "npy":
        pixels_HWC = colours.rgb(layout.decoded(header, job["max_pixels"]))
        with out.open("wb") as file:  # as a name it would get a suffix
            np.save(file, pixels_HWC, allow_pickle=False)
    elif job["kind"] == "image":
        image, suffix = layout.image(header, job["max_pixels"], colours)
        name = hashlib.sha256(image).hexdigest() + suffix
        with atomic_file(out / name) as temporary:
            temporary.write_bytes(image)
    return {"facts": asdict(facts_of(header, kind)), "file": name, "notes": sorted(colours.notes)}


def _header(data: bytes, max_pixels: int) -> tuple[Any, str]:
    """Return the elements that are used, as a pydicom Dataset, and the transfer syntax."""
    from pydicom.datadict import tag_for_keyword
    from pydicom.filereader import read_dataset

    if not is_dicom(data):
        raise DamagedImage("the file is not a DICOM file", "not-a-picture")
    file = io.BytesIO(data)
    file.seek(132)
    meta = read_dataset(
        file,
        is_implicit_VR=False,
        is_little_endian=True,
        stop_when=lambda tag, vr, length: tag >> 16 != 2,
    )
    syntax = str(meta.get("TransferSyntaxUID") or "")
    if not syntax:
        raise DamagedImage("the header has no transfer syntax")
    if syntax == DEFLATED:
        file = io.BytesIO(_inflated(data[file.tell() :], max_pixels))
    header = read_dataset(
        file,
        is_implicit_VR=syntax == IMPLICIT,
        is_little_endian=syntax != BIG_ENDIAN,
        specific_tags=[tag for tag in map(tag_for_keyword, _KEYWORDS) if tag],
    )
    if file.tell() != file.getbuffer().nbytes:  # pydicom says so in its log alone
        raise DamagedImage("the file is cut short, or one of its elements has a wrong length")
    return header, syntax


def _inflated(deflated: bytes, max_pixels: int) -> bytes:
    """Return the elements of a deflated file. Raises DamagedImage for a bomb."""
    inflater, most = zlib.decompressobj(-zlib.MAX_WBITS), 3 * max_pixels + _HEADER_BYTES
    data = inflater.decompress(deflated, most)
    if inflater.unconsumed_tail:
        message = f"it inflates to more than {most >> 20} MB"
        raise DamagedImage(message, "decode-memory")
    if not inflater.eof:
        raise DamagedImage("the file is cut short")
    return data


@sandboxed(_prepare)
def dicomdir_listing(job: dict[str, Any]) -> Work:
    """Return what lists the image files of a DICOMDIR, each as the parts of its path."""
    return for_each(_listed)


def _listed(index: Path) -> list[list[str]] | str:
    import pydicom

    try:
        header = pydicom.dcmread(index)
        records = header.DirectoryRecordSequence
        files = [r.ReferencedFileID for r in records if r.DirectoryRecordType == "IMAGE"]
        return [[name] if isinstance(name, str) else list(map(str, name)) for name in files]
    except Exception as error:  # whatever hostile bytes raise means the same
        return str(refusal(error))[:200]
