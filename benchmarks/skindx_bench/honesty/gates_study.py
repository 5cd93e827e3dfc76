"""Refusals of the gates on real photos, degraded photos, and images without skin.

`python -m skindx_bench.honesty.gates_study FOLDER ...` prints them for folders of sound photos of
skin; the thresholds in `skindx.imaging.photo_gates` were chosen by these figures. With `--bundle
BUNDLE DATA` it prints instead how well that bundle separates the test images of DATA from the
folders' photos and from synthetic images, see `skindx_bench.honesty.ood_study`. `--json FILE`
writes the figures as well.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.measurement import hardware, versions
from skindx.imaging.decode import decode
from skindx.imaging.image_formats import DamagedImage
from skindx.imaging.photo_gates import GATES, SIDE, Reduced, inspect, sharpness, skin_share
from skindx.metrics import share_interval
from skindx_bench.honesty.no_skin_images import KINDS

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


def report(folders: Sequence[Path], *, count: int = PHOTOS, painted: int = 20) -> dict[str, Any]:
    """Return what the gates do to up to `count` photos a folder and `painted` images of each kind.

    Raises UserError for a folder without photos.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "versions": versions(),
        "photos": [row for folder in folders for row in _folder_rows(folder, count)],
        "painted": [_painted_row(kind, painted) for kind in KINDS],
    }


def _folder_rows(folder: Path, count: int) -> Iterator[dict[str, Any]]:
    photos = sourced_photos_of(folder, count)
    sources = [source for _, source in photos]
    for change, spoil in SPOILT.items():
        spoilt = [spoil(pixels) for pixels, _ in photos]
        yield {"kind": folder.name, "change": change} | _figures(spoilt, sources)


def _painted_row(kind: str, count: int) -> dict[str, Any]:
    images = [KINDS[kind](np.random.default_rng(seed)) for seed in range(count)]
    return {"kind": kind} | _figures(images, list(map(str, range(count))))


def _figures(photos: Sequence[Pixels], sources: Sequence[str]) -> dict[str, Any]:
    """Return the share refused with its interval over sources, and counts by gate."""
    found = [inspect(photo) for photo in photos]
    refused_N = np.array([any(check.fatal for _, check in checks) for checks in found])
    groups_N = np.array(sources)
    share = share_interval(refused_N, groups_N)
    hits = [(name, check.fatal) for checks in found for name, check in checks]
    reduced = [Reduced.from_pixels(photo) for photo in photos]
    sharp = np.percentile([sharpness(photo.luma) for photo in reduced], [1, 50, 99])
    return {
        "n": len(photos),
        "sources": len(np.unique(groups_N)),
        "refused": [share.value, share.low, share.high],
        "gates": {
            gate: {"refused": hits.count((gate, True)), "remarked": hits.count((gate, False))}
            for gate in GATES
        },
        "sharpness_1_50_99": sharp.tolist(),
        "skin_share_1": float(np.percentile([skin_share(photo) for photo in reduced], 1)),
    }


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
    parser = argparse.ArgumentParser(
        "python -m skindx_bench.honesty.gates_study", description=__doc__
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="sound photos")
    parser.add_argument("--bundle", nargs=2, type=Path, metavar=("BUNDLE", "DATA"))
    parser.add_argument("--painted", type=int, default=50, help="painted images of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    asked = parser.parse_args(arguments)
    if asked.bundle:
        bundle, dataset = asked.bundle
        _print_ood(bundle, dataset, asked)
    else:
        _print_gates(asked)


def _print_gates(asked: argparse.Namespace) -> None:
    found = report(asked.folders)
    heads = [f"{name} {how}" for name in GATES for how in ("no", "hm")]
    print("photos        n", *heads, "sharpness 1/50/99 %", "skin 1 %")
    for row in (*found["photos"], *found["painted"]):
        print(f"{row['kind']}, {row['change']}" if "change" in row else f"painted: {row['kind']}")
        counts = [by[how] for by in row["gates"].values() for how in ("refused", "remarked")]
        shares = " ".join(f"{count / row['n']:7.1%}" for count in counts)
        measures = (*row["sharpness_1_50_99"], row["skin_share_1"])
        print(f"  {row['n']:5}", shares, " ".join(f"{value:7.2f}" for value in measures))
    if asked.json:
        write_json(asked.json, found)


def _print_ood(bundle: Path, dataset: Path, asked: argparse.Namespace) -> None:
    from skindx.diagnosis.predictor import Predictor
    from skindx_bench.honesty.ood_study import report, table

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
