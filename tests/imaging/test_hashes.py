from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from paint_images import encode, paint

from skindx.data.copies.hash_links import EQUAL, near_links
from skindx.imaging import hashes
from skindx.imaging.decode import decode
from skindx.imaging.hashes import HASHES, SIDE, HashKind, hash_thumbnails, thumbnail

DEFAULT: tuple[HashKind, ...] = ("perceptual", "difference")


def turned(image: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return orientation 4t + 2v + h of an image."""
    image = image.swapaxes(0, 1) if orientation & 4 else image
    image = image[::-1] if orientation & 2 else image
    return np.ascontiguousarray(image[:, ::-1] if orientation & 1 else image)


@pytest.mark.parametrize("kind", list(HASHES))
@pytest.mark.parametrize("orientation", range(8))
def test_each_orientation_is_the_hash_of_the_turned_image(kind: HashKind, orientation: int) -> None:
    thumbs = np.random.default_rng(0).uniform(0, 255, (5, SIDE, SIDE)).astype(np.float32)
    rotated = np.stack([turned(thumb, orientation) for thumb in thumbs])
    codes = hash_thumbnails(thumbs, [kind])
    np.testing.assert_array_equal(
        codes[:, :, orientation], hash_thumbnails(rotated, [kind])[:, :, 0]
    )


def test_average_and_difference_by_hand() -> None:
    ramp = np.tile(np.arange(SIDE, dtype=np.float32), (SIDE, 1))[None]
    average, difference = hash_thumbnails(ramp, ["average", "difference"])[0]
    assert f"{average[0]:016x}" == "0f" * 8
    assert f"{average[1]:016x}" == "f0" * 8
    assert f"{difference[0]:016x}" == "ff" * 8
    assert difference[1] == 0
    assert difference[4] == 0  # transposed, the ramp runs downwards: no bit to the right is larger


def codes_of(images: list[NDArray[np.uint8]]) -> NDArray[np.uint64]:
    return hash_thumbnails(np.stack([thumbnail(image) for image in images]), DEFAULT)


CHANGES = {
    "JPEG quality 60": lambda x: decode(encode(x, "JPEG", quality=60)),
    "resized to 80 %": lambda x: cv2.resize(x, None, fx=0.8, fy=0.8, interpolation=cv2.INTER_AREA),
    "10 % brighter": lambda x: np.clip(x * 1.1, 0, 255).astype(np.uint8),
    "mirrored": lambda x: turned(x, 1),
    "turned": lambda x: np.ascontiguousarray(np.rot90(x)),
    "all at once": lambda x: decode(
        encode(np.ascontiguousarray(np.rot90(cv2.resize(x, None, fx=0.8, fy=0.8))), quality=60)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_near_duplicates_are_within_the_default_radius(change: str) -> None:
    originals = [paint(seed, 240, 192) for seed in range(60)]
    images = originals + [CHANGES[change](image) for image in originals]
    found = {(i, j) for i, j, _ in near_links(codes_of(images), 4).tolist()}
    planted = {(i, i + 60) for i in range(60)}
    assert found <= planted
    assert len(found) >= 57


@given(st.integers(0, 2**32), st.integers(0, 30), st.integers(0, 20))
def test_the_join_is_brute_force(seed: int, n: int, radius: int) -> None:
    rng = np.random.default_rng(seed)
    # Few distinct bits, so that close pairs are common.
    codes = rng.integers(0, 2**12, (n, 2, 8), dtype=np.uint64)
    expected = []
    for i in range(n):
        for j in range(i + 1, n):
            distance = min(
                max(int(codes[i, k, o] ^ codes[j, k, 0]).bit_count() for k in range(2))
                for o in range(8)
            )
            if distance <= radius:
                expected.append((i, j, distance))
    assert [tuple(link) for link in near_links(codes, radius).tolist()] == expected


def test_equal_codes_are_links_from_the_first() -> None:
    a, b = np.zeros((2, 8), np.uint64), np.full((2, 8), 3, np.uint64)
    links = near_links(np.stack([a, b, a, b, a, ~a]), 4)
    assert links.tolist() == [[0, 1, 2], [0, 2, EQUAL], [0, 4, EQUAL], [1, 3, EQUAL]]


def old_thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(np.float32)
    return cv2.resize(grey, (SIDE, SIDE), interpolation=cv2.INTER_AREA)


@pytest.mark.parametrize("shape", [(375, 500), (72, 72), (73, 80), (600, 9000), (4000, 3000)])
def test_a_thumbnail_holds_the_area_means(shape: tuple[int, int]) -> None:
    grey = np.random.default_rng(0).integers(200, 256, shape, dtype=np.uint8)
    expected = cv2.resize(grey.astype(np.float32), (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    np.testing.assert_allclose(thumbnail(grey), expected, atol=1.1 / 1024)


@given(height=st.integers(1, 300), width=st.integers(1, 300), seed=st.integers(0, 99))
def test_a_machine_without_a_compiler_makes_the_same_thumbnail(
    height: int, width: int, seed: int
) -> None:
    if hashes.thumbnail_kernel() is None:
        pytest.skip("there is no C++ compiler here")
    grey = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashes, "thumbnail_kernel", lambda: None)
        without = thumbnail(grey)
    np.testing.assert_array_equal(thumbnail(grey), without, strict=True)


def test_a_table_that_runs_over_32_bits_makes_the_same_thumbnail() -> None:
    white = np.full((5000, 4000), 255, np.uint8)
    assert (thumbnail(white) == 255).all()
    assert (
        hashes._means(cv2.integral(white), *white.shape, 512 * SIDE**2 / white.size) == 255
    ).all()


def test_a_small_image_is_stretched_by_area() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)
    fine = np.kron(grey, np.ones((18, 12))).reshape(SIDE, 5, SIDE, 5).mean(axis=(1, 3))
    np.testing.assert_allclose(thumbnail(grey), fine, atol=1.1 / 1024)


@pytest.mark.parametrize("kind", ["average", "difference", "wavelet"])
def test_a_mirrored_image_has_the_mirrored_code_to_the_bit(kind: HashKind) -> None:
    # Half of it is one even tone, where the smallest noise of rounding would decide.
    image = paint(3, 211, 173)
    image[60:, :] = 200
    plain, mirrored = hash_thumbnails(
        np.stack([thumbnail(image), thumbnail(turned(image, 1))]), [kind]
    )
    np.testing.assert_array_equal(plain[:, [1, 0, 3, 2]], mirrored[:, :4])


@pytest.mark.real
def test_the_integral_image_changed_no_hash_of_real_images(real: Path) -> None:
    files = sorted((real / "isic9" / "Train").rglob("*.jpg"))[::5]
    images = [decode(file.read_bytes()) for file in files]
    assert len(images) > 400
    now = hash_thumbnails(np.stack([thumbnail(image) for image in images]), list(HASHES))
    before = hash_thumbnails(np.stack([old_thumbnail(image) for image in images]), list(HASHES))
    assert np.bitwise_count(now ^ before).max() <= 1
    assert np.bitwise_count(now ^ before).mean() < 0.001
