"""Random changes of a training image."""

import ctypes
import random
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.compiled_loops import CppSource
from skindx.core.machine import go_offline
from skindx.data.loader.crops import ASPECTS, random_window
from skindx.data.loader.settings import Augment, loaded_pipeline
from skindx.data.manifest import Record

if TYPE_CHECKING:
    from albumentations import BasicTransform

# S = side, T = images of a task

Square = NDArray[np.uint8]
Change = Callable[[Square, int], Square]

_COLOURED = 0.8
"""Share of the images whose colours change."""
_TURNS = ("e", "r90", "r180", "r270", "v", "hvt", "h", "t")
"""The eight symmetries of a square, by albumentations' names and in its order."""
_LEVELS = np.arange(256, dtype=np.float32)
_HUES = np.arange(256, dtype=np.int16)


SOURCE = CppSource(
    Path(__file__).with_name("colours.cpp"),
    "turns and colours",
    "OpenCV changes training images one after the other",
    ("-ffp-contract=off",),  # OpenCV rounds each product but those of its fused operations
)


def squares_changer(augment: Augment) -> Callable[[NDArray[np.uint8], Sequence[int]], None]:
    """Return a function (squares_TSS3, a seed each) that changes all in place, for any thread.

    The pixels are those of `changer`. OpenCV takes the interpreter's lock ten times an image, so
    that 16 threads were slower than two; here a task takes it once.
    """
    kernel = None if augment.composed else _kernel()
    change = changer(augment)

    def one_by_one(squares_TSS3: NDArray[np.uint8], seeds: Sequence[int]) -> None:
        for square_SS3, seed in zip(squares_TSS3, seeds, strict=True):
            square_SS3[...] = change(square_SS3, seed)

    def at_once(squares_TSS3: NDArray[np.uint8], seeds: Sequence[int]) -> None:
        count, side = squares_TSS3.shape[:2]
        if squares_TSS3.shape != (len(seeds), side, side, 3) or not squares_TSS3.flags.c_contiguous:
            raise ValueError(
                f"{len(seeds)} seeds were given for squares of the shape {squares_TSS3.shape}; "
                "give one seed for each square"
            )
        turns_T = np.zeros(count, np.int32)
        steps_T4 = np.full((count, 4), -1, np.int32)
        factors_T4 = np.ones((count, 4))
        for index, seed in enumerate(seeds):
            turns_T[index], steps, factors = _drawn(seed, augment)
            if steps:
                steps_T4[index], factors_T4[index] = steps, factors
        arrays = (squares_TSS3, turns_T, steps_T4, factors_T4)
        assert kernel is not None
        kernel.change(count, side, *(array.ctypes.data for array in arrays))

    return at_once if kernel else one_by_one


@cache
def _kernel() -> ctypes.CDLL | None:
    kernel = SOURCE.kernel()
    if kernel is None:
        return None
    whole, pointer = ctypes.c_int64, ctypes.c_void_p
    kernel.library.change.argtypes = (whole, whole, pointer, pointer, pointer, pointer)
    kernel.library.change.restype = None
    return kernel.library


def changer(augment: Augment) -> Change:
    """Return a function (square, seed) -> turned and coloured square, for any thread.

    The seed decides everything: neither the thread nor the order of calls does.
    """
    if augment.composed:
        return composed_changer(augment)
    return lambda square_SS3, seed: _turned_and_coloured(square_SS3, seed, augment)


def photo_changer(augment: Augment) -> Callable[[Record, NDArray[np.uint8]], NDArray[np.uint8]]:
    """Return a function (record, photo H x W x 3) -> a random crop of the photo, changed.

    The record's SHA-256 decides what is drawn.
    """
    change = changer(augment)

    def changed(record: Record, photo_HW3: NDArray[np.uint8]) -> NDArray[np.uint8]:
        seed = int(record.sha256[:8], 16)
        height, width = photo_HW3.shape[:2]
        draw = np.random.default_rng(seed)
        window = random_window(height, width, augment.scale, ASPECTS, draw)
        return change(np.ascontiguousarray(window.cut(photo_HW3)), seed)

    return changed


def composed_changer(augment: Augment) -> Change:
    """Return the same by albumentations, which has all changes.

    It takes five times as long in Python, where threads wait for each other: 16 of them were
    slower than one.
    """
    go_offline()
    import albumentations as A
    import cv2

    strength = augment.colour

    def compose() -> A.Compose:
        steps: list[A.BasicTransform] = [turn()] if augment.flip else []
        if augment.rotate:
            border = cv2.BORDER_REFLECT_101  # no corner that says how far the image was turned
            steps.append(A.Rotate(augment.rotate, border_mode=border, p=1))
        if augment.white:
            gains = (1 - augment.white, 1 + augment.white)
            steps.append(A.MultiplicativeNoise(gains, per_channel=True, p=1))
        if strength:
            jitter = A.ColorJitter(strength, strength, strength, strength / 10, p=_COLOURED)
            steps.append(jitter)
        if augment.blur:
            steps.append(A.GaussianBlur(sigma_limit=(0.3, 1.5), p=augment.blur))
        if augment.sharpen:
            steps.append(A.Sharpen(p=augment.sharpen))
        if augment.holes:
            share = (0.1, 0.3)
            hole = A.CoarseDropout((1, 3), share, share, fill="random_uniform", p=augment.holes)
            steps.append(hole)
        if augment.pipeline is not None:
            steps.append(loaded_pipeline(augment.pipeline))
        return A.Compose(steps)

    local = threading.local()  # a Compose carries the generator that it was seeded with last

    def change(square_SS3: Square, seed: int) -> Square:
        if not hasattr(local, "compose"):
            local.compose = compose()
        local.compose.set_random_seed(seed)
        changed: Square = local.compose(image=square_SS3)["image"]
        return changed

    return change


def _turned_and_coloured(square_SS3: Square, seed: int, augment: Augment) -> Square:
    turn, steps, factors = _drawn(seed, augment)
    square_SS3 = turned(square_SS3, _TURNS[turn])
    for which in steps:
        square_SS3 = _COLOURS[which](square_SS3, factors[which])
    return square_SS3


def _drawn(seed: int, augment: Augment) -> tuple[int, list[int], list[float]]:
    """Return a turn's number, the order of the changes of colour, empty for none, and factors.

    Drawn as albumentations does, each of whose changes begins with the same seed.
    """
    turn = int(np.random.default_rng(seed).integers(len(_TURNS))) if augment.flip else 0
    strength = augment.colour
    draw = random.Random(seed)  # noqa: S311 (no secret)
    if not strength or draw.random() >= _COLOURED:
        return turn, [], []
    least, most = max(0.0, 1 - strength), 1 + strength
    factors = [draw.uniform(least, most) for _ in range(3)]
    factors.append(draw.uniform(-strength / 10, strength / 10))
    order = [0, 1, 2, 3]
    np.random.default_rng(seed).shuffle(order)
    return turn, order, factors


def _brighter(square_SS3: Square, factor: float) -> Square:
    return _by_table(square_SS3, _LEVELS * np.float32(factor)) if factor != 1 else square_SS3


def _contrasted(square_SS3: Square, factor: float) -> Square:
    import cv2

    if factor == 1:
        return square_SS3
    mean = cv2.cvtColor(square_SS3, cv2.COLOR_RGB2GRAY).mean()
    if factor == 0:
        return np.full_like(square_SS3, int(mean + 0.5))
    return _by_table(square_SS3, _LEVELS * factor + float(mean * (1 - factor)))


def _saturated(square_SS3: Square, factor: float) -> Square:
    import cv2

    if factor == 1:
        return square_SS3
    grey_SS3 = cv2.cvtColor(cv2.cvtColor(square_SS3, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    if factor == 0:
        return np.asarray(grey_SS3, np.uint8)
    return np.asarray(cv2.addWeighted(square_SS3, factor, grey_SS3, 1 - factor, 0), np.uint8)


def _hue_moved(square_SS3: Square, share: float) -> Square:
    """Move the hue by a share of the circle."""
    import cv2

    if share == 0:
        return square_SS3
    hsv_SS3 = cv2.cvtColor(square_SS3, cv2.COLOR_RGB2HSV)
    table = np.mod(_HUES + 180 * share, 180).astype(np.uint8)
    cv2.insertChannel(cv2.LUT(cv2.extractChannel(hsv_SS3, 0), table), hsv_SS3, 0)
    return np.asarray(cv2.cvtColor(hsv_SS3, cv2.COLOR_HSV2RGB), np.uint8)


def _by_table(square_SS3: Square, levels: NDArray[np.floating[Any]]) -> Square:
    import cv2

    table = np.clip(levels, 0, 255).astype(np.uint8)
    return np.asarray(cv2.LUT(square_SS3, table), np.uint8)


_COLOURS = (_brighter, _contrasted, _saturated, _hue_moved)
"""Changes of colour in albumentations' order."""


def turn() -> "BasicTransform":
    """Return albumentations' D4, drawn as there; its copies are OpenCV's, with the same pixels.

    To copy a view of turned pixels by NumPy takes longer than all else that happens to a square.
    """
    import albumentations as A

    class Turn(A.D4):  # type: ignore[misc] # which is untyped
        def apply(self, img: Square, group_element: str, **params: Any) -> Any:
            return turned(img, group_element)

    return Turn(p=1)


def turned(square_SS3: Square, turn: str) -> Square:
    """Return the square after one of its eight symmetries, by albumentations' name."""
    import cv2

    if turn == "e":
        return square_SS3
    if turn == "hvt":
        square_SS3, turn = turned(square_SS3, "r180"), "t"
    if turn == "t":
        return np.asarray(cv2.transpose(square_SS3), np.uint8)
    if turn in ("v", "h"):
        return np.asarray(cv2.flip(square_SS3, int(turn == "h")), np.uint8)
    rotation = {
        "r90": cv2.ROTATE_90_COUNTERCLOCKWISE,
        "r180": cv2.ROTATE_180,
        "r270": cv2.ROTATE_90_CLOCKWISE,
    }[turn]
    return np.asarray(cv2.rotate(square_SS3, rotation), np.uint8)
