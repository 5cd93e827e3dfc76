"""Lesions of a dataset with masks, set small into wide frames of skin, with decoys.

A lesion keeps its size and its contrast; the frame around it is skin grown from a patch of another
image, in the colour of the skin beside the lesion. It is laid in by Poisson blending, so that its
rim is no edge. What blending leaves behind could still give a lesion away: so each frame also has a
decoy, bare skin of a third image in the outline of another lesion, laid in by the same steps.

`python -m skindx_bench.scan.wide_frames OUT DATASET MASKS [FRAMES] [SEED]` writes a dataset of such
frames from the splits train and val; presets/wide-detector.yaml trains a detector on it.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.loader.source import Files
from skindx.data.manifest import Record, Split, read_manifest, split_of
from skindx.imaging.decode import decode
from skindx_bench.scan.compose import composed_record, lesion_or_none, write_dataset
from skindx_bench.scan.texture import grow, noise

# H, W = frame or image, S = side of a patch

_RIM = 9
"""Pixels of skin that a lesion takes with it, beyond its mask. OpenCV's blending uses no gradient
of the outermost three: with fewer a soft border loses some, and the lesion is paler."""
_EDGE = _RIM + 4
"""Pixels that a mask keeps from the image's edge, where a cut lesion has a straight side."""
_PATCH = 64
"""Pixels of the side of a patch of skin, at least."""
_PIECE = 32
_CLEAR = 11
"""Pixels across of the brush that keeps a patch away from a lesion."""
_MOST_EDGE, _LEAST_LIGHT = 7.0, 70.0
"""Levels: most variation of a patch, which keeps hairs out, and least brightness, rims of tubes."""
_UNEVEN = 2.0
"""Levels of unevenness of the light; blending moves a lesion's colours by as much."""
_ASPECT = 0.75
_TRIES = 40
_QUALITY = 92


@dataclass(frozen=True)
class Outlined:
    """An image and the mask of its lesion, H x W."""

    record: Record
    pixels_HW3: NDArray[np.uint8]
    mask_HW: NDArray[np.bool_]

    @property
    def corners(self) -> tuple[int, int, int, int]:
        """Return x1, y1, x2, y2 around the mask."""
        rows, columns = np.nonzero(self.mask_HW)
        left, top = int(columns.min()), int(rows.min())
        return left, top, int(columns.max()) + 1, int(rows.max()) + 1

    @property
    def box(self) -> Box:
        """Return the box around the mask."""
        x1, y1, x2, y2 = map(float, self.corners)
        return Box(x1, y1, x2, y2, "lesion", "mask")

    @property
    def longer(self) -> int:
        """Return the longer side of the box around the mask, in pixels."""
        x1, y1, x2, y2 = self.corners
        return max(x2 - x1, y2 - y1)

    @property
    def whole(self) -> bool:
        """Tell whether all of the lesion shows, with skin on each side of it."""
        x1, y1, x2, y2 = self.corners
        height, width = self.mask_HW.shape
        return bool(min(x1, y1, width - x2, height - y2) >= _EDGE)


def outlined(dataset: Path, masks: Path, records: Sequence[Record]) -> Iterator[Outlined]:
    """Yield the images that have a mask MASKS/NAME.png, NAME as in the image's source.

    Raises UserError for a mask of another size, and where no image has one.
    """
    files, found = Files(dataset, records), 0
    for number, record in enumerate(records):
        path = masks / f"{Path(record.source_url).stem}.png"
        if not path.is_file():
            continue
        mask_HW = decode(path.read_bytes())[..., 0] > 127
        if mask_HW.shape != (record.height, record.width):
            raise UserError(
                f"{path} has {mask_HW.shape[1]} x {mask_HW.shape[0]} pixels and its image "
                f"{record.width} x {record.height}; give masks of the images' own size."
            )
        found += 1
        if mask_HW.any():
            yield Outlined(record, files.image(number), mask_HW)
    if not found:
        raise UserError(f"{masks} has a mask of no image of {dataset}; name the folder of masks.")


@dataclass(frozen=True)
class Skin:
    """What frames of one split are made of: patches of bare skin and outlines of lesions."""

    patches: tuple[NDArray[np.uint8], ...]
    outlines: tuple[NDArray[np.bool_], ...]

    @classmethod
    def of(cls, images: Sequence[Outlined]) -> "Skin":
        """Take them from images. Raises UserError where none shows enough bare skin."""
        patches = [patch for image in images if (patch := bare_patch(image)) is not None]
        if len(patches) < 2:
            raise UserError(
                f"{len(patches)} of {len(images)} images show a square of {_PATCH} pixels of bare "
                "skin, and frames need two; give more images."
            )
        outlines = []
        for image in images:
            if image.whole:
                x1, y1, x2, y2 = image.corners
                outlines.append(image.mask_HW[y1:y2, x1:x2])
        return cls(tuple(patches), tuple(outlines))


def bare_patch(image: Outlined) -> NDArray[np.uint8] | None:
    """Return the largest square without lesion of an image, None without an even one."""
    grown = cv2.dilate(image.mask_HW.astype(np.uint8), np.ones((_CLEAR, _CLEAR), np.uint8))
    free_HW = np.pad(grown[2:-2, 2:-2] == 0, 1).astype(np.uint8)
    away_HW = cv2.distanceTransform(free_HW, cv2.DIST_C, 3)
    y, x = np.unravel_index(int(away_HW.argmax()), away_HW.shape)
    half = int(away_HW[y, x]) - 1
    if 2 * half + 1 < _PATCH:
        return None
    top, left = int(y) + 1 - half, int(x) + 1 - half
    patch_SS3 = image.pixels_HW3[top : top + 2 * half + 1, left : left + 2 * half + 1]
    grey_SS = cv2.cvtColor(patch_SS3, cv2.COLOR_RGB2GRAY).astype(np.float32)
    rough = float((grey_SS - cv2.GaussianBlur(grey_SS, (0, 0), 12)).std())
    even = float(np.ptp(cv2.GaussianBlur(grey_SS, (0, 0), 12))) < 6 * _MOST_EDGE
    clear = rough < _MOST_EDGE and even and grey_SS.mean() > _LEAST_LIGHT
    return patch_SS3.copy() if clear else None


@dataclass(frozen=True)
class WideFrame:
    """A frame, the box of its lesion (None: it has none), and the boxes of its decoys."""

    pixels_HW3: NDArray[np.uint8]
    box: Box | None
    decoys: tuple[Box, ...]


def wide_frame(
    lesion: Outlined,
    times: float,
    skin: Skin,
    rng: np.random.Generator,
    *,
    decoys: int = 1,
    bare: bool = False,
) -> WideFrame:
    """Return a frame `times` as wide as the lesion is long, at 4:3, the lesion anywhere in it.

    `bare` leaves the lesion out. The same generator gives the same frame.
    """
    longer = lesion.longer
    width = max(round(times * longer), longer + 2 * _EDGE)
    height = max(round(_ASPECT * width), longer + 2 * _EDGE)
    beside_3 = skin_beside(lesion)
    ground_HW3 = _ground((height, width), beside_3, skin, rng)
    ground_HW3 += rng.uniform(0, _UNEVEN) * noise(height, width, 90, rng)[..., None]
    frame_HW3: NDArray[np.uint8] = np.clip(ground_HW3, 0, 255).astype(np.uint8)
    taken: list[Box] = []
    if not bare:
        x1, y1, x2, y2 = lesion.corners
        around = np.s_[y1 - _EDGE : y2 + _EDGE, x1 - _EDGE : x2 + _EDGE]
        taken += _laid(frame_HW3, lesion.pixels_HW3[around], lesion.mask_HW[around], taken, rng)
        assert taken, "the frame is larger than its lesion"
    lesions = len(taken)
    for _ in range(decoys):
        outline = np.rot90(skin.outlines[rng.integers(len(skin.outlines))], int(rng.integers(4)))
        scale = rng.uniform(0.7, 1.2) * longer / max(outline.shape)
        side_wh = (max(4, round(scale * outline.shape[1])), max(4, round(scale * outline.shape[0])))
        mask_HW = cv2.resize(outline.astype(np.uint8), side_wh, interpolation=cv2.INTER_NEAREST)
        mask_HW = np.pad(mask_HW, _EDGE).astype(bool)
        bare_HW3 = _ground(mask_HW.shape, beside_3 + rng.normal(0, 6, 3), skin, rng)
        taken += _laid(frame_HW3, np.clip(bare_HW3, 0, 255).astype(np.uint8), mask_HW, taken, rng)
    _, encoded = cv2.imencode(".jpg", frame_HW3[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    pixels_HW3 = decode(encoded.tobytes())
    return WideFrame(pixels_HW3, taken[0] if lesions else None, tuple(taken[lesions:]))


def skin_beside(lesion: Outlined) -> NDArray[np.float64]:
    """Return the median colour of a ring around a lesion."""
    mask_HW = lesion.mask_HW.astype(np.uint8)
    inner, outer = (
        cv2.dilate(mask_HW, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * side + 1,) * 2))
        for side in (_RIM, _EDGE)
    )
    colour_3: NDArray[np.float64] = np.median(lesion.pixels_HW3[(outer > 0) & (inner == 0)], axis=0)
    return colour_3


def _ground(
    shape_hw: tuple[int, ...], colour_3: NDArray[np.float64], skin: Skin, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Return skin of a size and a mean colour, grown from any patch."""
    patch_SS3 = skin.patches[rng.integers(len(skin.patches))]
    ground_HW3 = grow(patch_SS3, shape_hw[0], shape_hw[1], rng, piece=_PIECE)
    ground_HW3 += (colour_3 - patch_SS3.mean(axis=(0, 1))).astype(np.float32)
    return ground_HW3


def _laid(
    frame_HW3: NDArray[np.uint8],
    piece_HW3: NDArray[np.uint8],
    mask_HW: NDArray[np.bool_],
    taken: Sequence[Box],
    rng: np.random.Generator,
) -> list[Box]:
    """Blend a piece into the frame, in place, clear of what is there; return its box or nothing.

    Pérez, Gangnet and Blake 2003 ("Poisson image editing"): inside the outline the piece's own
    gradients, on it the frame's colours.
    """
    height, width = mask_HW.shape
    room = frame_HW3.shape[0] - height, frame_HW3.shape[1] - width
    if min(room) < 0:
        return []
    for _ in range(_TRIES):
        top, left = (int(rng.integers(space + 1)) for space in room)
        place = (left, top, left + width, top + height)
        if not any(
            place[0] < box.x2 and box.x1 < place[2] and place[1] < box.y2 and box.y1 < place[3]
            for box in taken
        ):
            break
    else:
        return []
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * _RIM + 1,) * 2)
    inside_HW = cv2.dilate(mask_HW.astype(np.uint8), kernel) * np.uint8(255)
    rows, columns = np.nonzero(inside_HW)
    middle = (
        int(columns.min() + columns.max() + 1) // 2,
        int(rows.min() + rows.max() + 1) // 2,
    )
    window = np.s_[top : top + height, left : left + width]
    ground_HW3 = np.ascontiguousarray(frame_HW3[window])
    frame_HW3[window] = cv2.seamlessClone(
        np.ascontiguousarray(piece_HW3), ground_HW3, inside_HW, middle, cv2.NORMAL_CLONE
    )
    rows, columns = np.nonzero(mask_HW)
    corners = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    shift = (left, top, left, top)
    x1, y1, x2, y2 = (float(corner + by) for corner, by in zip(corners, shift, strict=True))
    return [Box(x1, y1, x2, y2, "lesion", "composer")]


_TAXONOMY = lesion_or_none("wide-frames", "Wide frames of skin", "Frame")
_TIMES = (1.6, 7.5)
"""Widths of a training frame, in lengths of its lesion; evenly in their logarithm."""
_AS_TAKEN, _BARE = 0.25, 0.12
"""Shares of training images that are no frame but the image itself, and frames of skin alone."""
_VALIDATION = 0.1


def write_wide_frames(
    out: Path, dataset: Path, masks: Path, frames: int, seed: int = 0
) -> list[Record]:
    """Write a dataset of frames for a detector; lesions of train and val stay in their split."""
    records: list[Record] = []
    everything = read_manifest(dataset)
    shares: tuple[tuple[Split, float], ...] = (("train", 1 - _VALIDATION), ("val", _VALIDATION))
    for number, (split, share) in enumerate(shares):
        rng = np.random.default_rng([seed, number])
        wanted = max(4, round(share * frames))
        of_split = split_of(everything, split)
        order = rng.permutation(len(of_split))[: 2 * wanted].tolist()
        images = list(outlined(dataset, masks, [of_split[place] for place in order]))
        skin = Skin.of(images)
        lesions = [image for image in images if image.whole]
        for place in range(wanted):
            lesion = lesions[place % len(lesions)]
            draw = rng.random()
            if draw < _AS_TAKEN:
                frame = WideFrame(lesion.pixels_HW3, lesion.box, ())
            else:
                times = math.exp(rng.uniform(*np.log(_TIMES)))
                bare = draw < _AS_TAKEN + _BARE
                count = int(rng.integers(3))
                frame = wide_frame(lesion, times, skin, rng, decoys=count, bare=bare)
            records.append(
                composed_record(
                    *(out, frame.pixels_HW3, ".jpg"),
                    label="lesion" if frame.box else "no-lesion",
                    group=lesion.record.group,
                    split=split,
                    boxes=(frame.box,) if frame.box else (),
                )
            )
    return write_dataset(out, records, _TAXONOMY)


def main(arguments: list[str]) -> int:
    """Write the dataset that the arguments name; return the exit code."""
    out, dataset, masks = map(Path, arguments[:3])
    frames = int(arguments[3]) if len(arguments) > 3 else 1200
    seed = int(arguments[4]) if len(arguments) > 4 else 0
    records = write_wide_frames(out, dataset, masks, frames, seed)
    print(f"{len(records)} frames in {out}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    raise SystemExit(main(sys.argv[1:]))
