"""Describe images for the search for copies in this process, and each of them once.

Most of a small build is SIFT in a sandboxed process. Tests paint the same images again and again,
and what they look at is not how these are described: tests/data/copies does that, as a user's
builds do.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from skindx.data.copies import describe
from skindx.imaging.decode import DamagedImage


@contextmanager
def described_once() -> Iterator[None]:
    with patch.object(describe, "run_sandboxed", _here):
        yield


def _here(make_work: Any, job: Any, paths: Sequence[Path], *_: Any) -> Iterator[tuple[int, Any]]:
    assert make_work is describe.description_work
    for at, path in enumerate(paths):
        yield at, _row(path.read_bytes())


@lru_cache(1000)
def _row(data: bytes) -> dict[str, Any]:
    try:
        return describe.to_row(describe.describe_bytes(data))
    except DamagedImage:
        return describe._NOTHING
