"""A lesion detector that stands alone: a folder with its network, its statement and its promise.

`detector.json` lists the SHA-256 of the network's YAML and tensors, which are checked before either
is read; there is no pickle. A scan takes it in the place of a bundle's own detector.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.untrusted import MEGABYTE, read_json, read_plain
from skindx.metrics import Interval, proportion_interval
from skindx.models.detector import (
    MODEL_WEIGHTS,
    MODEL_YAML,
    Detector,
    DetectorSpec,
    load_detector,
)
from skindx.texts.catalogue import joined, text

INDEX = "detector.json"
_MOST_BYTES = 64 * MEGABYTE


class PlantedRecall(Settings):
    """How many of the lesions that were planted on composed photos were listed by a scan."""

    photos: int = Field(ge=1)
    lesions: int = Field(ge=1)
    found: int = Field(ge=0)
    least_px: int = Field(ge=1)
    most_px: int = Field(ge=1)
    """Of a lesion's longer side."""

    @model_validator(mode="after")
    def _at_most_all(self) -> "PlantedRecall":
        if self.found > self.lesions:
            raise ValueError(f"found={self.found} is more than lesions={self.lesions}")
        return self

    @property
    def recall(self) -> Interval:
        """Return the share that was found, with its exact 95 % interval."""
        return proportion_interval(self.found / self.lesions, self.lesions)

    @property
    def promise(self) -> str:
        """Return what a scan may promise by it: a lower bound, for that kind of photo alone."""
        found = {"found": self.found, "lesions": self.lesions, "photos": self.photos}
        least = math.floor(100 * self.recall.low) / 100  # rounded up it would not be a bound
        return joined(
            text("scan_planted", **found, least=self.least_px, most=self.most_px),
            text("scan_planted_promise", least=least),
            text("scan_planted_else"),
            text("scan_missed_unknown"),
        )


class ShippedIndex(Settings):
    """Contents of detector.json."""

    format: Literal[1] = 1
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    spec: DetectorSpec
    learned_from: str = Field(max_length=600)
    licence: str = Field(max_length=200)
    planted: PlantedRecall | None = None
    """None: it was not measured yet."""
    files: dict[str, str]
    """SHA-256 of the network's YAML and tensors by name."""


@dataclass(frozen=True)
class ShippedDetector:
    """A checked detector on disk."""

    path: Path
    index: ShippedIndex
    digest: str
    """SHA-256 of its index, which holds the hashes of its files."""

    def load(self) -> Detector:
        """Rebuild the network. Raises UserError without ultralytics."""
        return load_detector(self.path, self.index.spec)


def open_shipped(folder: Path, expect: str | None = None) -> ShippedDetector:
    """Check a detector's folder; `expect` is the digest that it must have. Raises UserError."""
    file = folder / INDEX
    if not file.is_file():
        raise UserError(
            f"{folder} has no {INDEX}, so it is no detector for scans; give a folder such as "
            "models/lesion-detector."
        )
    digest = sha256_file(file) if len(read_plain(file)) else ""
    index = ShippedIndex.parse(read_json(file), str(file), expand=False)
    for name in (MODEL_YAML, MODEL_WEIGHTS):
        read_plain(folder / name, _MOST_BYTES)  # a plain file of bounded length
        if sha256_file(folder / name) != index.files.get(name):
            raise UserError(f"{folder / name} is not the file that {INDEX} names; copy it again.")
    if expect is not None and digest != expect:
        raise UserError(
            f"the detector in {folder} is not the one that this scan began with; give the scan "
            "another --out."
        )
    return ShippedDetector(folder, index, digest)
