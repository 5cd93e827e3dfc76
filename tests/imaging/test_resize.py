"""Bilinear resize: the formula by hand, OpenCV within one level, any view, any instruction set."""

import ctypes
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from skindx.core import compiled_loops
from skindx.imaging import resize
from skindx.imaging.resize import resize_bilinear, resize_by_opencv, resize_views

needs_compiler = pytest.mark.skipif(
    not compiled_loops.compiler(), reason="there is no C++ compiler"
)
PHOTO = np.random.default_rng(0).integers(0, 256, (97, 131, 3), dtype=np.uint8)


def resized(image_HW3: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
    out = np.empty((rows, columns, 3), np.uint8)
    resize_bilinear(image_HW3, out)
    return out


def by_formula(image_HW3: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
    """Return the blend of four neighbours with weights in 1/256, in plain integers."""

    def taps(source: int, target: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        at = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
        first = np.clip(at.astype(np.int64), 0, max(0, source - 2))
        return first, np.floor((at - first) * 256 + 0.5).astype(np.int64)

    height, width = image_HW3.shape[:2]
    (y, down), (x, right) = taps(height, rows), taps(width, columns)
    wide = image_HW3.astype(np.int64)
    down, right = down[:, None, None], right[:, None]
    below, beside = np.minimum(y + 1, height - 1), np.minimum(x + 1, width - 1)
    rows_RW3 = wide[y] * (256 - down) + wide[below] * down
    blended = rows_RW3[:, x] * (256 - right) + rows_RW3[:, beside] * right
    return ((blended + (1 << 15)) >> 16).astype(np.uint8)


SIDES = st.integers(1, 60)


@needs_compiler
@given(height=SIDES, width=SIDES, rows=SIDES, columns=SIDES, top=st.integers(0, 30))
def test_each_pixel_is_the_blend_of_four_neighbours(
    height: int, width: int, rows: int, columns: int, top: int
) -> None:
    view = PHOTO[top : top + height, 7 : 7 + width]
    found = resized(view, rows, columns)
    np.testing.assert_array_equal(found, by_formula(view, rows, columns))
    theirs = np.empty_like(found)
    resize_by_opencv(view, theirs)
    assert int(np.abs(found.astype(int) - theirs).max()) <= 1


@needs_compiler
def test_every_instruction_set_gives_the_same_bytes(tmp_path: Path) -> None:
    portable = tmp_path / "portable.so"
    source = resize.SOURCE.file
    command = [
        compiled_loops.compiler(),
        "-O1",
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-o",
        str(portable),
    ]
    subprocess.run([*command, str(source)], check=True)
    library = ctypes.CDLL(str(portable))
    assert library.check() == 0
    view = PHOTO[3:90, 5:120]
    out = np.empty((64, 61, 3), np.uint8)
    whole = [ctypes.c_int64(n) for n in (*view.shape[:2], view.strides[0], 64, 61)]
    image, result = ctypes.c_void_p(view.ctypes.data), ctypes.c_void_p(out.ctypes.data)
    library.resize(image, *whole[:3], result, *whole[3:])
    np.testing.assert_array_equal(out, resized(view, 64, 61))


@needs_compiler
@given(factor=st.floats(0.3, 5), columns=st.integers(1, 130))
def test_rows_of_any_length_shrink_and_grow_by_any_factor(factor: float, columns: int) -> None:
    view = PHOTO[:9, : max(1, min(131, round(factor * columns)))]
    np.testing.assert_array_equal(resized(view, 5, columns), by_formula(view, 5, columns))


def test_many_views_of_one_memory_are_resized_as_each_alone() -> None:
    memory, stride = PHOTO.reshape(-1), PHOTO.strides[0]
    places = [(0, 0, 97, 131), (5, 7, 40, 50), (96, 130, 1, 1), (20, 0, 77, 131)]
    views_T4 = np.array(
        [(top * stride + 3 * left, rows, columns, stride) for top, left, rows, columns in places]
    )
    out_TRC3 = np.empty((4, 24, 31, 3), np.uint8)
    resize_views(memory, views_T4, out_TRC3)
    for (top, left, rows, columns), out_RC3 in zip(places, out_TRC3, strict=True):
        view = PHOTO[top : top + rows, left : left + columns]
        np.testing.assert_array_equal(out_RC3, resized(view, 24, 31))


def test_views_outside_the_memory_are_refused() -> None:
    memory, stride, out = PHOTO.reshape(-1), PHOTO.strides[0], np.empty((1, 8, 8, 3), np.uint8)
    for view in (
        (-1, 10, 10, stride),
        (3, 97, 131, stride),
        (0, 98, 131, stride),
        (0, 10, 132, stride),
        (0, 0, 10, stride),
        (0, 10, 0, stride),
        (0, 2**62, 10, stride),
    ):
        with pytest.raises(ValueError, match="lie in"):
            resize_views(memory, np.array([view]), out)
    with pytest.raises(ValueError, match="one result for each view"):
        resize_views(memory, np.array([(0, 10, 10, stride)] * 2), out)


def test_the_same_size_and_flat_images_stay_as_they_are() -> None:
    np.testing.assert_array_equal(resized(PHOTO, 97, 131), PHOTO)
    for level in (0, 1, 127, 255):
        assert (resized(np.full((31, 40, 3), level, np.uint8), 17, 53) == level).all()


def test_any_view_of_pixels_is_taken() -> None:
    for view in (PHOTO[::-1], PHOTO[:, ::-1], PHOTO[::2, ::3], PHOTO.transpose(1, 0, 2)):
        np.testing.assert_array_equal(
            resized(view, 40, 50), resized(np.ascontiguousarray(view), 40, 50)
        )


@needs_compiler
def test_what_does_not_fit_is_refused_before_memory_is_touched() -> None:
    for image, out in (
        (PHOTO[:, :, :2], np.empty((8, 8, 3), np.uint8)),
        (PHOTO[:0], np.empty((8, 8, 3), np.uint8)),
        (PHOTO, np.empty((8, 16, 3), np.uint8)[:, ::2]),
        (PHOTO, np.empty((8, 8, 4), np.uint8)[:, :, :3]),
    ):
        with pytest.raises(ValueError, match=r"3 channels|contiguous memory"):
            resize_bilinear(image, out)


def test_without_a_compiler_opencv_resizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled_loops, "compiler", lambda: "")
    for cached in (compiled_loops.CppSource.kernel, resize._resize):
        cached.cache_clear()
    try:
        found = resized(PHOTO, 30, 40)
    finally:
        for cached in (compiled_loops.CppSource.kernel, resize._resize):
            cached.cache_clear()
    size = (40, 30)
    np.testing.assert_array_equal(found, cv2.resize(PHOTO, size, interpolation=cv2.INTER_LINEAR))
    assert not list(tmp_path.rglob("*.so"))
