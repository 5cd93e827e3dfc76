"""What an image's description is, and that a mirrored image has the mirrored one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.data.copies import describe as codebook
from skindx.data.copies import geometry
from skindx.data.copies.describe import LONG_SIDE, POINTS, describe, fitted, root_sift
from skindx.data.copies.geometry import AlignmentModel, align, mirrored_points, models_of
from skindx.data.copies.overlap import closed
from skindx.data.synthetic.painter import CLASSES, paint
from skindx.imaging.hashes import grey


def painted(number: int = 3) -> np.ndarray:
    return grey(paint(CLASSES[number % len(CLASSES)], number).pixels)


def mirror_permutation() -> np.ndarray:
    """Of a descriptor: 4 rows across the point's direction, 4 columns along it, 8 directions."""
    row, column, direction = np.meshgrid(range(4), range(4), range(8), indexing="ij")
    return (((3 - row) * 4 + column) * 8 + (8 - direction) % 8).ravel()


def test_the_mirror_permutation_is_its_own_inverse() -> None:
    order = mirror_permutation()
    assert (order[order] == np.arange(128)).all()
    # Row 0, column 1, direction 3 comes from row 3, column 1, direction 5.
    assert order[(0 * 4 + 1) * 8 + 3] == (3 * 4 + 1) * 8 + 5


def test_a_mirrored_image_has_the_mirrored_points_and_descriptors() -> None:
    grey_HW = fitted(painted())
    points, descriptors = root_sift(grey_HW)
    mirrored, others = root_sift(np.ascontiguousarray(grey_HW[:, ::-1]))
    expected = mirrored_points(points, grey_HW.shape[1])
    found = 0
    for at, point in enumerate(expected):
        turn = np.abs((mirrored[:, 3] - point[3] + 180) % 360 - 180)
        near = np.abs(mirrored[:, :3] - point[:3]).sum(axis=1) + turn
        if near.min() < 1:
            found += 1
            turned = descriptors[at][mirror_permutation()]
            assert turned @ others[near.argmin()] > 0.99
    assert found > 0.7 * len(points)


def test_a_mirrored_code_is_the_code_with_other_signs() -> None:
    shipped = codebook.shipped_codebook()
    descriptors = root_sift(fitted(painted()))[1]
    codes = shipped.encode(descriptors)
    mirrored = shipped.encode(descriptors[:, mirror_permutation()])
    np.testing.assert_array_equal(mirrored, codes * shipped.signs)


def test_the_nearest_words_are_the_nearest() -> None:
    shipped = codebook.shipped_codebook()
    codes = describe(painted()).codes_PC
    nearest = shipped.nearest(codes)
    for half in (0, 1):
        points = codes[:, half : codebook.LEADING : 2].astype(np.float64)
        far = ((points[:, None] - shipped.words_HKL[half][None]) ** 2).sum(2)
        given = np.take_along_axis(far, nearest[:, half].astype(int), 1)
        np.testing.assert_allclose(given, np.sort(far, axis=1)[:, : codebook.NEAREST], rtol=1e-3)


def test_the_shipped_codebook_is_small_and_keeps_distances() -> None:
    assert codebook.CODEBOOK_FILE.stat().st_size < 100_000
    shipped = codebook.shipped_codebook()
    descriptors = root_sift(fitted(painted(5)))[1].astype(np.float64)
    codes = shipped.encode(descriptors.astype(np.float32)).astype(np.float64) / codebook.SCALE
    exact = ((descriptors[:50, None] - descriptors[None]) ** 2).sum(2)
    kept = ((codes[:50, None] - codes[None]) ** 2).sum(2)
    assert np.corrcoef(exact.ravel(), kept.ravel())[0, 1] > 0.97


@pytest.mark.parametrize("level", [0, 128, 255])
def test_an_image_without_texture_has_no_points(level: int) -> None:
    described = describe(np.full((120, 200), level, np.uint8))
    assert described.points_P4.shape == (0, 4)
    assert described.codes_PC.shape == (0, codebook.COMPONENTS)


@given(st.integers(1, 700), st.integers(1, 700))
def test_every_shape_is_described_at_one_size(height: int, width: int) -> None:
    shape = fitted(np.zeros((height, width), np.uint8)).shape
    assert max(shape) == LONG_SIDE
    assert min(shape) >= 16


def test_words_do_not_take_all_points() -> None:
    import cv2

    page = np.full((256, 256), 250, np.uint8)
    for row in range(150, 250, 14):
        cv2.putText(page, "atlas clinic photo image", (4, row), 0, 0.5, 0, 1)
    page[:128] = cv2.resize(painted(), (256, 128))
    points = describe(page).points_P4
    assert len(points) == POINTS
    assert (points[:, 1] < 128).sum() > POINTS // 4


def test_the_way_on_which_most_points_agree_is_first_mirrored_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = {False: (9, 8), True: (20, 8)}

    def models(first: object, second: object, mirrored: bool) -> list[AlignmentModel]:
        points = [np.zeros((count, 2)) for count in counts[mirrored]]
        return [AlignmentModel(np.eye(2, 3), mirrored, one, one, 0) for one in points]

    monkeypatch.setattr(geometry, "_models", models)
    description = describe(painted())
    ways = [(way.inliers, way.mirrored) for way in models_of(description, description)]
    assert ways == [(20, True), (9, False), (8, False)]


@pytest.mark.parametrize(("share", "overlaps"), [(0.5, True), (0.15, False)])
def test_images_that_hardly_overlap_are_not_compared(share: float, overlaps: bool) -> None:
    one = describe(painted())
    away = np.array([[1, 0, (1 - share) * one.shape_hw[1]], [0, 1, 0]])
    assert (align(one, one, away) is not None) == overlaps


@pytest.mark.parametrize(("moved", "kept"), [(5.0, True), (60.0, False)])
def test_a_correlation_that_leaves_the_points_behind_is_not_followed(
    moved: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = np.array([[1, 0, moved], [0, 1, 0]], np.float32)
    monkeypatch.setattr("cv2.findTransformECC", lambda *_: (1.0, better))
    one = describe(painted())
    aligned = align(one, one, np.eye(2, 3))
    assert aligned is not None
    assert (aligned.transform_23[0, 2] != 0) == kept


def test_points_all_over_leave_no_hole_in_a_wide_frame_as_in_a_high_one() -> None:
    wide = np.stack(np.meshgrid(np.arange(0, 100, 5), np.arange(0, 40, 5)), axis=-1).reshape(-1, 2)
    assert closed(wide, (40, 100)) > 0.95
    assert closed(wide[:, ::-1], (100, 40)) > 0.95
    ring = wide[(wide[:, 0] < 10) | (wide[:, 0] > 85)]
    assert closed(ring, (40, 100)) < 0.8
