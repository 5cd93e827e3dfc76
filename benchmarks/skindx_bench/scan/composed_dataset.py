"""Images of composed photos as a dataset that `skindx train` reads."""

from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.data.box import Box
from skindx.data.layout import TAXONOMY, store_bytes
from skindx.data.manifest import Record, Split, write_issues, write_manifest
from skindx.taxonomy import Taxonomy

# H, W = image


def split_of(draw: float, below: Iterable[tuple[Split, float]]) -> Split:
    """Return the split of a draw in 0..1: the first whose bound lies above it, or test."""
    return next((name for name, bound in below if draw < bound), "test")


def composed_record(
    out: Path,
    image_HW3: NDArray[np.uint8],
    suffix: str,
    *,
    label: str,
    group: str,
    split: Split,
    boxes: tuple[Box, ...] | None = None,
    quality: int = 95,
) -> Record:
    """Store an image and return its line of the manifest; `quality` is a JPEG's."""
    flags = [cv2.IMWRITE_JPEG_QUALITY, quality] if suffix == ".jpg" else []
    image = cv2.cvtColor(image_HW3, cv2.COLOR_RGB2BGR)
    sha256, path = store_bytes(out, cv2.imencode(suffix, image, flags)[1].tobytes(), suffix)
    return Record(
        *(path, sha256, sha256[:16]),
        *(image_HW3.shape[1], image_HW3.shape[0]),
        label=label,
        group=group,
        split=split,
        boxes=boxes,
        source="composed",
    )


def write_dataset(out: Path, made: Iterable[Record], taxonomy: Taxonomy) -> list[Record]:
    """Write manifest, issues and taxonomy; return the records, equal images once."""
    unique = {record.sha256: record for record in made}
    records = sorted(unique.values(), key=lambda record: (record.label, record.sha256))
    write_manifest(out, records)
    write_issues(out, [])
    taxonomy.save(out / TAXONOMY)
    return records
