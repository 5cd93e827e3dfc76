"""Flags faces, intimate regions and text in a dataset's images, by small models from packages.

Body parts: NudeNet 3.4's `320n.onnx` (a YOLOv8n; AGPL-3.0, see NOTICE). Its own wrapper is not
used: with pixels in the order that it asks for it swaps red and blue, and found one face where the
right order finds two. Text: RapidOCR (PP-OCRv4). Both see decoded pixels, never a file, and never
the network. Dermoscopic images are never flagged as intimate regions: a dermatoscope shows a patch
of skin a centimetre wide, which the model takes for one.

A = anchors, K = body parts, S = side of the square that the model sees
"""

import ast
import importlib.util
import json
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count, require_extra, spawn_context
from skindx.core.progress import Progress, silent
from skindx.core.settings_base import Settings
from skindx.core.untrusted import MALFORMED
from skindx.data.decisions import PRIVATE, Flag, Reason, undecided, write_flags
from skindx.data.layout import stored_file
from skindx.data.manifest import read_image, read_manifest
from skindx.data.origin import origin_of
from skindx.data.report.dataset_report import renew_report
from skindx.imaging.decode import decode
from skindx.imaging.photo_gates import modality_features, shipped
from skindx.imaging.sandboxed_images import decode_limited
from skindx.workers.worker_process import exit_with_parent_process, limit_time

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


PARTS: dict[str, Reason] = {
    "FACE_FEMALE": "face",
    "FACE_MALE": "face",
    "ANUS_EXPOSED": "intimate",
    "BUTTOCKS_EXPOSED": "intimate",
    "FEMALE_BREAST_EXPOSED": "intimate",
    "FEMALE_GENITALIA_EXPOSED": "intimate",
    "MALE_GENITALIA_EXPOSED": "intimate",
}
"""Classes of the model that a person must see; the others (feet, bellies …) identify no person."""

SIDES = (320, 640)
"""The second side finds faces that are small in a large image; a small image has none."""
OVERLAP = 0.45
_TICKS = frozenset("1iIl|")
"""Characters that text recognition reads from the marks of a ruler."""


class PrivacySettings(Settings):
    """Scores from which a person must look; lower scores find more and ask for more looks.

    Measured on 2,039 dermoscopic images (180 pixels) and 855 augmented ones (640 pixels), all
    close-ups of lesions: faces at 0.25 flag 4 and 3 of them, all wrongly; text at 0.5 flags 2, both
    the word "mm" beside a ruler, and none of 150. Found: a face in each of three photographs of
    people, though not every face in them; of names and dates drawn 15 pixels high and turned all,
    at 11 pixels 97 %, at 8 pixels 79 %. Not found: three date stamps 5 pixels high that a person
    cannot read either. How many intimate regions are found is not known: there was no image to
    measure it on; `skindx bench data audit-alarms` counts what is flagged wrongly.
    """

    face: float = Field(default=0.25, gt=0, le=1)
    intimate: float = Field(default=0.5, gt=0, le=1)
    text: float = Field(default=0.5, gt=0, le=1)


@dataclass(frozen=True, slots=True)
class Sighting:
    """One finding in one image; `detail` holds what and where, never the text itself."""

    reason: Reason
    score: float
    detail: str


def version(settings: PrivacySettings) -> str:
    """Return what decides the answers: the models' packages and the thresholds."""
    _require_models()
    packages = [f"{name} {metadata.version(name)}" for name in ("nudenet", "rapidocr-onnxruntime")]
    return ", ".join([*packages, *(f"{key} {value:g}" for key, value in settings)])


class PrivacyDetector:
    """Both models, loaded once at most, on one thread each: many processes may hold one."""

    def __init__(self, settings: PrivacySettings) -> None:
        """Load the model of bodies. Raises UserError without the `audit` extra."""
        _require_models()
        self._settings = settings
        self._session = _session()
        names = ast.literal_eval(self._session.get_modelmeta().custom_metadata_map["names"])
        self._parts = [names[number] for number in range(len(names))]

    @cached_property
    def _read(self) -> Any:
        return _reader()

    def detect(self, pixels_HWC: NDArray[np.uint8]) -> list[Sighting]:
        """Return what a person should see before this image is given away."""
        return [*self.bodies(pixels_HWC), *self._texts(pixels_HWC)]

    def bodies(self, pixels_HWC: NDArray[np.uint8]) -> list[Sighting]:
        """Return faces and intimate regions, whatever the modality."""
        detections: list[tuple[str, float, list[float]]] = []
        for side in SIDES:
            if side > SIDES[0] and max(pixels_HWC.shape[:2]) <= SIDES[0]:
                continue
            square_SS3, scale, corner_xy = _square(pixels_HWC, side)
            blob = square_SS3.transpose(2, 0, 1)[None].astype(np.float32) / 255
            rows_AX = self._session.run(None, {"images": blob})[0][0].T
            scores_AK = rows_AX[:, 4:]
            for anchor, part in zip(*np.nonzero(scores_AK >= self._least), strict=True):
                name, score = self._parts[part], float(scores_AK[anchor, part])
                if name in PARTS and score >= getattr(self._settings, PARTS[name]):
                    centre, size = rows_AX[anchor, :2], rows_AX[anchor, 2:4]
                    box = np.concatenate([centre - size / 2, centre + size / 2])
                    detections.append(
                        (name, score, ((box - np.tile(corner_xy, 2)) / scale).tolist())
                    )
        return _best(detections, pixels_HWC.shape[:2])

    @property
    def _least(self) -> float:
        return min(self._settings.face, self._settings.intimate)

    def _texts(self, pixels_HWC: NDArray[np.uint8]) -> list[Sighting]:
        bgr_HWC = np.ascontiguousarray(pixels_HWC[..., ::-1])
        # Its own thresholds are low here: ours decides.
        lines, _ = self._read(bgr_HWC, text_score=0.0, box_thresh=0.3)
        sightings = []
        for corners, text, score in lines or ():
            if float(score) >= self._settings.text and is_text(text):
                (x1, y1), (x2, y2) = np.min(corners, axis=0), np.max(corners, axis=0)
                where = _where((x1, y1, x2, y2))
                sightings.append(Sighting("text", float(score), f"{len(text)} characters {where}"))
        return sightings


def is_text(line: str) -> bool:
    """Tell writing from what the reader sees in rulers, hairs and round spots.

    A ruler's ticks are read as 1, i or l, its numbers have two digits, and a spot is read as one
    Chinese character.
    """
    characters = [letter for letter in line if letter.isalnum() and letter not in _TICKS]
    return len(characters) >= (3 if line.isascii() else 2)


def _best(
    detections: Sequence[tuple[str, float, Sequence[float]]], shape_hw: tuple[int, int]
) -> list[Sighting]:
    """Drop boxes of the same kind that overlap a better one; both sides see the same face."""
    import cv2

    sightings = []
    for reason in dict.fromkeys(PARTS.values()):
        ours = [detection for detection in detections if PARTS[detection[0]] == reason]
        xywh = [(x1, y1, x2 - x1, y2 - y1) for _, _, (x1, y1, x2, y2) in ours]
        scores = [score for _, score, _ in ours]
        for index in cv2.dnn.NMSBoxes(xywh, scores, 0.0, OVERLAP) if ours else ():
            name, score, box = ours[index]
            height, width = shape_hw
            inside = np.clip(box, 0, (width, height, width, height))
            what = name.lower().replace("_", " ")
            sightings.append(Sighting(reason, score, f"{what} {_where(inside.tolist())}"))
    return sightings


def _where(box: Sequence[float]) -> str:
    x1, y1, x2, y2 = (round(float(value)) for value in box)
    return f"at {x1},{y1} to {x2},{y2}"


def _square(
    pixels_HWC: NDArray[np.uint8], side: int
) -> tuple[NDArray[np.uint8], float, NDArray[np.float32]]:
    """Fit the image into a grey square; return it, the scale, and the image's corner in it."""
    import cv2

    height, width = pixels_HWC.shape[:2]
    scale = side / max(height, width)
    size_wh = (max(1, round(width * scale)), max(1, round(height * scale)))
    interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    fitted = cv2.resize(pixels_HWC, size_wh, interpolation=interpolation)
    left, top = (side - size_wh[0]) // 2, (side - size_wh[1]) // 2
    square_SS3 = np.full((side, side, 3), 114, np.uint8)
    square_SS3[top : top + size_wh[1], left : left + size_wh[0]] = fitted
    return square_SS3, scale, np.array([left, top], np.float32)


def _session() -> "InferenceSession":
    import onnxruntime

    package = importlib.util.find_spec("nudenet")
    assert package is not None
    assert package.origin is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    model = Path(package.origin).parent / "320n.onnx"
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def _reader() -> Any:
    from rapidocr_onnxruntime import RapidOCR

    reader = RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1)
    # The import gives its loggers handlers and the level DEBUG.
    for name in ("RapidOCR", "OrtInferSession"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return reader


def _require_models() -> None:
    modules = ("nudenet", "rapidocr_onnxruntime", "onnxruntime")
    require_extra("audit,detect", *modules, purpose="the privacy audit")


JOURNAL = "audit.jsonl"
"""Journal with one line an image, from which a killed audit continues."""

_FEW = 16
"""Number of images up to which starting other processes takes longer than the audit itself."""
_LIMIT_S = 60
"""Seconds that a process may take to decode and examine an image."""


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """Result of an audit; an image may be flagged for several reasons."""

    images: int
    examined: int
    """Images that this run examined; earlier runs have examined the others."""
    dermoscopic: int
    """Images with intimate regions by the model, which a dermatoscope cannot show."""
    flagged: Mapping[str, int]
    """Reason -> images."""
    waiting: int
    """Flagged images without a decision."""


def audit(
    dataset: Path, settings: PrivacySettings, *, workers: int = 0, progress: Progress = silent
) -> AuditSummary:
    """Flag faces, text and intimate regions in DATASET/flags.parquet.

    An image that this version has seen with these thresholds is not examined again; a stopped
    audit goes on where it was. `workers` 0 takes all cores. Raises UserError without the `audit`
    extra and for an image that cannot be read.
    """
    by = version(settings)
    records = read_manifest(dataset)
    paths = {record.sha256: record.path for record in records}
    seen = {sha: results for sha, results in _read_journal(dataset, by).items() if sha in paths}
    todo = [sha256 for sha256 in sorted(paths) if sha256 not in seen]
    progress("look", len(seen), len(paths))  # loading the models takes a while
    images = [stored_file(dataset, paths[sha256]) for sha256 in todo]
    results = _detect_all(images, settings, workers or cpu_count())
    with _journal(dataset).open("a", encoding="utf-8") as journal:
        for sha256, sightings in zip(todo, results, strict=True):
            seen[sha256] = sightings
            line = {
                "sha256": sha256,
                "by": by,
                "found": [asdict(sighting) for sighting in sightings],
            }
            # One write a line: a kill tears the last line at most.
            journal.write(json.dumps(line) + "\n")
            journal.flush()
            progress("look", len(seen), len(paths))
    stated = origin_of(dataset, records).modality
    close_ups = {
        record.sha256
        for record in records
        if any(sighting.reason == "intimate" for sighting in seen[record.sha256])
        and is_dermoscopic(read_image(dataset, record), record.modality or stated)
    }
    flags = [
        Flag(sha256, sighting.reason, sighting.score, sighting.detail)
        for sha256, sightings in seen.items()
        for sighting in sightings
        if sighting.reason != "intimate" or sha256 not in close_ups
    ]
    write_flags(dataset, flags, PRIVATE)
    renew_report(dataset)
    reasons = Counter(reason for _, reason in {(flag.sha256, flag.reason) for flag in flags})
    waiting = len(undecided(dataset).keys() & paths.keys())
    counts = len(paths), len(todo), len(close_ups)
    return AuditSummary(*counts, dict(reasons.most_common()), waiting)


def is_dermoscopic(pixels_HW3: NDArray[np.uint8], stated: str) -> bool:
    """Tell whether an image was surely taken through a dermatoscope.

    Where its header or its dataset states so, an image that looks as clinical as the middle
    clinical image does is none all the same; where nothing or several modalities are stated, the
    image must look so.
    """
    if stated == "clinical":
        return False
    network = shipped()
    score = float(network.score(modality_features(pixels_HW3)[None])[0])
    if stated == "dermoscopic":
        return score < network.medians["clinical"]
    return score <= network.medians["dermoscopic"] / 2


def _journal(dataset: Path) -> Path:
    return dataset / JOURNAL


def _read_journal(dataset: Path, by: str) -> dict[str, list[Sighting]]:
    """Return what `by` has seen: SHA-256 -> sightings; a torn last line is cut off."""
    path = _journal(dataset)
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    seen: dict[str, list[Sighting]] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            if row["by"] == by:
                seen[row["sha256"]] = [Sighting(**sighting) for sighting in row["found"]]
        except MALFORMED:
            raise UserError(
                f"line {number} of {path} is damaged; delete this file and run `skindx audit` "
                "again."
            ) from None
    return seen


def _detect_all(
    paths: Sequence[Path], settings: PrivacySettings, workers: int
) -> Iterator[list[Sighting]]:
    """Yield each image's sightings in order, from `workers` processes of one thread each."""
    if workers == 1 or len(paths) <= _FEW:
        _start(settings)
        yield from map(_detect, paths)
        return
    examiners = [_Examiner(settings) for _ in range(min(workers, len(paths)))]
    free: SimpleQueue[_Examiner] = SimpleQueue()
    for one in examiners:
        free.put(one)

    def examine(path: Path) -> list[Sighting]:
        one = free.get()
        try:
            return one.detect(path)
        finally:
            free.put(one)

    pool = ThreadPoolExecutor(len(examiners))
    try:
        yield from pool.map(examine, paths)
    finally:
        # Also after Ctrl-C: images that wait are not examined first.
        pool.shutdown(wait=False, cancel_futures=True)
        for one in examiners:
            one.process.kill()
            one.process.join()


class _Examiner:
    """A process that examines images; it answers in JSON, and nothing of it is unpickled."""

    def __init__(self, settings: PrivacySettings) -> None:
        context = spawn_context()
        self._ours, theirs = context.Pipe()
        self.process = context.Process(target=_examine, args=(settings, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def detect(self, path: Path) -> list[Sighting]:
        """Return an image's sightings."""
        try:
            self._ours.send_bytes(os.fsencode(path))
            answer = json.loads(self._ours.recv_bytes())
        except (EOFError, OSError):
            self.process.join()
            if self.process.exitcode == -signal.SIGALRM:
                raise UserError(
                    f"the check of {path} took longer than {_LIMIT_S} s; run `skindx audit` again "
                    "with fewer `--workers`, or remove the image with `skindx remove`."
                ) from None
            raise UserError(
                f"the audit process was killed at {path}, probably for lack of memory; run "
                "`skindx audit` again with `--workers 1`."
            ) from None
        if isinstance(answer, str):
            raise UserError(answer)
        return [Sighting(**one) for one in answer]


def _examine(settings: PrivacySettings, requests: Connection) -> None:
    _start(settings)
    while True:
        path = Path(os.fsdecode(requests.recv_bytes()))
        limit_time(_LIMIT_S)  # so that this process need not start one more that decodes
        try:
            answer = json.dumps([asdict(one) for one in _detect(path, decode)])
        except UserError as error:
            answer = json.dumps(str(error))
        limit_time(0)
        requests.send_bytes(answer.encode())


_detector: PrivacyDetector | None = None
"""Detector of this process, whose models are loaded once."""


def _start(settings: PrivacySettings) -> None:
    global _detector  # noqa: PLW0603
    exit_with_parent_process()
    _detector = PrivacyDetector(settings)


def _detect(
    path: Path, decode: Callable[[bytes], NDArray[np.uint8]] = decode_limited
) -> list[Sighting]:
    assert _detector is not None
    try:
        pixels_HWC = decode(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); run `skindx build` again.") from None
    return _detector.detect(pixels_HWC)
