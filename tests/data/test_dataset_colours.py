"""A dataset names the colours of its pixels; everything that reads it sees the same ones."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from paint_images import encode, paint
from stored_colours import P3

from skindx.core.errors import UserError
from skindx.data.build.build_dataset import build, load_build_settings
from skindx.data.copies.describe import describe, describe_bytes
from skindx.data.loader.pixels import open_pixels
from skindx.data.loader.source import Files
from skindx.data.manifest import Record, read_image, read_manifest
from skindx.data.publish.clean_images import clean_image
from skindx.data.screening.screen import ScreenSettings, screen_bytes
from skindx.imaging.decode import decode
from skindx.imaging.hashes import grey


def make(folder: Path, out: Path) -> list[Record]:
    build(load_build_settings(folder, ["workers=1"]), out)
    return read_manifest(out)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a build: of each class one image is of Display P3, one is broken."""
    root = tmp_path_factory.mktemp("colours")
    for shift, label in enumerate(("acne", "wart")):
        (root / "images" / label).mkdir(parents=True)
        for number in range(6):
            icc = {0: {"icc_profile": P3}, 1: {"icc_profile": P3[:200]}}.get(number, {})
            data = encode(paint(100 * shift + number), "PNG", **icc)
            (root / "images" / label / f"{number}.png").write_bytes(data)
    make(root / "images", root / "data")
    return root


def wide(records: list[Record]) -> int:
    return next(at for at, record in enumerate(records) if record.source_url.endswith("acne/0.png"))


def summary(folder: Path) -> dict[str, object]:
    read: dict[str, object] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return read


def test_a_build_says_its_colours_and_what_it_ignored(built: Path) -> None:
    written = summary(built / "data")
    assert written["decoding"] == "srgb-1"
    assert written["colours"] == {"colours-converted": 2, "profile-ignored": 2}


def test_training_and_hashes_see_the_same_pixels(built: Path) -> None:
    folder = built / "data"
    records = read_manifest(folder)
    at = wide(records)
    data = (folder / records[at].path).read_bytes()
    shown = decode(data)
    np.testing.assert_array_equal(shown, decode(encode(shown, "PNG")))
    assert np.abs(shown.astype(int) - paint(0)).max() > 4
    np.testing.assert_array_equal(Files(folder, records).image(at), shown)
    np.testing.assert_array_equal(read_image(folder, records[at]), shown)
    np.testing.assert_array_equal(decode(clean_image(data).data), shown)
    screened = screen_bytes(encode(shown, "PNG"), ScreenSettings(), ["perceptual"])
    assert records[at].perceptual_hash == screened.perceptual_hash
    assert describe_bytes(data).digest == describe(grey(shown)).digest


def test_an_older_dataset_keeps_its_pixels_and_a_newer_one_is_refused(
    built: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(built / "data", tmp_path / "older"))
    records = read_manifest(folder)
    at, cache = wide(records), tmp_path / "cache.pixels"
    new = open_pixels(cache, Files(folder, records), 64, threads=1).image(at).copy()
    written = summary(folder)
    written.pop("decoding")
    (folder / "summary.json").write_text(json.dumps(written), encoding="utf-8")
    np.testing.assert_array_equal(Files(folder, records).image(at), paint(0))
    np.testing.assert_array_equal(read_image(folder, records[at]), paint(0))
    old = open_pixels(cache, Files(folder, records), 64, threads=1).image(at)
    assert (old != new).any(), "the cache of other colours is written again"
    seen = Files(folder, records, "srgb-1").image(at)  # by a bundle that learned from sRGB
    assert (seen != paint(0)).any()
    written["decoding"] = "srgb-9"
    (folder / "summary.json").write_text(json.dumps(written), encoding="utf-8")
    with pytest.raises(UserError, match=r"srgb-9.*update skindx"):
        Files(folder, records)


def test_a_rebuild_that_changes_hashes_says_so(built: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    make(built / "images", out)
    said = "ignored colour profiles and this one applies them: 2 images"
    assert said not in json.dumps(summary(out)["notes"])
    written = summary(out)
    written.pop("decoding")
    (out / "summary.json").write_text(json.dumps(written), encoding="utf-8")
    make(built / "images", out)
    assert said in json.dumps(summary(out)["notes"])
    assert summary(out)["decoding"] == "srgb-1"
