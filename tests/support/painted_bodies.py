"""A wide photo with moles, painted, and the result of a scan of it."""

from datetime import UTC, datetime

import cv2
import numpy as np
from found_lesions import alike, lesion
from numpy.typing import NDArray

from skindx.data.origin import ImageOrigin
from skindx.data.synthetic.painter import bare_skin
from skindx.diagnosis.record import Source
from skindx.models.detector import SizeRecall
from skindx.scan.outputs.scan_result import ScanResult
from skindx.scan.scanned_lesions import ScannedLesion, ScannedPhoto
from skindx.taxonomy import SkinClass

CLASSES = (
    SkinClass(key="nevus", name="Melanocytic naevus", icd10="D22", urgency="routine"),
    SkinClass(key="melanoma", name="Melanoma", icd10="C43", urgency="urgent"),
    SkinClass(key="keratosis", name="Seborrhoeic keratosis", icd10="L82", urgency="routine"),
)
SOURCE = Source(
    name="demo",
    created="2026-01-02T03:04:05",
    version="12" * 32,
    digest="34" * 32,
    calibrated=True,
    taxonomy="three",
    review="not clinically reviewed",
)
WHEN = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
PHOTOS = ImageOrigin(painted="none", modality="clinical")
"""What the detector of these scans was measured on."""


def size_recall(least_px: float, most_px: float | None, found: int, lesions: int) -> SizeRecall:
    return SizeRecall(least_px=least_px, most_px=most_px, found=found, lesions=lesions)


BANDS = (
    size_recall(12, 24, 61, 80),
    size_recall(24, 48, 88, 93),
    size_recall(48, None, 70, 71),
)


def paint(
    lesions: list[ScannedLesion], size_wh: tuple[int, int] = (900, 1200), seed: int = 0
) -> NDArray[np.uint8]:
    """Paint each lesion into skin, in its own colour and about as large as its box."""
    rng = np.random.default_rng(seed)
    image = bare_skin(rng, size_wh[::-1])
    for found in lesions:
        box = found.box
        ink = np.zeros(image.shape[:2], np.float32)
        size = (box.x2 - box.x1, box.y2 - box.y1)
        centre = ((box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2)
        axes = (0.42 * size[0], 0.42 * size[1])
        outline = cv2.ellipse2Poly(
            tuple(round(value) for value in centre),
            tuple(max(1, round(value)) for value in axes),
            0, 0, 360, 12,
        )  # fmt: skip
        outline = outline + np.rint(rng.normal(0, 0.05 * size[0], outline.shape)).astype(np.int32)
        cv2.fillPoly(ink, [outline], 1.0, cv2.LINE_AA)
        ink = cv2.GaussianBlur(ink, (0, 0), 0.06 * size[0])[..., None]
        darker = np.clip(1 + np.array(found.colour_lab)[0] / 30, 0.15, 1) * np.array(
            [0.9, 0.72, 0.7]
        )
        image = image * (1 - ink) + image * darker.astype(np.float32) * ink
    image += rng.normal(0, 0.012, image.shape)
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)


def lesions_of(
    count: int, seed: int = 0, size_wh: tuple[int, int] = (900, 1200)
) -> list[ScannedLesion]:
    """Return ordinary lesions and an ugly duckling, none over another."""
    rng = np.random.default_rng(seed)
    placed: list[ScannedLesion] = []
    for found in alike(rng, 40 * count, 1000):
        size = 0.6 * (found.box.x2 - found.box.x1)
        x, y = rng.uniform(60, size_wh[0] - 60), rng.uniform(60, size_wh[1] - 60)
        if any(np.hypot(x - one.box.x1, y - one.box.y1) < 70 for one in placed):
            continue
        placed.append(
            lesion(
                x, y, size,
                risk=float(rng.uniform(0.001, 0.06)),
                embedding=found.embedding_D, colour=found.colour_lab,
                score=float(rng.uniform(0.5, 0.99)), ood=float(rng.uniform(0.02, 1)),
                possible=("nevus", "keratosis")[: int(rng.integers(1, 3))],
            )
        )  # fmt: skip
        if len(placed) == count - 1:
            break
    odd = lesion(
        size_wh[0] / 2, size_wh[1] / 3, 74, risk=0.41, urgent=True, colour=(-28, 2, -6),
        embedding=(0.2, 0, 1, 0, 0, 0), possible=("nevus", "melanoma"),
    )  # fmt: skip
    apart = [
        one for one in placed if abs(one.box.x1 - odd.box.x1) + abs(one.box.y1 - odd.box.y1) > 120
    ]
    return [*apart, odd]


def scan_of(
    *found: list[ScannedLesion], size_wh: tuple[int, int] = (900, 1200), **more: object
) -> ScanResult:
    """Return the result of a scan that found these lesions, a photo for each list."""
    photos = tuple(
        ScannedPhoto(
            f"back-{place}.jpg", f"{place + 1:02x}" * 32, *size_wh, 48, 12, 0, tuple(one), 0.21
        )
        for place, one in enumerate(found)
    )
    values: dict[str, object] = {"recall": BANDS, "measured_on": PHOTOS, "miss_rate": 0.05} | more
    return ScanResult(photos, CLASSES, SOURCE, WHEN, **values)  # type: ignore[arg-type]
