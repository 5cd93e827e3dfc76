"""A dataset that teaches a classifier of scans: lesions cut out of composed photos.

`python -m skindx_bench.scan.lesion_set OUT BOXES [IMAGES] [SEED]`: BOXES is a YOLO export whose
training side gives lesions, benign and malignant, and skin. Train on it with
`skindx train OUT -c configs/scan-lesions.yaml -o RUN`; the bundle of RUN ranks what a scan finds.
"""

import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import cpu_count
from skindx.data.box import Box
from skindx.data.manifest import Record, Split
from skindx.scan.photo_store import photo_store
from skindx.scan.scanned_lesions import lesion_crop
from skindx.scan.tile_search import ScanSettings
from skindx.taxonomy import SkinClass, Taxonomy
from skindx_bench.scan.compose import compose, composed_record, split_of, write_dataset
from skindx_bench.scan.material import Material, read_material

_TAXONOMY = Taxonomy(
    name="composed-lesions",
    title="Lesions on composed photos",
    classes=(
        SkinClass(key="benign", name="Benign lesion", urgency="routine"),
        SkinClass(key="malignant", name="Malignant lesion", urgency="urgent"),
    ),
)
_WIDTH, _HEIGHT, _LESIONS = 1280, 960, 30
_SIDE = 192
"""Pixels that a crop has where the photo has as many."""
_JITTER = 0.04
"""Standard deviation of a detector's edges, as a share of a lesion's size."""
_SPLITS: tuple[tuple[Split, float], ...] = (("train", 0.64), ("val", 0.76), ("calibration", 0.94))


def write_lesion_set(out: Path, material: Material, images: int, seed: int = 0) -> list[Record]:
    """Write a dataset of at least so many crops; all of one cut-out lesion are one group.

    Painted lesions are benign, and those of one photo are one group.
    """
    splits = _splits(material, np.random.default_rng([seed]))
    records: list[Record] = []
    photo = 0
    with ThreadPoolExecutor(cpu_count()) as pool:
        while len(records) < images:
            some = range(photo, photo + cpu_count())
            for made in pool.map(lambda n: _write_photo(out, material, splits, n, seed), some):
                records += made
            photo = some.stop
    return write_dataset(out, records, _TAXONOMY)


def _splits(material: Material, rng: np.random.Generator) -> list[Split]:
    """Return the split of each cut-out lesion: the same shares of benign and malignant ones."""
    splits: list[Split] = ["train"] * len(material.lesions)
    for urgent in (False, True):
        own = [n for n, lesion in enumerate(material.lesions) if lesion.urgent is urgent]
        for place, number in enumerate(rng.permutation(own).tolist()):
            splits[number] = split_of((place + 0.5) / len(own), _SPLITS)
    return splits


def _write_photo(
    out: Path, material: Material, splits: list[Split], photo: int, seed: int
) -> list[Record]:
    rng = np.random.default_rng([seed, photo])
    painted = split_of(rng.random(), _SPLITS)
    return [
        composed_record(
            *(out, crop_SS3, ".png"),
            label="malignant" if cut is not None and material.lesions[cut].urgent else "benign",
            group=f"painted-{photo}" if cut is None else f"lesion-{cut}",
            split=painted if cut is None else splits[cut],
        )
        for crop_SS3, cut in crops_of_photo(material, rng)
    ]


def crops_of_photo(
    material: Material, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.uint8], int | None]]:
    """Yield the crops of a composed photo as a scan cuts them, and which lesion each shows."""
    composite = compose(
        *(_WIDTH, _HEIGHT, _LESIONS, material, rng), blendings=("poisson", "feathered")
    )
    margin = ScanSettings().margin
    with tempfile.TemporaryDirectory(prefix="skindx-lesions-") as name:
        file = Path(name) / "photo.jpg"
        image = cv2.cvtColor(composite.pixels_HW3, cv2.COLOR_RGB2BGR)
        quality = int(rng.integers(80, 97))
        cv2.imwrite(str(file), image, [cv2.IMWRITE_JPEG_QUALITY, quality])
        store = photo_store(file, Path(name) / "store")
        for box, cut in zip(composite.boxes, composite.cuts, strict=True):
            yield lesion_crop(store, _as_detected(box, rng), margin, _SIDE)[0], cut


def _as_detected(box: Box, rng: np.random.Generator) -> Box:
    shift = _JITTER * max(box.x2 - box.x1, box.y2 - box.y1) * rng.standard_normal(4).clip(-2, 2)
    x1, y1, x2, y2 = (np.array([box.x1, box.y1, box.x2, box.y2]) + shift).tolist()
    return Box(x1, y1, x2, y2, "lesion", "composer")


def main(arguments: list[str]) -> int:
    """Write the dataset that the arguments name; return the exit code."""
    material = read_material(Path(arguments[1]), "train")
    images = int(arguments[2]) if len(arguments) > 2 else 3000
    seed = int(arguments[3]) if len(arguments) > 3 else 0
    records = write_lesion_set(Path(arguments[0]), material, images, seed)
    print(f"{len(records)} lesions in {arguments[0]}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    raise SystemExit(main(sys.argv[1:]))
