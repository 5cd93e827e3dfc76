"""A case's photos on their way to the networks: decoded, past the gates, or refused with advice."""

import hashlib
import math
import stat
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case, with_file_facts
from skindx.diagnosis.record import Photo
from skindx.diagnosis.scope import advised, shared_reason, unjudged
from skindx.imaging.decode import decode_noted, import_decoders, upright_jpeg_size
from skindx.imaging.dicom import can_read_dicom, read_dicom
from skindx.imaging.dicom_facts import DicomFacts
from skindx.imaging.image_formats import (
    HEAD,
    SHOWN_BY_NONE,
    DamagedImage,
    PhotoFormat,
    photo_format,
    refusal,
)
from skindx.imaging.photo_date import day_of, file_date, unbelieved
from skindx.imaging.photo_gates import Fault, Kind, inspect
from skindx.imaging.resize import small_jpeg
from skindx.imaging.sandboxed_images import LIMITS, can_read_heic, decode_apart, decode_heic
from skindx.imaging.stored_colours import SRGB, ColourNote, Decoding
from skindx.texts.catalogue import joined, text
from skindx.workers.sandbox import Work, for_each, sandboxed

Gate = Literal["unreadable", "size", "light", "blur", "no-skin", "modality", "unfamiliar"]

FAULTS: dict[Fault, str] = {
    "dark": "refused_dark",
    "dim": "remark_dim",
    "glaring": "refused_glaring",
    "pale": "remark_pale",
    "no-skin": "refused_no_skin",
    "blurred": "refused_blurred",
    "soft": "remark_soft",
}
"""Keys of the catalogue: of refusals, and of remarks on photos that are answered."""

REMARKS: dict[ColourNote, str] = {"profile-ignored": "remark_profile"}


@dataclass(frozen=True)
class Refusal:
    """Why one photo of a case, counted from 0, is not judged."""

    photo: int
    gate: Gate
    message: str
    """One sentence on what is wrong and what to do."""
    shown: bytes = b""
    """A small JPEG of a photo that most browsers cannot show; empty for others, or if damaged."""
    seen: Photo | None = None
    """The photo with the detector's boxes, where the networks saw it: it may be a wide one."""
    unless: Kind | Literal[""] = ""
    """How a person may say that it was taken, to get an answer all the same; "": nothing helps."""
    also: str = ""
    """The next step of its case, where that is more than what each refusal advises."""

    @property
    def text(self) -> str:
        """The message, and what a refusal means for the person."""
        return advised(self.also, self.message)


class Refused(UserError):  # noqa: N818
    """A case with photos that no diagnosis should rest on; `gate` and `photo` are of the first.

    Photos are counted from 0. Its words say also that a refusal is no all-clear.
    """

    def __init__(
        self, gate: Gate, message: str, photo: int = 0, refusals: tuple[Refusal, ...] = ()
    ) -> None:
        super().__init__(unjudged(message))
        self.gate, self.photo = gate, photo
        self.refusals = refusals or (Refusal(photo, gate, message),)
        """One for every refused photo, in their order."""

    @classmethod
    def from_photos(cls, refusals: Sequence[Refusal], photos: int, also: str = "") -> Self:
        """Return the error of a case of so many photos; it names them where there are several.

        `also` says what holds whatever the photos show, in sentences, and comes first.
        """
        in_order = sorted(refusals, key=lambda refusal: refusal.photo)
        ordered = tuple(replace(one, also=also) for one in in_order)
        first = ordered[0]
        named = first.message
        if shared := shared_reason([one.message for one in ordered], photos):
            named = shared
        elif photos > 1:
            named = " ".join(
                joined(text("refused_photo", number=refusal.photo + 1), refusal.message)
                for refusal in ordered
            )
        return cls(first.gate, advised(also, named), first.photo, ordered)

    @property
    def unless(self) -> Kind | Literal[""]:
        """How a person may say that the photos were taken, to get an answer; "": nothing helps."""
        kinds = {one.unless for one in self.refusals}
        return kinds.pop() if len(kinds) == 1 else ""

    def __reduce__(self) -> tuple[type["Refused"], tuple[Gate, str, int, tuple[Refusal, ...]]]:
        """Cross a border between processes whole: an exception alone would give its message."""
        return type(self), (self.gate, str(self), self.photo, self.refusals)


SMALL_SIDE = 240
"""Pixels of the longer side beside the form: twice as many as it takes there."""
LONGEST_SIDE = 1280
"""Pixels: what a page shows; decoding and sending more costs a phone seconds."""
VIEW_QUALITY = 88


def small_view(data: bytes, pixels_HWC: NDArray[np.uint8]) -> bytes:
    """Return a small JPEG of a photo that most browsers cannot show; b"" of any other."""
    if photo_format(data[:HEAD]) not in SHOWN_BY_NONE:
        return b""
    return small_jpeg(pixels_HWC, SMALL_SIDE, quality=VIEW_QUALITY)


MAX_BYTES = 20 * 1024 * 1024
MIN_SIDE = 64
"""Pixels of the shorter side, whatever a bundle was trained on."""
MAX_RATIO = 10
MAX_KEPT_PIXELS = 12_000_000
"""A larger photo is made smaller as it is opened: several of them wait in memory side by side, and
no network needs more, not even for the crop around a small box."""

_REASONS = {
    "decode-memory": "damage_memory",
    "decode-timeout": "damage_time",
    "decode-crash": "damage_decoder",
}


@dataclass(frozen=True)
class DecodedPhoto:
    """A decoded photo, H x W x 3 RGB uint8, upright, perhaps at a smaller scale than its file."""

    pixels_HWC: NDArray[np.uint8]
    width: int
    height: int
    """Pixels of the upright photo at full scale."""
    sha256: str
    """SHA-256 of the file's bytes."""
    facts: DicomFacts | None = None
    """What the header of a DICOM file says."""
    notes: frozenset[ColourNote] = frozenset()
    """What came of the file's colours, and of further images in it."""
    taken: str = field(default="", repr=False)
    """When it was taken, as `photo_date.file_date` gives it."""


def read_photo(path: Path) -> bytes:
    """Read a photo file, never more than the limit. Raises UserError."""
    try:
        mode = path.stat().st_mode  # a pipe that nobody writes to would hold its reader for ever
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UserError(
                f"photo {path} is a pipe or a device; save it as a plain file and give that file."
            )
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        url = str(path).startswith(("http:", "https:"))
        todo = "download it first" if url else "check the path"
        raise UserError(f"photo {path} does not exist; {todo}.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(
            f"photo {path} cannot be read ({reason}); give an image file that you may read."
        ) from None


def file_hash(photo: bytes) -> str | None:
    """Return the SHA-256 of a photo's file; None beyond the limit, where the file was not read."""
    return hashlib.sha256(photo).hexdigest() if len(photo) <= MAX_BYTES else None


def read_photos(paths: Sequence[Path]) -> tuple[bytes, ...]:
    """Read photo files. Raises UserError, which names every file that cannot be read."""
    read: list[bytes] = []
    problems: list[str] = []
    for path in paths:
        try:
            read.append(read_photo(path))
        except UserError as error:
            problems.append(str(error).rstrip("."))
    if problems:
        raise UserError(f"{'; '.join(problems)}.")
    return tuple(read)


def open_photo(
    data: bytes,
    photo: int = 0,
    *,
    needed: int | None = None,
    least: int = MIN_SIDE,
    decoding: Decoding = SRGB,
    apart: bool = False,
) -> DecodedPhoto:
    """Decode a photo's bytes; `photo` is its place in the case, from 0. Raises Refused.

    `apart`: in a process of its own, with limits of time and memory; HEIC and DICOM always are.
    A worker of the server does without: the server itself ends one that takes too long.

    `least` are the pixels that its shorter side must have. With `needed`, those that suffice to
    judge it, a large JPEG comes at a smaller scale, never smaller than it is shown. None: it comes
    as it is. No photo has more than MAX_KEPT_PIXELS.
    """

    def refused(message: str, gate: Gate = "unreadable") -> Refused:
        return Refused(gate, message, photo)

    if not data:
        raise refused(text("refused_empty"))
    if len(data) > MAX_BYTES:
        raise refused(text("refused_bytes", most=MAX_BYTES >> 20), "size")
    form = photo_format(data[:HEAD])
    if form is None:
        raise refused(joined(text("refused_format"), text("refused_format_do")))
    if form == "HEIC" and not can_read_heic():
        raise refused(joined(text("refused_heic"), text("refused_heic_do")))
    if form == "DICOM" and not can_read_dicom():
        raise refused(joined(text("refused_dicom"), text("refused_dicom_do")))
    facts = None
    try:
        if form == "DICOM":
            dicom = read_dicom(data, decoding)
            pixels_HWC, facts, notes = _kept(dicom.pixels_HWC), dicom.facts, set(dicom.notes)
            height, width = facts.height, facts.width
        else:
            decode = _decoded_apart if apart and form != "HEIC" else _decoded
            pixels_HWC, notes, (height, width) = decode(data, form, needed, decoding)
    except DamagedImage as error:
        # The message of a third-party decoder (`error` has a cause then) does not help a user.
        too_large = error.reason == "too-many-pixels"
        is_our_message = form != "HEIC" and error.__cause__ is None
        reason = str(error) if is_our_message or too_large else ""
        reason = reason or text(_REASONS.get(error.reason, "damage"))
        fewer = too_large or error.reason == "decode-memory"
        key = "refused_damaged_fewer" if fewer else "refused_damaged"
        if form == "DICOM":
            key = "refused_dicom_fewer" if too_large else "refused_dicom_damaged"
            key = "refused_dicom_reason" if ";" in reason else key  # it says what to do
        gate: Gate = "size" if too_large else "unreadable"
        raise refused(text(key, reason=reason), gate) from None
    size = {"width": width, "height": height}
    if min(height, width) < (least := max(least, MIN_SIDE)):
        small = joined(text("refused_small", **size), text("refused_small_do", least=least))
        raise refused(small, "size")
    if max(height, width) > MAX_RATIO * min(height, width):
        raise refused(text("refused_ratio", ratio=MAX_RATIO, **size), "size")
    sha256 = hashlib.sha256(data).hexdigest()
    taken = file_date(data, facts)
    return DecodedPhoto(pixels_HWC, width, height, sha256, facts, frozenset(notes), taken)


def _decoded(
    data: bytes, form: PhotoFormat, needed: int | None, decoding: Decoding
) -> tuple[NDArray[np.uint8], set[ColourNote], tuple[int, int]]:
    """Return pixels_HWC, notes, and (height, width) of the photo at full scale."""
    if form == "HEIC":
        pixels_HWC, notes = decode_heic(data, decoding=decoding)
    elif form != "JPEG":
        pixels_HWC, notes = decode_noted(data, decoding=decoding)
    else:
        size = upright_jpeg_size(data)
        pixels_HWC, notes = decode_noted(
            data, at_least=_at_least(*size, needed), rough=False, decoding=decoding
        )
        return _kept(pixels_HWC), notes, size
    return _kept(pixels_HWC), notes, (pixels_HWC.shape[0], pixels_HWC.shape[1])


def _decoded_apart(
    data: bytes, form: PhotoFormat, needed: int | None, decoding: Decoding
) -> tuple[NDArray[np.uint8], set[ColourNote], tuple[int, int]]:
    job = {"form": form, "needed": needed, "decoding": decoding}
    pixels_HWC, answer = decode_apart(photo_decoding, data, job, LIMITS)
    height, width = answer["size"]
    return pixels_HWC, set(answer["notes"]), (height, width)


@sandboxed(import_decoders)
def photo_decoding(job: dict[str, Any]) -> Work:
    """Return what writes a photo's pixels to the job's `out` and says what failed."""

    def write(path: Path) -> dict[str, Any]:
        try:
            pixels_HWC, notes, size = _decoded(
                path.read_bytes(), job["form"], job["needed"], job["decoding"]
            )
        except Exception as error:
            damage = refusal(error)
            ours = damage is error and error.__cause__ is None  # no decoder's message
            known = ours or damage.reason == "too-many-pixels"
            return {"reason": damage.reason, "detail": str(damage) if known else ""}
        with Path(job["out"]).open("wb") as file:  # as a name it would get a suffix
            np.save(file, pixels_HWC, allow_pickle=False)
        return {"reason": "", "detail": "", "notes": sorted(notes), "size": size}

    return for_each(write)


def _kept(pixels_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a photo of at most MAX_KEPT_PIXELS."""
    import cv2

    height, width = pixels_HWC.shape[:2]
    scale = math.sqrt(MAX_KEPT_PIXELS / (height * width))
    if scale >= 1:
        return pixels_HWC
    size_wh = (max(1, int(scale * width)), max(1, int(scale * height)))
    smaller_HWC: NDArray[np.uint8] = cv2.resize(pixels_HWC, size_wh, interpolation=cv2.INTER_AREA)
    return smaller_HWC


def _at_least(height: int, width: int, needed: int | None) -> tuple[int, int] | None:
    """Return the (height, width) that showing and judging a photo need; None: as it is."""
    scale = math.sqrt(MAX_KEPT_PIXELS / (height * width))
    if needed is not None:
        scale = min(scale, max(LONGEST_SIDE / max(height, width), needed / min(height, width)))
    return (round(scale * height), round(scale * width)) if scale < 1 else None


COARSE = 200
"""Pixels of the shorter side, below which fine structures are lost to most networks."""


@dataclass(frozen=True)
class CheckedPhoto:
    """A photo that passed its gates, and what is not good about it all the same."""

    decoded: DecodedPhoto
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class PhotoNeeds:
    """What a bundle needs of a photo, and which photos it learned from."""

    side: int | None = None
    """Pixels of the shorter side that suffice; None: a photo is never made smaller for them."""
    least: int = MIN_SIDE
    """Pixels that the shorter side must have."""
    decoding: Decoding = SRGB
    dermoscopic: bool = False
    """Photos must be taken through a dermatoscope."""
    learned: Container[str] = ()
    """SHA-256 of the images of its index."""


ANY_PHOTO = PhotoNeeds()


@dataclass(frozen=True)
class CheckedCase:
    """A case whose photos the networks will see, and those of them that a gate refused."""

    case: Case
    passed: dict[int, CheckedPhoto]
    """Place in the case -> photo."""
    refused: Sequence[Refusal] = ()


def check_case(
    case: Case, needs: PhotoNeeds = ANY_PHOTO, *, apart: bool = False
) -> CheckedCase | UserError:
    """Decode a case's photos and look at their quality; threads may do it side by side.

    Returns UserError where the files are of different patients. `apart` is as `open_photo` has it.
    """
    passed, refused = check_photos(case, needs, apart=apart)
    if headers := [photo.decoded.facts for photo in passed.values() if photo.decoded.facts]:
        try:
            case = with_file_facts(case, headers)
        except UserError as error:
            return Refused("unreadable", str(error))
    return CheckedCase(case, passed, refused)


def check_photos(
    case: Case, needs: PhotoNeeds = ANY_PHOTO, *, apart: bool = False
) -> tuple[dict[int, CheckedPhoto], list[Refusal]]:
    """Return a case's photos that pass, by their place in it, and why the others do not.

    Every photo is looked at, whatever is wrong with another.
    """
    passed: dict[int, CheckedPhoto] = {}
    refusals: list[Refusal] = []
    opened = partial(open_photo, needed=needs.side, least=needs.least, decoding=needs.decoding)
    for photo, data in enumerate(case.photos):
        try:
            decoded = opened(data, photo, apart=apart)
        except Refused as refused:
            refusals += refused.refusals
            continue
        checked = _check_photo(decoded, data, photo, needs)
        if isinstance(checked, Refusal):
            refusals.append(checked)
        else:
            passed[photo] = checked
    return passed, refusals


def _check_photo(
    decoded: DecodedPhoto, data: bytes, photo: int, needs: PhotoNeeds
) -> CheckedPhoto | Refusal:
    """Return a photo with remarks on it, or why no network should see it."""
    remarks = [text("remark_learned")] if decoded.sha256 in needs.learned else []
    remarks += [text(REMARKS[note]) for note in sorted(decoded.notes) if note in REMARKS]
    if (day := day_of(decoded.taken)) and (doubt := unbelieved(day)):
        key = "remark_date_future" if doubt == "future" else "remark_date_old"
        remarks.append(text(key, day=datetime(day.year, day.month, day.day)))
        decoded = replace(decoded, taken="")
    faults: list[Fault] = []
    for gate, finding in inspect(decoded.pixels_HWC):
        if finding.fatal:
            advice = text(FAULTS[finding.fault])
            if gate == "no-skin" and needs.dermoscopic:
                advice = joined(advice, text("refused_take_dermoscopic"))
            return Refusal(photo, gate, advice, small_view(data, decoded.pixels_HWC))
        faults.append(finding.fault)
    if min(decoded.width, decoded.height) < COARSE:
        key = "remark_small_soft" if "soft" in faults else "remark_small"
        remarks.append(text(key, width=decoded.width, height=decoded.height))
        faults = [fault for fault in faults if fault != "soft"]
    return CheckedPhoto(decoded, (*remarks, *(text(FAULTS[fault]) for fault in faults)))
