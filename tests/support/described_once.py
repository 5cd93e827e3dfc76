"""Describe each image for the search for copies once in a session: SIFT is most of a small build.

Tests paint the same images again and again. What a description is does not change by it; how
images reach it, in a sandboxed process, is what tests/data/copies looks at.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies import describe
from skindx.data.copies.describe import Description
from skindx.imaging.decode import DamagedImage

_MOST = 2000
_describe = describe.describe


@contextmanager
def described_once() -> Iterator[None]:
    """Remember what this process has described: a packed bundle describes what it learned from."""
    with patch.object(describe, "describe", _remembered):
        yield


@contextmanager
def described_here() -> Iterator[None]:
    """Describe the images of a build in this process, which remembers them."""
    with patch.object(describe, "run_sandboxed", _run_here):
        yield


def _remembered(grey_HW: NDArray[np.uint8]) -> Description:
    return _of(grey_HW.shape, grey_HW.tobytes())


@lru_cache(_MOST)
def _of(shape: tuple[int, int], grey: bytes) -> Description:
    return _describe(np.frombuffer(grey, np.uint8).reshape(shape).copy())


def _run_here(
    make_work: Any, job: Any, paths: Sequence[Path], *_: Any
) -> Iterator[tuple[int, Any]]:
    assert make_work is describe.description_work
    for at, path in enumerate(paths):
        try:
            yield at, describe.to_row(describe.describe_bytes(path.read_bytes()))
        except DamagedImage:
            yield at, describe._NOTHING
