"""Refusals of the gates on real photos, degraded photos, and images without skin.

`python -m skindx.evaluation.gates FOLDER ...` prints it for folders of sound photos of skin; the
thresholds in `skindx.imaging.gates` were chosen by its figures. With `--bundle BUNDLE DATA` it
prints instead how well that bundle separates the test images of DATA from the folders' photos and
from what is painted, see `skindx.evaluation.ood`; `--json FILE` writes the figures as well.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.synthetic.no_skin import KINDS
from skindx.errors import UserError
from skindx.files import write_json
from skindx.imaging.damage import DamagedImage
from skindx.imaging.decode import decode
from skindx.imaging.gates import GATES, Reduced, inspect
from skindx.imaging.gates.blur import sharpness
from skindx.imaging.gates.gate import SIDE
from skindx.imaging.gates.skin import skin_share

PHOTOS = 200
"""Of each folder, drawn at random under one seed."""

Pixels = NDArray[np.uint8]


def blurred(pixels_HWC: Pixels, sigma: float) -> Pixels:
    """Return a photo out of focus by `sigma` pixels of the 160 that gates look at, JPEG as sent."""
    import cv2
    import simplejpeg

    blur = sigma * min(pixels_HWC.shape[:2]) / SIDE
    jpeg = simplejpeg.encode_jpeg(
        np.ascontiguousarray(cv2.GaussianBlur(pixels_HWC, (0, 0), blur)), quality=88
    )
    again_HWC: Pixels = simplejpeg.decode_jpeg(jpeg)
    return again_HWC


def darkened(pixels_HWC: Pixels, light: float) -> Pixels:
    """Return a photo with so much of its light, as darker skin or a dimmer lamp sends back."""
    linear_HWC = (pixels_HWC / 255.0) ** 2.2
    dark_HWC: Pixels = (255 * (light * linear_HWC) ** (1 / 2.2)).round().astype(np.uint8)
    return dark_HWC


SPOILT: dict[str, Callable[[Pixels], Pixels]] = {
    "as they are": lambda pixels: pixels,
    "a third of the light": lambda pixels: darkened(pixels, 1 / 3),
    "a tenth of the light": lambda pixels: darkened(pixels, 0.1),
    "a tenth, blurred by 2": lambda pixels: darkened(blurred(pixels, 2), 0.1),
    "1/500 of the light": lambda pixels: darkened(pixels, 0.002),
    "blurred by 0.7": lambda pixels: blurred(pixels, 0.7),
    "blurred by 1": lambda pixels: blurred(pixels, 1),
    "blurred by 1.5": lambda pixels: blurred(pixels, 1.5),
    "blurred by 2": lambda pixels: blurred(pixels, 2),
    "blurred by 4": lambda pixels: blurred(pixels, 4),
}


def tally(photos: list[Pixels]) -> str:
    """Return the shares that each gate refuses or remarks on, with the measures' 1st percentile."""
    found = [inspect(photo) for photo in photos]
    reduced = [Reduced.of(photo) for photo in photos]
    cells = [f"{len(photos):5}"]
    for gate in GATES:
        for fatal in (True, False):
            hit = sum(
                (gate, fatal) in [(name, check.fatal) for name, check in one] for one in found
            )
            cells.append(f"{hit / len(photos):7.1%}")
    sharp = [sharpness(photo.luma) for photo in reduced]
    cells += [f"{value:7.2f}" for value in np.percentile(sharp, [1, 50, 99])]
    cells.append(f"{np.percentile([skin_share(photo) for photo in reduced], 1):7.2f}")
    return " ".join(cells)


def photos_of(folder: Path, count: int = PHOTOS) -> list[Pixels]:
    """Return decoded photos of a folder and those below it. Raises UserError if there is none."""
    return [pixels for pixels, _ in sourced_photos_of(folder, count)]


def sourced_photos_of(folder: Path, count: int = PHOTOS) -> list[tuple[Pixels, str]]:
    """Return the same with the name of each photo's source.

    Roboflow's augmented copies of a photo bear its name before `.rf.`; any other is its own source.
    """
    return list(_decoded(files_of(folder, count)))


def files_of(folder: Path, count: int) -> list[Path]:
    """Return up to `count` image files of a folder, drawn under one seed. Raises UserError."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".png"))
    if not files:
        raise UserError(f"{folder} holds no JPEG or PNG photo; give a folder of photos of skin.")
    chosen = np.random.default_rng(0).permutation(len(files))[:count]
    return [files[place] for place in chosen]


def source_of(file: Path) -> str:
    """Return the name of a photo's source, which its copies share."""
    return file.name.partition(".rf.")[0]


def _decoded(files: list[Path]) -> Iterator[tuple[Pixels, str]]:
    for file in files:
        try:
            pixels = decode(file.read_bytes(), at_least=(2 * SIDE, 2 * SIDE), rough=False)
            yield pixels, source_of(file)
        except DamagedImage:
            continue


def main(arguments: list[str]) -> None:
    """Print the tables. Raises UserError for a folder without photos, and for no bundle."""
    parser = argparse.ArgumentParser("python -m skindx.evaluation.gates", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="sound photos")
    parser.add_argument("--bundle", nargs=2, type=Path, metavar=("BUNDLE", "DATA"))
    parser.add_argument("--painted", type=int, default=50, help="painted images of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="figures of --bundle")
    asked = parser.parse_args(arguments)
    if asked.bundle:
        bundle, dataset = asked.bundle
        _print_ood(bundle, dataset, asked)
    else:
        _print_gates(asked.folders)


def _print_gates(folders: list[Path]) -> None:
    heads = [f"{name} {how}" for name in GATES for how in ("no", "hm")]
    print("photos        n", *heads, "sharpness 1/50/99 %", "skin 1 %")
    for folder in folders:
        print(folder)
        sound = photos_of(folder)
        for name, spoil in SPOILT.items():
            print(f"  {name:22}", tally([spoil(jpeg) for jpeg in sound]), flush=True)
    print("no skin, painted")
    for name, paint in KINDS.items():
        images = [paint(np.random.default_rng(seed)) for seed in range(20)]
        print(f"  {name:22}", tally(images), flush=True)


def _print_ood(bundle: Path, dataset: Path, asked: argparse.Namespace) -> None:
    from skindx.diagnosis.predictor import Predictor
    from skindx.evaluation.ood import report, table

    predictor = Predictor.load(bundle)
    others = [(folder.name, sourced_photos_of(folder)) for folder in asked.folders]
    found = report(predictor, dataset, others, asked.painted)
    for line in table(found):
        print(line, flush=True)
    if asked.json:
        write_json(asked.json, found)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
