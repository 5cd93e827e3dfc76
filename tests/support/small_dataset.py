"""A private dataset folder written by hand: images, manifest, recipe, taxonomy, no build."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paint_images import encode, paint

from skindx.data.box import Box
from skindx.data.labels import taxonomy_of
from skindx.data.layout import RECIPE, TAXONOMY, store_bytes
from skindx.data.manifest import SPLITS, Issue, Record, write_issues, write_manifest
from skindx.data.recipe import BuildSettings

LABELS = ("Acne", "Eczema")


@dataclass
class SmallDataset:
    """Images are added one by one; `write` makes the folder a dataset."""

    folder: Path
    records: list[Record] = field(default_factory=list)
    issues: list[Issue] = field(default_factory=list)

    def add(self, data: bytes | None = None, suffix: str = ".jpg", **said: Any) -> str:
        """Store an image; by default free ones, over all splits and classes."""
        number = len(self.records)
        sha256, path = store_bytes(self.folder, data or encode(paint(number), quality=90), suffix)
        fields: dict[str, Any] = {
            "width": 120,
            "height": 96,
            "label": LABELS[number % 2],
            "group": f"patient-{number}",
            "split": SPLITS[number // 2 % 4],
            "source": "https://site.example/",
            "source_url": f"https://site.example/{number}.jpg",
            "licence": "CC BY 4.0",
            "creator": "A. Painter",
            "retrieved": f"2025-03-{1 + number % 28:02d}T10:00:00+00:00",
            "perceptual_hash": f"{number:016x}",
        }
        self.records.append(Record(path=path, sha256=sha256, **{**fields, **said}))
        return sha256

    def write(self, **recipe: Any) -> Path:
        write_manifest(self.folder, self.records)
        write_issues(self.folder, self.issues)
        taxonomy_of(LABELS, "small")[0].save(self.folder / TAXONOMY)
        raw = {"name": "small", "sources": [{"kind": "folder", "path": "/home/dr.smith/pictures"}]}
        BuildSettings.parse({**raw, **recipe}).save(self.folder / RECIPE)
        return self.folder


def free_dataset(folder: Path, count: int = 16) -> SmallDataset:
    """Return a dataset of `count` publishable images; the second has a box, the third none."""
    small = SmallDataset(folder)
    for number in range(count):
        boxes: Sequence[Box] | None = {1: (Box(10, 20, 60, 70.5, drawn_by="me"),), 2: ()}.get(
            number
        )
        small.add(boxes=boxes, skin_type=number % 6 + 1)
    return small
