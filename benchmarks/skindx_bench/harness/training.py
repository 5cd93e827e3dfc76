"""Shared parts of benchmarks that train: `skindx` as a process, images, files, a clean end."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skindx.core.errors import JobError
from skindx.core.machine import python_command
from skindx.training.checkpoint.finished import HISTORY, member_folder

_TRUNK = "trunk"
"""Column of a head's history that names its trunk; all others hold numbers."""


def run_skindx(*arguments: object) -> None:
    """Run a verb in a process of its own, as a user starts it. Raises JobError when it fails.

    What one training leaves behind in a process touches no other. When this one is ended, so is
    the verb, which saves where it is.
    """
    command = python_command("-m", "skindx", *map(str, arguments))
    with subprocess.Popen(command) as process:
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
    if code:
        raise JobError(f"`skindx {arguments[0]}` stopped; see its error above")


def read_history(run: Path, name: str) -> list[dict[str, float]]:
    """Return the figures of each epoch of a finished member, without what is no number."""
    lines = (member_folder(run, name) / HISTORY).read_text().splitlines()
    keys = lines[0].split(",")
    rows = [dict(zip(keys, line.split(","), strict=True)) for line in lines[1:]]
    return [
        {key: float(value) for key, value in row.items() if key != _TRUNK and value} for row in rows
    ]


def end_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit here, so that what it started ends or saves its state."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


@dataclass
class Stopped:
    """Why figures are missing; empty while nothing was stopped."""

    partial: str = ""


@contextmanager
def kept_when_stopped(doing: str) -> Iterator[Stopped]:
    """End the block at Ctrl-C, so that what it has filled until then can be reported as partial."""
    stopped = Stopped()
    try:
        yield stopped
    except KeyboardInterrupt:
        stopped.partial = f"stopped while {doing}"


def preset(name: str) -> Path:
    """Return the YAML file of the settings that a benchmark takes unless it is given others."""
    return Path(__file__).parents[1] / "presets" / f"{name}.yaml"


WIDTH, HEIGHT, QUALITY = 500, 375, 90
GRAIN = 6.0
"""Standard deviation of the noise, in grey levels; it is what makes a JPEG slow to decode."""


def noisy_jpegs(count: int, seed: int = 0) -> list[bytes]:
    """Return JPEG files of WIDTH x HEIGHT pixels at QUALITY, 4:2:0, every one different."""
    import cv2
    import simplejpeg

    rng = np.random.default_rng(seed)
    files = []
    for _ in range(count):
        coarse = rng.uniform(40, 220, (6, 7, 3)).astype(np.float32)
        smooth = cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
        grainy = smooth + rng.normal(0, GRAIN, (HEIGHT, WIDTH, 1))
        pixels = np.clip(grainy, 0, 255).astype(np.uint8)
        files.append(simplejpeg.encode_jpeg(pixels, quality=QUALITY, colorsubsampling="420"))
    return files


def decode_codes(encoded: Sequence[bytes]) -> None:
    """Decode to grey at 1/8: libjpeg reads every Huffman code, and makes hardly a pixel of them."""
    import simplejpeg

    for data in encoded:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=-(-HEIGHT // 8), min_width=-(-WIDTH // 8))


def describe(files: Sequence[bytes]) -> str:
    """Say in a sentence what `noisy_jpegs` made."""
    mean_kb = sum(map(len, files)) / len(files) / 1000
    return (
        f"{len(files)} noisy JPEGs of {WIDTH} x {HEIGHT} pixels, quality {QUALITY}, 4:2:0, grain "
        f"of {GRAIN:g} grey levels, {mean_kb:.1f} kB on average."
    )
