"""An optional second opinion on image quality, by cleanvision; it flags and removes nothing."""

import contextlib
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.core.machine import require_extra
from skindx.core.progress import Progress, silent
from skindx.data.decisions import Flag, write_flags
from skindx.data.manifest import Record, read_manifest
from skindx.data.stored_image import read_image

if TYPE_CHECKING:
    from PIL.Image import Image

ISSUES = (
    "dark",
    "light",
    "blurry",
    "low_information",
    "odd_aspect_ratio",
    "odd_size",
    "grayscale",
    "near_duplicates",
)


def audit_quality(dataset: Path, progress: Progress = silent) -> Mapping[str, int]:
    """Flag what cleanvision finds odd (reason `quality`); return how many images for each issue.

    Its thresholds are its own, made for photographs of everything: many a sound dermoscopic
    image is dark or blurry to it. Raises UserError without the `audit` extra.
    """
    require_extra("audit", "cleanvision", purpose="the quality audit")
    from cleanvision import Imagelab

    records = read_manifest(dataset)
    images = _Images(dataset, records, progress)
    lab = Imagelab(torchvision_dataset=images)
    # It draws bars of its own on the error stream.
    with contextlib.redirect_stderr(io.StringIO()):
        lab.find_issues({issue: {} for issue in ISSUES}, n_jobs=1, verbose=False)
    table = lab.issues
    flags = [
        Flag(records[i].sha256, "quality", 1 - float(table[f"{issue}_score"][i]), _detail(issue))
        for issue in ISSUES
        for i in table.index[table[f"is_{issue}_issue"]]
    ]
    write_flags(dataset, flags, ["quality"])
    return dict(Counter(flag.detail for flag in flags).most_common())


def _detail(issue: str) -> str:
    return issue.replace("_", " ")


class _Images:
    """The images as cleanvision takes them from torchvision: decoded by us, never a file."""

    def __init__(self, dataset: Path, records: Sequence[Record], progress: Progress) -> None:
        self._dataset, self._records, self._progress = dataset, records, progress
        self._read = 0

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> "tuple[Image]":
        from PIL import Image

        image = Image.fromarray(read_image(self._dataset, self._records[index]))
        self._read += 1
        # Each image is asked for twice: for its own figures, and for its duplicates.
        self._progress("quality", min(self._read, 2 * len(self)), 2 * len(self))
        return (image,)
