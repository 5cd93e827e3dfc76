import hashlib
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from paint_images import encode, paint, save

from skindx.data.screening.image_measures import measure
from skindx.data.screening.screen import (
    ScreenSettings,
    from_plain,
    screen_bytes,
    screen_files,
    to_plain,
)
from skindx.imaging.hashes import HashKind, thumbnail

HASHES: tuple[HashKind, ...] = ("perceptual", "difference")
SOUND = paint(1, 180, 180)


def smooth_skin() -> NDArray[np.uint8]:
    """Return even skin with a faint soft spot and the grain of a camera, as sharp as JPEG shows."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:180, :180]
    spot = 12 * np.exp(-((x - 90) ** 2 + (y - 90) ** 2) / 600)
    grey = 190 - spot + rng.normal(0, 1.2, (180, 180))
    return np.repeat(grey[:, :, None], 3, axis=2).astype(np.uint8)


@pytest.mark.parametrize(
    ("pixels", "reason"),
    [
        (SOUND, None),
        (smooth_skin(), None),
        (SOUND // 4, None),
        (SOUND[:64, :64], None),
        (SOUND[:63, :], "too-small"),
        (paint(1, 64 * 5, 64), "bad-aspect"),
        (paint(1, 64, 64 * 5), "bad-aspect"),
        (SOUND // 20, "too-dark"),
        (np.full_like(SOUND, 255), "too-bright"),
        (np.full_like(SOUND, 120), "blank"),
        (cv2.GaussianBlur(SOUND, (0, 0), 20), "blurred"),
    ],
)
def test_reasons(pixels: NDArray[np.uint8], reason: str | None) -> None:
    screened = screen_bytes(encode(pixels, quality=92), ScreenSettings(), HASHES)
    assert screened.reason == reason
    assert bool(screened.detail) == (reason is not None)
    assert (screened.height, screened.width) == pixels.shape[:2]
    assert screened.codes_KO.size == (16 if reason is None else 0)


def test_damage_and_the_pixel_cap_are_reasons() -> None:
    data = encode(SOUND)
    assert screen_bytes(data[:-900], ScreenSettings(), HASHES).reason == "damaged"
    capped = screen_bytes(data, ScreenSettings(max_pixels=1000), HASHES)
    assert capped.reason == "too-many-pixels"
    assert "180 x 180" in capped.detail


def test_a_verdict_survives_its_way_through_json() -> None:
    for pixels in (SOUND, SOUND[:20], np.zeros_like(SOUND)):
        screened = screen_bytes(encode(pixels), ScreenSettings(), HASHES)
        again = from_plain(json.loads(json.dumps(to_plain(screened))))
        assert again.codes_KO.dtype == np.uint64
        np.testing.assert_array_equal(again.codes_KO, screened.codes_KO)
        assert to_plain(again) == to_plain(screened)


def test_the_bytes_are_hashed_and_the_perceptual_hash_is_always_there() -> None:
    data = encode(SOUND)
    plain = screen_bytes(data, ScreenSettings(), ("difference",))
    both = screen_bytes(data, ScreenSettings(), HASHES)
    assert plain.sha256 == hashlib.sha256(data).hexdigest()
    assert plain.codes_KO.shape == (1, 8)
    assert plain.perceptual_hash == both.perceptual_hash == f"{both.codes_KO[0, 0]:016x}"
    assert screen_bytes(b"no picture", ScreenSettings(), HASHES).reason == "not-a-picture"


def test_what_is_measured_by_hand() -> None:
    # Stripes of 100 and 140, one pixel each: a Laplacian of +80 and -80 in turn.
    stripes = np.tile(np.array([[100], [140]], np.uint8), (64, 200))
    luminance, contrast, sharpness = measure(stripes, thumbnail(stripes))
    assert luminance == pytest.approx(120, abs=0.01)
    assert sharpness == pytest.approx(80**2, rel=0.01)
    assert 0 < contrast < 20


def test_sharpness_does_not_depend_on_resolution() -> None:
    blurred = cv2.GaussianBlur(SOUND, (0, 0), 20)
    large = cv2.resize(blurred, (1200, 1200), interpolation=cv2.INTER_CUBIC)
    assert screen_bytes(encode(large, quality=92), ScreenSettings(), HASHES).reason == "blurred"


@pytest.mark.parametrize("count", [20, 330])
def test_processes_give_the_same_in_the_same_order(tmp_path: Path, count: int) -> None:
    paths = [save(tmp_path / f"{n}.jpg", paint(n, 64, 64 + n % 7)) for n in range(20)]
    many = [paths[n % 20] for n in range(count)] + [tmp_path / "gone.jpg"]
    seen: list[tuple[int, int]] = []
    screened = screen_files(
        many,
        ScreenSettings(),
        HASHES,
        workers=2,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert [image.height for image in screened] == [64 + n % 20 % 7 for n in range(count)] + [0]
    assert screened[-1].reason == "damaged"
    assert seen[-1] == (count + 1, count + 1)
