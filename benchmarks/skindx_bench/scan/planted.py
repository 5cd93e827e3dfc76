"""The shipped detector before planted lesions: the photos and the rule stand before its training.

The first ten photos judged the first weights. Weights that were made after that look are judged on
a second ten, by the same rule with another seed, and the first ten are looked at again beside them.

Each photo shows exactly so many real lesions of the split's own side, on real skin of that side,
at 20 to 200 pixels, log-uniform. A lesion is found if a listed box overlaps its box by an IoU of
0.5; it is listed once if no second listed box lies at its place.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.atomic_files import sha256_file, write_json
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json
from skindx.models.detector import MODEL_WEIGHTS, MODEL_YAML, BatchDetector, DetectorSpec
from skindx.models.shipped_detector import (
    INDEX,
    PlantedRecall,
    ShippedDetector,
    ShippedIndex,
    open_shipped,
)
from skindx.scan.tile_search import ScanSettings
from skindx_bench.harness.result import MEANS, Figure, Result
from skindx_bench.scan.compose import Composite, compose
from skindx_bench.scan.material import Material
from skindx_bench.scan.outlined import read_outlined
from skindx_bench.scan.photos import Ours, write_photo
from skindx_bench.scan.scoring import Photo, share

SIZES = (20.0, 200.0)
"""Pixels of a lesion's longer side."""
SHIPPED = Path("models/lesion-detector")
_BANDS = (20, 24, 48, 96, 201)
_BESIDE = ("planted_recall", "planted_listed_once", "planted_precision")
_ATTEMPTS = 200
"""Photos of one number that are composed until one has exactly the lesions that were asked."""
Looks = Literal["first", "second"]
_SEEDS = {
    "val": {"first": 20261129, "second": 20261128},
    "test": {"first": 20261130, "second": 20261201},
}

SMALLEST = ("looks=first", "photos=1", "width=640", "height=480", "lesions=3", "sizes_most=60")


class Config(Settings):
    """The photos; all defaults but the folders are the rule itself."""

    detector: Path | None = None
    """A folder with a detector; none: the shipped one."""
    ham: Path | None = None
    """HAM10000 with masks and index.csv: its lesions and its skin alone judge; none: synthetic."""
    side: Literal["val", "test"] = "test"
    """val: other lesions of HAM10000, on which threshold and epochs may be chosen."""
    looks: Looks | Literal["both"] = "both"
    """Which photos; both: the second ones give the figures, and the first ones stand beside them.
    They show lesions of the same side, so that a few lesions are on both."""
    photos: int = Field(10, ge=1)
    width: int = Field(4000, ge=256)
    height: int = Field(3000, ge=256)
    lesions: int = Field(20, ge=1)
    """On each photo, exactly."""
    sizes_most: float = Field(SIZES[1], gt=SIZES[0])
    kept: Path | None = None
    """A folder that keeps the composed photos between runs, which takes minutes to fill."""
    confidence: float | None = Field(None, ge=0, lt=1)
    """Least score of a box; none: the detector's own."""


def planted(config: Config, material: Material, look: Looks) -> Iterator[Composite]:
    """Yield the photos: of each number the first that has all its lesions."""
    for number in range(config.photos):
        for attempt in range(_ATTEMPTS):
            composite = compose(
                *(config.width, config.height, config.lesions, material),
                np.random.default_rng((_SEEDS[config.side][look], number, attempt)),
                sizes=(SIZES[0], config.sizes_most),
                blendings=("poisson", "feathered"),
                painted=0.0 if material.lesions else 1.0,
                painted_skin=0.0,
            )
            if len(composite.boxes) == config.lesions:
                yield composite
                break
        else:
            raise UserError(
                f"no photo of {config.width} x {config.height} pixels has room for "
                f"{config.lesions} lesions; set a larger photo or fewer lesions."
            )


def written(
    config: Config, folder: Path, look: Looks
) -> Iterator[tuple[Path, NDArray[np.float64]]]:
    """Yield the files of the photos and their true boxes, K x 4; what is missing is composed."""
    paths = [folder / f"{config.side}-{look}-{number}.jpg" for number in range(config.photos)]
    if not all(path.with_suffix(".npy").exists() for path in paths):
        for path, composite in zip(paths, planted(config, material_of(config), look), strict=True):
            write_photo(path, composite)
            boxes = [(box.x1, box.y1, box.x2, box.y2) for box in composite.boxes]
            np.save(path.with_suffix(".npy"), np.array(boxes))
    for path in paths:
        yield path, np.load(path.with_suffix(".npy"), allow_pickle=False)


def material_of(config: Config) -> Material:
    """Return the lesions and the skin of the side; empty, all is painted."""
    return read_outlined(config.ham, config.side) if config.ham else Material()


def run(config: Config) -> Result:
    """Compose the photos, scan them, and count. Raises UserError without a detector."""
    shipped = open_shipped(config.detector or SHIPPED)
    spec = shipped.index.spec
    confidence = spec.confidence if config.confidence is None else config.confidence
    ours = Ours(BatchDetector(shipped.load()), ScanSettings(confidence=confidence))
    looks: tuple[Looks, ...] = ("second", "first") if config.looks == "both" else (config.looks,)
    of_looks: list[dict[str, Figure]] = []
    with tempfile.TemporaryDirectory(prefix="skindx-bench-") as name:
        for look in looks:
            photos: list[Photo] = []
            for path, truth_K4 in written(config, config.kept or Path(name), look):
                found, _ = ours(path)
                photos.append(Photo(truth_K4, *found))
            of_looks.append(dict(_figures(photos, confidence)))
    figures = of_looks[0]
    for key in _BESIDE:
        if len(of_looks) > 1 and key in of_looks[1]:
            figures[f"{key}_first_photos"] = of_looks[1][key]
    return Result("scan-planted", figures, notes=tuple(_notes(config, shipped)), headings=MEANS)


def _figures(photos: Sequence[Photo], confidence: float) -> Iterator[tuple[str, Figure]]:
    found, wrong, once, of_size = 0, 0, 0, dict.fromkeys(pairwise(_BANDS), (0, 0))
    of_photos = []
    for photo in photos:
        taken_K, others = photo.matched(confidence)
        found, wrong = found + int(taken_K.sum()), wrong + others
        once += int((photo.listed(confidence)[taken_K] == 1).sum())
        of_photos.append(float(taken_K.mean()))
        sides_K = (photo.truth_K4[:, 2:] - photo.truth_K4[:, :2]).max(axis=1)
        for band, (part, count) in of_size.items():
            within_K = (sides_K >= band[0]) & (sides_K < band[1])
            of_size[band] = part + int(taken_K[within_K].sum()), count + int(within_K.sum())
    lesions = sum(len(photo.truth_K4) for photo in photos)
    yield "planted_recall", share(found, lesions)
    for (low, high), (part, count) in of_size.items():
        if count:
            yield f"planted_recall_{low}_{high - high % 2}_px", share(part, count)
    if found:
        yield "planted_listed_once", share(once, found)
        yield "planted_precision", share(found, found + wrong)
    least = min(of_photos)
    yield "planted_recall_of_the_worst_photo", Figure(least, "", len(photos), (least, least))
    yield (
        "planted_wrong_a_photo",
        Figure(wrong / len(photos), "boxes", len(photos), (wrong / len(photos),) * 2),
    )


def _notes(config: Config, shipped: ShippedDetector) -> Iterator[str]:
    kind = "real lesions of HAM10000 on its skin" if config.ham else "synthetic lesions"
    yield (
        f"{config.photos} composed photos of {config.width} x {config.height} pixels with "
        f"{config.lesions} {kind} each, {config.side} side, longer side {SIZES[0]:g} to "
        f"{config.sizes_most:g} pixels, seed "
        f"{_SEEDS[config.side]['first' if config.looks == 'first' else 'second']}. A promise for "
        "photos of this kind, and none elsewhere."
    )
    if config.looks == "both":
        yield (
            f"first_photos: as many others, seed {_SEEDS[config.side]['first']}, which had judged "
            "earlier weights of this detector: a second look."
        )
    yield (
        "planted_listed_once: share of the found lesions at whose place (IoU 0.2) no second box "
        "is listed. planted_wrong_a_photo: listed boxes that are no planted lesion."
    )
    weights = shipped.index.files[MODEL_WEIGHTS][:16]
    yield f"Detector {shipped.index.name}, SHA-256 of its weights {weights}."


_LEARNED = (
    "Tiles of composed photos: lesions of HAM10000 (Tschandl, Rosendahl and Kittler 2018; masks: "
    "Tschandl et al. 2020) along their masks, lesions and skin of a YOLO export of Suranaree "
    "University of Technology (CC BY 4.0 by its uploader's claim), and synthetic ones; of the "
    "training side alone."
)


def ship(run_folder: Path, out: Path, confidence: float, tile: int, measured: Path | None) -> None:
    """Write a run's finished detector as a folder of its own, with what `measured` says of it."""
    source = run_folder / "detector"
    spec = DetectorSpec(size=tile, confidence=confidence)
    planted_recall = None
    if measured:
        figures, asked = read_json(measured)["figures"]["planted_recall"], Config()
        planted_recall = PlantedRecall(
            photos=asked.photos,
            lesions=figures["n"],
            found=round(figures["value"] * figures["n"]),
            least_px=int(SIZES[0]),
            most_px=int(SIZES[1]),
        )
    out.mkdir(parents=True, exist_ok=True)
    for name in (MODEL_YAML, MODEL_WEIGHTS):
        (out / name).write_bytes((source / name).read_bytes())
    index = ShippedIndex(
        name="lesion-detector",
        spec=spec,
        learned_from=_LEARNED,
        licence="CC BY-NC 4.0",
        planted=planted_recall,
        files={name: sha256_file(out / name) for name in (MODEL_YAML, MODEL_WEIGHTS)},
    )
    write_json(out / INDEX, index.model_dump(mode="json"))


if __name__ == "__main__":
    if len(sys.argv) < 5:
        raise SystemExit("give RUN OUT CONFIDENCE TILE and, once it is measured, the bench's JSON")
    ship(
        *(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])),
        Path(sys.argv[5]) if len(sys.argv) > 5 else None,
    )
