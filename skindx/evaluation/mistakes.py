"""The most confident mistakes, which a reader should see first."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.data.manifest import Record
from skindx.models.ensemble import Prediction
from skindx.taxonomy import SkinClass

SHOWN = 12
_SIDE = 176  # pixels; shown at half of it, so that it is sharp on a fine screen and on paper


@dataclass(frozen=True, slots=True)
class Mistake:
    """One image named wrongly, with a small JPEG of it."""

    path: str
    truth: str
    predicted: str
    confidence: float
    jpeg: bytes


def worst_mistakes(
    records: Sequence[Record],
    predictions: Sequence[Prediction],
    classes: Sequence[SkinClass],
    read: Callable[[Record], NDArray[np.uint8]],
) -> list[Mistake]:
    """Return up to 12 wrong answers, most confident first, at most one a group.

    `read` returns an image's pixels_HWC.
    """
    ranked = sorted(
        zip(records, predictions, strict=True), key=lambda pair: -pair[1].probabilities_C.max()
    )
    names = {skin_class.key: skin_class.name for skin_class in classes}
    mistakes: list[Mistake] = []
    seen: set[str] = set()
    for record, prediction in ranked:
        predicted = classes[int(prediction.probabilities_C.argmax())]
        if predicted.key == record.label or record.group in seen or len(mistakes) == SHOWN:
            continue
        seen.add(record.group)
        confidence = float(prediction.probabilities_C.max())
        jpeg = _thumbnail(read(record))
        mistakes.append(Mistake(record.path, names[record.label], predicted.name, confidence, jpeg))
    return mistakes


def _thumbnail(pixels_HWC: NDArray[np.uint8]) -> bytes:
    from PIL import Image, ImageOps

    thumbnail = ImageOps.fit(Image.fromarray(pixels_HWC), (_SIDE, _SIDE))
    buffer = io.BytesIO()
    thumbnail.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
