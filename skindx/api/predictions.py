"""Predictions of many photos as a stream of Arrow tables, in the order of the photos.

Each photo is a case by itself and has one row, refused ones too. Columns, for each bundle the same:

- `file` (string): the path as it was given; null for bytes, images and arrays
- `sha256` (string): of the bytes; null where they cannot be read or are too many
- `width`, `height` (int32): pixels of the upright photo; null where a gate refused it
- `refused` (string): null for an answer; else the gate: `unreadable`, `size`, `light`, `blur`,
  `no-skin`, `modality`, `unfamiliar`, and besides the gates `file` (no such file), `facts` (given
  facts that are wrong), `failed` (an error of skindx itself)
- `reason` (string): why it is refused, in one sentence; null for an answer
- `urgency`, `advice` (string): the next step: urgent, soon, routine or unknown, and its text
- `decided_by` (string): key of the condition that decides the next step; "" where none alone does
- `abstained` (string): why no condition is named with confidence; "" where one or a few are
- `first` (string), `probability` (double): key of the likeliest class and its probability
- `set` (list of string): keys of the conformal set, likeliest first; null without sets
- `urgent_risk`, `urgent_threshold` (double): null in a bundle without such a rule
- `soon_risk`, `soon_threshold` (double): the same of urgent and soon conditions together
- `disagreement` (double): of the members, 0 to 1
- `familiarity` (double): p-value of the out-of-distribution check; null in a bundle without one
- `remarks` (string): limits of the photo's quality, or that the model learned from it; or ""
- `model_urgency` (string), `checklist_score`, `checklist_items` (int32): what the model alone says,
  score and known items of the weighted 7-point checklist; null where no question is answered, and
  a low score is null where an item has no answer
- `probability_KEY` (double), one for each class, in the bundle's order
- `use`, `licence` (string): what the bundle may be used for and what it is not for, in each row;
  missing for a bundle that states nothing

All but the first six and the last two are null in the row of a refused photo, but for what the
checklist says where it asks for referral. The schema's metadata
name the bundle: `skindx.bundle` (its digest) and `skindx.backend`.
"""

import io
import logging
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError, refuse_unknown
from skindx.core.machine import cpu_count
from skindx.core.progress import Progress, silent
from skindx.data.loader.load import work_ahead
from skindx.diagnosis.case import Case, Patient, with_facts
from skindx.diagnosis.checklist_advice import advice_met, checklist_columns, with_checklist
from skindx.diagnosis.diagnose import (
    ConcludedCase,
    conclude_cases,
)
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.photo_checks import (
    MIN_SIDE,
    CheckedCase,
    Refused,
    check_case,
    file_hash,
    open_photo,
    read_photo,
)
from skindx.diagnosis.scope import unjudged, without_reassurance
from skindx.imaging.decode import load_pixels, pixels_of_opened
from skindx.imaging.stored_colours import Decoding
from skindx.models.bundle.use_limits import use_columns
from skindx.texts.catalogue import speaking, spoken

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL.Image import Image

    from skindx.diagnosis.predictor import Predictor
    from skindx.models.ensemble import Ensemble


PhotoLike: TypeAlias = "str | os.PathLike[str] | bytes | Image | NDArray[np.uint8]"
"""A path, a file's bytes, an image of Pillow, or an array H x W x 3 of uint8 RGB."""


def photo_bytes(photo: Any) -> bytes:
    """Return a photo as the bytes of a file, for the one reader with limits.

    Images and arrays become a PNG, which keeps each pixel. Raises UserError.
    """
    if isinstance(photo, bytes | bytearray | memoryview):
        return bytes(photo)
    if isinstance(photo, str | os.PathLike):
        return read_photo(Path(photo))
    if isinstance(photo, np.ndarray):
        return _png_of_array(photo)
    if type(photo).__module__.startswith("PIL."):
        return _png_of_image(photo)
    raise UserError(
        f"a photo of type {type(photo).__name__} cannot be read; give a path, bytes, a Pillow "
        "image, or a uint8 array of height x width x 3."
    )


def _png_of_array(photo: NDArray[Any]) -> bytes:
    import cv2

    if photo.dtype != np.uint8 or photo.ndim != 3 or photo.shape[2] != 3 or not photo.size:
        raise UserError(
            f"an array of shape {photo.shape} and type {photo.dtype} is not a photo; give a uint8 "
            "array of height x width x 3 (red, green, blue)."
        )
    done, png = cv2.imencode(".png", photo[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 1])
    if not done:
        raise UserError(f"an array of shape {photo.shape} is too large; give a smaller array.")
    return png.tobytes()


def _png_of_image(photo: "Image") -> bytes:
    from PIL import Image, ImageOps

    try:
        if photo.mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
            load_pixels(photo)
            plain = photo.copy()  # its profile goes into the PNG
            for xmp in ("xmp", "XML:com.adobe.xmp"):  # whose orientation nobody obeys
                plain.info.pop(xmp, None)
            upright = ImageOps.exif_transpose(plain)
        else:
            upright = Image.fromarray(pixels_of_opened(photo))
        written = io.BytesIO()
        upright.save(written, "PNG", compress_level=1)
    except Exception as error:  # what a plug-in of Pillow raises for a damaged file that is lazy
        raise UserError(
            f"the Pillow image cannot be read ({type(error).__name__}); open its file again, or "
            "give the path of the file."
        ) from None
    return written.getvalue()


def patient_of(facts: Mapping[str, Any]) -> Patient:
    """Return what is known of the person. Raises UserError, which names an unknown keyword."""
    refuse_unknown("facts", facts, tuple(INTAKE))
    return Patient.parse(dict(facts), origin="facts", expand=False)


log = logging.getLogger(__name__)

STAGE = "predict"
MOST_PIXELS = 48_000_000
"""Most pixels of decoded photos in the queue or in a batch; larger batches are made smaller."""

Read = TypeVar("Read")

_FAILED = "the photo could not be judged, skindx failed at it; try another photo."


@dataclass(frozen=True)
class _Read:
    """A photo after its gates, or why it is refused before the networks."""

    file: str | None
    sha256: str | None
    case: CheckedCase | UserError
    gate: str
    """The gate that refused it; `case` stands for an error outside the gates."""


def schema_of(predictor: "Predictor") -> "pa.Schema":
    """Return the columns of a bundle's predictions."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    fields = [
        *((name, text) for name in ("file", "sha256")),
        *((name, pa.int32()) for name in ("width", "height")),
        *((name, text) for name in ("refused", "reason", "urgency", "advice")),
        *((name, text) for name in ("decided_by", "abstained", "first")),
        ("probability", number),
        ("set", pa.list_(text)),
        *((f"{rule}_{part}", number) for rule in ("urgent", "soon") for part in _RISK),
        *((name, number) for name in ("disagreement", "familiarity")),
        *((name, text) for name in ("remarks", "model_urgency")),
        *((name, pa.int32()) for name in ("checklist_score", "checklist_items")),
        *((f"probability_{key}", number) for key in predictor.taxonomy.keys),
        *((name, text) for name in use_columns(predictor.use)),
    ]
    about = {"skindx.bundle": predictor.bundle.digest, "skindx.backend": predictor.backend}
    return pa.schema(fields, metadata=about)


_RISK = ("risk", "threshold")


def iter_predictions(
    predictor: "Predictor",
    photos: Iterable[Any],
    *,
    batch: int = 32,
    facts: Mapping[str, Any] | Iterable[Mapping[str, Any] | None] | None = None,
    progress: Progress = silent,
    lock: "Lock | None" = None,
) -> Iterator["pa.RecordBatch"]:
    """Yield tables of at most `batch` rows; only some batches of photos are ever in memory.

    Threads read and check photos while the networks judge earlier ones. `facts` are of all photos,
    or one mapping a photo. `lock` keeps two threads out of the networks at a time. `progress` gets
    the count after each batch. Raises UserError for wrong arguments, never for a photo.
    """
    total = _count(photos, batch)
    known: Iterable[Mapping[str, Any] | None]
    if facts is None or isinstance(facts, Mapping):
        patient_of(facts or {})  # wrong ones are wrong for all
        known = repeat(facts)
    elif type(facts) in {str, bytes} or not hasattr(facts, "__iter__"):
        raise UserError("the facts are no mapping; give one for all photos, or a list of mappings.")
    else:
        known = facts
        if total and isinstance(facts, Sequence) and len(facts) != total:
            raise UserError(f"{len(facts)} facts are given for {total} photos; give one for each.")
    pairs = with_facts(photos, known) if known is facts else zip(photos, known, strict=False)
    return _batches(predictor, pairs, (batch, total), progress, lock or Lock())


def _count(photos: Any, batch: Any) -> int:
    """Return how many photos came, 0: unknown. Raises UserError for what is no such argument."""
    if isinstance(photos, str | bytes | Path) or not hasattr(photos, "__iter__"):
        raise UserError("the photos are not a list; give a list, or use `diagnose` for one photo.")
    if not isinstance(batch, int) or batch < 1:
        raise UserError(f"batch is {batch!r}; give a whole number of photos, at least 1.")
    return len(photos) if isinstance(photos, Sized) else 0


def _batches(
    predictor: "Predictor",
    pairs: Iterable[tuple[Any, Any]],
    sizes: tuple[int, int],
    progress: Progress,
    lock: Lock,
) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    schema = schema_of(predictor)
    batch, total = sizes
    done, language = 0, spoken()

    def made(reads: Sequence[_Read]) -> "pa.RecordBatch":
        nonlocal done
        with lock:
            concluded = _concluded(predictor, [read.case for read in reads])
        with speaking(language):
            rows = [_row(predictor, *pair) for pair in zip(reads, concluded, strict=True)]
        done += len(rows)
        progress(STAGE, done, total)
        return pa.RecordBatch.from_pylist(rows, schema=schema)

    def read(pair: tuple[Any, Any]) -> _Read:
        with speaking(language):  # in a thread of its own
            return _read(predictor, *pair)

    reads = _batched(read, pairs, batch, _pixels)
    with closing(reads) as groups:
        for group in groups:
            yield made(group)


def _batched(
    read: Callable[[Any], Read], items: Iterable[Any], batch: int, pixels: Callable[[Read], int]
) -> Generator[list[Read], None, None]:
    """Yield what threads read, `batch` at a time, or fewer where photos are large."""
    threads = cpu_count()
    reading = work_ahead(
        read, items, threads=threads, ahead=batch + threads, size=pixels, most=MOST_PIXELS
    )
    with closing(reading) as reads:
        waiting: list[Read] = []
        size = 0
        for one in reads:
            waiting.append(one)
            size += pixels(one)
            if len(waiting) == batch or size > MOST_PIXELS:
                yield waiting
                waiting, size = [], 0
        if waiting:
            yield waiting


def _read(predictor: "Predictor", photo: Any, facts: Mapping[str, Any] | None) -> _Read:
    """Read one photo; whatever is wrong with it is in the result."""
    name = _text(os.fsdecode(photo)) if isinstance(photo, str | os.PathLike) else None
    sha256, gate = None, "file"
    try:
        data = photo_bytes(photo)
        sha256, gate = file_hash(data), "facts"
        case = Case((data,), patient_of(facts or {}))
        return _Read(name, sha256, check_case(case, predictor.needs, apart=True), "failed")
    except UserError as error:
        return _Read(name, sha256, error, gate)
    except Exception as error:  # its text may name a file, and a file a person
        log.error("a photo could not be read (%s)", type(error).__name__)
        return _Read(name, sha256, UserError(_FAILED), "failed")


def _text(text: str) -> str:
    """Return a text that a table can hold: the name of a file may be any bytes."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _pixels(read: _Read) -> int:
    if isinstance(read.case, UserError):
        return 0
    return sum(photo.decoded.pixels_HWC.size // 3 for photo in read.case.passed.values())


def _concluded(
    predictor: "Predictor", cases: Sequence[CheckedCase | UserError]
) -> Sequence[ConcludedCase | UserError | None]:
    """Return the cases' conclusions; None: an error of ours, which spoils it for no other case."""
    try:
        return conclude_cases(predictor, cases)[0]
    except Exception as error:
        if len(cases) > 1:
            return [one for case in cases for one in _concluded(predictor, [case])]
        log.error("a photo could not be judged (%s)", type(error).__name__)
        return [None]


def _row(
    predictor: "Predictor", read: _Read, concluded: ConcludedCase | UserError | None
) -> dict[str, Any]:
    row: dict[str, Any] = {"file": read.file, "sha256": read.sha256, **use_columns(predictor.use)}
    patient = read.case.case.patient if isinstance(read.case, CheckedCase) else Patient()
    if isinstance(read.case, CheckedCase):
        for seen in read.case.passed.values():
            row |= {"width": seen.decoded.width, "height": seen.decoded.height}
    row |= checklist_columns(patient)
    if concluded is None:
        return row | {"refused": "failed", "reason": unjudged(_FAILED)}
    if isinstance(concluded, UserError):
        gate = concluded.gate if isinstance(concluded, Refused) else read.gate
        return row | {"refused": gate, "reason": unjudged(_text(str(concluded)))}
    conclusion = concluded.drawn.conclusion
    ranked = conclusion.ranked
    alone = without_reassurance(conclusion.next_step, predictor.taxonomy.classes)
    step = with_checklist(alone, patient)
    rules = (("urgent", conclusion.urgent_risk), ("soon", conclusion.soon_risk))
    return row | {
        "model_urgency": alone.urgency if patient.answers else None,
        "urgency": "urgent" if step.advice == advice_met(patient) else step.urgency,
        "advice": step.advice,
        "decided_by": step.decided_by,
        "abstained": conclusion.abstained,
        "first": ranked[0][0].key,
        "probability": ranked[0][1],
        "set": [one.key for one, _, inside in ranked if inside] if conclusion.promise else None,
        **{f"{name}_{part}": getattr(rule, part) for name, rule in rules if rule for part in _RISK},
        "disagreement": conclusion.disagreement,
        "familiarity": concluded.drawn.ood_p_value,
        "remarks": " ".join(concluded.photos[0].remarks),
        **{f"probability_{one.key}": probability for one, probability, _ in ranked},
    }


@dataclass(frozen=True)
class PhotoFeatures:
    """What the networks make of a batch of photos, whose order is kept.

    A photo that cannot be read has rows of NaN. No gate is asked, no crop around a box is looked
    at, and no fact of the person counts.
    """

    logits: dict[str, NDArray[np.float64]]
    """Logits N x C by network, before any calibration: softmax gives its probabilities, averaged
    over its flipped and turned views; with one view they are the network's own output."""
    embeddings: NDArray[np.float32]
    """N x D: the pooled features of all networks side by side, of length 1 in all. Similar cases
    and the out-of-distribution check rest on them."""
    pooled: dict[str, NDArray[np.float32]]
    """What the last layer of each network sees, by its name, N x D of that network."""
    reasons: tuple[str, ...]
    """Why a photo has no features, in a sentence; empty where it has some."""


def iter_features(
    predictor: "Predictor",
    photos: Iterable[Any],
    batch: int = 32,
    progress: Progress = silent,
    lock: "Lock | None" = None,
) -> Iterator[PhotoFeatures]:
    """Yield the features of at most `batch` photos at a time. Raises UserError as `predict` does.

    Pixels are those that an answer rests on: decoded within the same limits, in the bundle's
    colours, at the same scale.
    """
    return _features(predictor, photos, (batch, _count(photos, batch)), progress, lock or Lock())


def _features(
    predictor: "Predictor",
    photos: Iterable[Any],
    sizes: tuple[int, int],
    progress: Progress,
    lock: Lock,
) -> Iterator[PhotoFeatures]:
    batch, total = sizes
    done = 0

    def read(photo: Any) -> "NDArray[np.uint8] | UserError":
        try:
            return photo_pixels(photo, predictor.needs.side, predictor.decoding)
        except UserError as error:
            return error

    groups = _batched(read, photos, batch, lambda one: getattr(one, "size", 0) // 3)
    with closing(groups) as reads:
        for group in reads:
            with lock:
                features = photo_features(predictor.ensemble, group)
            done += len(group)
            progress(STAGE, done, total)
            yield features


def photo_pixels(photo: Any, needed: int | None, decoding: Decoding) -> NDArray[np.uint8]:
    """Return a photo's pixels H x W x 3 by the one reader with limits. Raises UserError."""
    return open_photo(photo_bytes(photo), needed=needed, decoding=decoding, apart=True).pixels_HWC


def photo_features(
    ensemble: "Ensemble", reads: "Sequence[NDArray[np.uint8] | UserError]"
) -> PhotoFeatures:
    """Return the features of decoded photos; rows of NaN for those that could not be."""
    seen = [(n, one) for n, one in enumerate(reads) if not isinstance(one, UserError)]
    blank = np.zeros((MIN_SIDE, MIN_SIDE, 3), np.uint8)  # alone it says how wide rows are
    output = ensemble.predict_with_features([pixels for _, pixels in seen] or [blank])
    places = [n for n, _ in seen]

    def rows(made: NDArray[Any]) -> NDArray[Any]:
        whole = np.full((len(reads), made.shape[1]), np.nan, made.dtype)
        whole[places] = made[: len(places)]
        return whole

    logits, pooled = {}, {}
    for n, member in enumerate(ensemble.members):
        logits[member.name] = rows(output.log_MNC[n] + member.energies(output.maps[n])[:, None])
        trunk = ensemble.trunk_places.index(ensemble.trunks[n])
        pooled[member.name] = rows(output.pooled_MND[trunk])
    reasons = tuple(_text(str(one)) if isinstance(one, UserError) else "" for one in reads)
    return PhotoFeatures(logits, rows(output.embeddings_ND), pooled, reasons)
