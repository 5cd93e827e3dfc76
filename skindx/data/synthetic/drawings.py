"""Painted drawings: line art on paper, as atlases and lectures show beside photos of skin."""

import cv2
import numpy as np
from numpy.typing import NDArray

HEIGHT, WIDTH = 480, 640


def drawing(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw curves, boxes, flat shapes and labels with arrows on white or tinted paper."""
    paper = rng.integers(225, 256, 3).tolist()
    canvas_HW3 = np.full((HEIGHT, WIDTH, 3), paper, np.uint8)
    for _ in range(int(rng.integers(3, 7))):
        colour = rng.integers(0, 256, 3).tolist()
        x, y = (int(value) for value in rng.integers(40, 440, 2))
        wide, tall = (int(value) for value in rng.integers(30, 150, 2))
        filled = -1 if rng.random() < 0.5 else 3
        if rng.random() < 0.5:
            cv2.rectangle(canvas_HW3, (x, y), (x + wide, y + tall), colour, filled, cv2.LINE_AA)
        else:
            axes, slant = (wide // 2 + 5, tall // 2 + 5), float(rng.uniform(0, 180))
            cv2.ellipse(canvas_HW3, (x, y), axes, slant, 0, 360, colour, filled, cv2.LINE_AA)
    for _ in range(int(rng.integers(4, 9))):
        t = np.linspace(0, 1, 40)
        turns, phase = rng.uniform(1, 5), rng.uniform(0, 6)
        start, end = rng.uniform((0, 0), (WIDTH, HEIGHT), (2, 2))
        line = start + t[:, None] * (end - start)
        line[:, 1] += rng.uniform(5, 40) * np.sin(turns * np.pi * t + phase)
        points = line.round().astype(np.int32)
        cv2.polylines(
            canvas_HW3, [points], False, (20, 20, 20), int(rng.integers(1, 4)), cv2.LINE_AA
        )
    for label in range(int(rng.integers(2, 6))):
        at = (int(rng.integers(10, WIDTH - 160)), int(rng.integers(30, HEIGHT - 10)))
        tip = (int(rng.integers(WIDTH)), int(rng.integers(HEIGHT)))
        cv2.arrowedLine(canvas_HW3, at, tip, (40, 40, 40), 1, cv2.LINE_AA, tipLength=0.06)
        words = f"{chr(65 + label)} layer {int(rng.integers(100))}"
        cv2.putText(canvas_HW3, words, at, cv2.FONT_HERSHEY_SIMPLEX, 0.6, (0, 0, 0), 1, cv2.LINE_AA)
    return canvas_HW3
