"""How often fingerprints recognise copies of an image, and how often they link strangers.

Copies are made of images of a dataset, whose fingerprints they are compared with. Strangers are the
images of other datasets, which share no picture with it, and images of other lesions of the same
dataset. Its groups hold the copies that the build verified, so what is linked across groups is
false, or a copy that the build missed: the share is an upper bound. The thresholds were chosen
before, on 120 other draws of images of HAM10000; a few of them may be drawn here again.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.data.copies.describe import Description, describe_bytes
from skindx.data.layout import store_bytes, stored_file
from skindx.data.manifest import Record, read_manifest, write_manifest
from skindx.data.synthetic.painter import encode_jpeg
from skindx.imaging.decode import decode
from skindx.metrics import share_interval
from skindx.models.copy_recognition import CopyRecognition
from skindx.models.fingerprints import Fingerprints, described
from skindx_bench.data.second_photos import painted_photos
from skindx_bench.harness.result import Figure, Result

HEADINGS = ("value", "95 % interval")
SMALLEST = ("copies=2", "others=2", "painted=6")

Pixels = NDArray[np.uint8]


class Config(Settings):
    """The images."""

    dataset: Path | None = None
    """A folder that `skindx build` wrote, whose images have fingerprints; none: painted ones."""
    strangers: tuple[Path, ...] = ()
    """Folders of other datasets."""
    copies: int = Field(200, ge=1)
    """Images that copies are made of, one a group."""
    others: int = Field(1000, ge=0)
    """Images of the dataset, one a group, that are compared with the others' fingerprints; and as
    many of each folder of strangers at most."""
    painted: int = Field(60, ge=2)
    """Images that are painted without a dataset."""
    seed: int = 0


def _cropped(pixels_HW3: Pixels, share: float, random: np.random.Generator) -> Pixels:
    """Return a part that has 1 - share of each side, anywhere."""
    size_2 = np.array(pixels_HW3.shape[:2])
    kept_2 = (size_2 * (1 - share)).astype(int)
    top, left = random.integers(0, size_2 - kept_2 + 1)
    return pixels_HW3[top : top + kept_2[0], left : left + kept_2[1]]


KINDS: dict[str, tuple[Callable[[Pixels, np.random.Generator], Pixels], int]] = {
    "encoded again at quality 60": (lambda image, _: image, 60),
    "resized to 180 x 180": (
        lambda image, _: np.asarray(cv2.resize(image, (180, 180), interpolation=cv2.INTER_AREA)),
        80,
    ),
    "mirrored": (lambda image, _: image[:, ::-1], 85),
    "a quarter turn": (lambda image, _: np.rot90(image), 85),
    "cropped by 10 %": (lambda image, random: _cropped(image, 0.1, random), 85),
    "cropped by 20 %": (lambda image, random: _cropped(image, 0.2, random), 85),
}
"""Change of the pixels, and quality of the JPEG that is made of them."""


@dataclass(frozen=True)
class _Images:
    """Images whose fingerprints are made."""

    folder: Path
    records: list[Record]
    prints: Fingerprints

    @cached_property
    def recognition(self) -> CopyRecognition:
        """The fingerprints, made ready once."""
        return CopyRecognition(self.prints)

    def links(self, compared: Iterator[tuple[str, Description]]) -> dict[str, set[str]]:
        """Return for each compared name the images that know it."""
        links: dict[str, set[str]] = {}
        for copy in self.recognition.recognise(compared):
            links.setdefault(copy.sha256, set()).add(copy.of)
        return links


def run(settings: Config) -> Result:
    """Make copies and compare them and the strangers. Raises UserError for no dataset."""
    with TemporaryDirectory(prefix="skindx-leak-") as temporary:
        folder = settings.dataset or _painted(Path(temporary), settings.painted, settings.seed)
        records = read_manifest(folder)
        images = _Images(folder, records, Fingerprints.from_images(described(folder, records)))
        figures = {"fingerprints": Figure(len(images.prints), "images", 1, (0, 0))}
        figures |= _recall(images, settings.copies, settings.seed)
        figures |= _false(images, settings)
    return Result(
        "leak",
        figures,
        notes=(
            f"Fingerprints of {len(images.prints):,} images"
            f"{'' if settings.dataset else ', painted'}; copies of at most {settings.copies} of "
            "them.",
        ),
        headings=HEADINGS,
    )


def _ordered(records: Sequence[Record], seed: int) -> list[Record]:
    """Return one record of each group, in the order of a hash of the group."""

    def drawn(record: Record) -> tuple[bytes, str]:
        return hashlib.sha256(f"{seed} {record.group}".encode()).digest(), record.sha256

    return list({record.group: record for record in sorted(records, key=drawn)}.values())


def _recall(images: _Images, count: int, seed: int) -> dict[str, Figure]:
    chosen = _ordered(images.records, seed)[:count]
    random = np.random.default_rng(seed)
    figures = {}
    for kind, (change, quality) in KINDS.items():

        def copies(
            change: Callable[[Pixels, np.random.Generator], Pixels] = change, quality: int = quality
        ) -> Iterator[tuple[str, Description]]:
            for record in chosen:
                pixels = decode(stored_file(images.folder, record.path).read_bytes())
                changed = np.ascontiguousarray(change(pixels, random))
                yield record.sha256, describe_bytes(encode_jpeg(changed, quality))

        links = images.links(copies())
        hits = [record.sha256 in links.get(record.sha256, ()) for record in chosen]
        interval = share_interval(hits, [record.group for record in chosen])
        figures[f"recall of {kind}"] = Figure.of(interval, "", len(chosen))
    return figures


def _false(images: _Images, settings: Config) -> dict[str, Figure]:
    group = {record.sha256: record.group for record in images.records}
    chosen = _ordered(images.records, settings.seed)[: settings.others]
    figures = {}
    if chosen:
        links = images.links(described(images.folder, chosen))
        hits = [
            any(group[other] != record.group for other in links.get(record.sha256, ()))
            for record in chosen
        ]
        interval = share_interval(hits, [record.group for record in chosen])
        figures["linked to another group"] = Figure.of(interval, "", len(chosen))

    def chosen_of(folder: Path) -> list[Record]:
        return _ordered(read_manifest(folder), settings.seed)[: settings.others]

    strangers = [(folder, record) for folder in settings.strangers for record in chosen_of(folder)]
    if strangers:
        linked: set[str] = set()
        for folder in settings.strangers:
            linked |= images.links(described(folder, chosen_of(folder))).keys()
        hits = [record.sha256 in linked for _, record in strangers]
        interval = share_interval(
            hits, [f"{folder} {record.group}" for folder, record in strangers]
        )
        figures["strangers linked"] = Figure.of(interval, "", len(strangers))
    return figures


def _painted(folder: Path, count: int, seed: int) -> Path:
    records = []
    for photo in painted_photos(0, count, seed):
        sha256, path = store_bytes(folder, photo.data, ".jpg")
        height, width = decode(photo.data).shape[:2]
        records.append(Record(path, sha256, "0", width, height, photo.label, photo.lesion, "train"))
    write_manifest(folder, records)
    return folder
