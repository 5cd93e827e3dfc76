"""A dataset that teaches a detector of scans: tiles of composed photos, with boxes.

`python -m skindx_bench.scan.training_set OUT [BOXES] [TILES] [SEED] [HAM]`: BOXES is a YOLO export
whose training side gives lesions and skin, HAM is HAM10000 with masks (- or nothing: everything is
painted). Train on it with `skindx train OUT -c configs/scan-detector.yaml -o RUN`.
"""

import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import cpu_count
from skindx.data.box import Box
from skindx.data.manifest import Record, Split
from skindx_bench.scan.compose import (
    SIZES,
    Composite,
    compose,
    composed_record,
    lesion_or_none,
    split_of,
    varied,
    write_dataset,
)
from skindx_bench.scan.material import Material, read_material
from skindx_bench.scan.outlined import copies_of_lesions, joined, read_outlined

TILE = 320
_TAXONOMY = lesion_or_none("tiles", "Tiles of composed photos", "Tile")
_WIDTH, _HEIGHT, _TILES_A_PHOTO = 1280, 960, 15
_LESIONS = (10, 70)
"""Fewest and most on a photo. Most photos have many: a tile that shows none teaches little."""
_SMALL, _SMALL_SIDE, _SMALL_LESIONS = 0.5, 48.0, (40, 160)
"""Share of the photos that show small lesions only, their largest side in pixels, and how many:
the smallest have the fewest pixels to tell them by, and are what a detector misses."""
_AT_A_LESION = 0.8
"""Share of the tiles that are placed to show a lesion."""
_PAINTED, _FEW = 0.5, 1000
"""Share of painted lesions where cut-outs are few: a network would memorise them. With more, a
third of it."""
_CUT_OUTS, _SKINS = 40, 4
"""Lesions and patches of skin that a photo draws from, each varied for it."""
_HALF_SCALE = 0.3
"""Share of the photos that are seen at half the scale, as a scan also looks at its photo."""
_LEAST_VISIBLE, _LEAST_SIDE = 0.35, 5.0
"""Of a lesion that a tile cuts: what share of it, and how many pixels, must show."""
_SPLITS: tuple[tuple[Split, float], ...] = (("train", 0.88), ("val", 0.94), ("calibration", 0.97))


def write_training_set(out: Path, material: Material, tiles: int, seed: int = 0) -> list[Record]:
    """Write a dataset of so many tiles; those of one photo are one group."""
    photos = range(-(-tiles // _TILES_A_PHOTO))
    with ThreadPoolExecutor(cpu_count()) as pool:  # most of the time is in numpy and OpenCV
        of_photos = pool.map(lambda photo: _write_photo(out, material, photo, tiles, seed), photos)
        return write_dataset(out, (one for made in of_photos for one in made), _TAXONOMY)


def _write_photo(out: Path, material: Material, photo: int, tiles: int, seed: int) -> list[Record]:
    """Write the tiles of one photo; the last photo has what is left of all tiles."""
    rng = np.random.default_rng([seed, photo])
    split = split_of(rng.random(), _SPLITS)
    return [
        composed_record(
            *(out, tile_SS3, ".jpg"),
            label="lesion" if boxes else "no-lesion",
            group=f"photo-{photo}",
            split=split,
            boxes=boxes,
            quality=int(rng.integers(75, 98)),
        )
        for tile_SS3, boxes in islice(
            tiles_of_photo(material, rng), min(_TILES_A_PHOTO, tiles - photo * _TILES_A_PHOTO)
        )
    ]


def tiles_of_photo(
    material: Material, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.uint8], tuple[Box, ...]]]:
    """Yield tiles of one composed photo and the boxes in them."""
    # twice as large on a photo of half scale: the smallest lesions would look like freckles there
    scale = 2 if rng.random() < _HALF_SCALE else 1
    small = rng.random() < _SMALL
    lesions, largest = (_SMALL_LESIONS, _SMALL_SIDE) if small else (_LESIONS, SIZES[1])
    composite = compose(
        *(_WIDTH, _HEIGHT, int(rng.integers(*lesions))),
        *(varied(material, _CUT_OUTS, _SKINS, rng), rng),
        sizes=(scale * SIZES[0], scale * largest),
        blendings=("poisson", "feathered"),
        painted=_PAINTED if len(material.lesions) < _FEW else _PAINTED / 3,
    )
    side = TILE * scale
    for _ in range(_TILES_A_PHOTO):
        left, top = _place(composite, side, rng)
        tile = composite.pixels_HW3[top : top + side, left : left + side]
        if scale > 1:
            tile = cv2.resize(tile, (TILE, TILE), interpolation=cv2.INTER_AREA)
        boxes = [_inside(box, left, top, side, scale) for box in composite.boxes]
        yield np.ascontiguousarray(tile), tuple(box for box in boxes if box)


def _place(composite: Composite, side: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return the left upper corner of a tile."""
    most = np.array([_WIDTH - side, _HEIGHT - side])
    if not composite.boxes or rng.random() > _AT_A_LESION:
        left, top = rng.integers(most + 1)
    else:
        box = composite.boxes[rng.integers(len(composite.boxes))]
        centre = np.array([box.x1 + box.x2, box.y1 + box.y2]) / 2
        left, top = np.clip(centre - rng.uniform(0.1, 0.9, 2) * side, 0, most).astype(int)
    return int(left), int(top)


def _inside(box: Box, left: int, top: int, side: int, scale: int) -> Box | None:
    x1, y1 = max(box.x1, left), max(box.y1, top)
    x2, y2 = min(box.x2, left + side), min(box.y2, top + side)
    if x1 >= x2 or y1 >= y2:
        return None
    visible = (x2 - x1) * (y2 - y1) / ((box.x2 - box.x1) * (box.y2 - box.y1))
    if visible < _LEAST_VISIBLE or min(x2 - x1, y2 - y1) < _LEAST_SIDE * scale:
        return None
    corners = ((x1 - left) / scale, (y1 - top) / scale, (x2 - left) / scale, (y2 - top) / scale)
    return Box(*corners, "lesion", "composer")


def main(arguments: list[str]) -> int:
    """Write the dataset that the arguments name; return the exit code."""
    out = Path(arguments[0])
    boxes, ham = (arguments[n] if len(arguments) > n else "-" for n in (1, 4))
    held: Collection[str] = ()
    if "-" not in (boxes, ham):  # what judges or chooses teaches by no other name
        held = copies_of_lesions(Path(boxes), Path(ham), ("test", "val"))
    material = joined(
        Material() if boxes == "-" else read_material(Path(boxes), "train", held),
        Material() if ham == "-" else read_outlined(Path(ham), "train"),
    )
    print(
        f"{len(material.lesions)} cut-outs, {len(material.skins)} patches of skin; {len(held)} "
        "pictures of held-out lesions left out"
    )
    tiles = int(arguments[2]) if len(arguments) > 2 else 3000
    seed = int(arguments[3]) if len(arguments) > 3 else 0
    records = write_training_set(out, material, tiles, seed)
    print(f"{len(records)} tiles in {out}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    raise SystemExit(main(sys.argv[1:]))
