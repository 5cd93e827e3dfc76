import platform
import resource
import subprocess
import sys

import pytest

COUNT = """
import resource, sys
from skindx.core.machine import keep_freed_memory
how, size = sys.argv[1], int(sys.argv[2])
if how != "plain":
    assert keep_freed_memory(large=how == "keep")
def step():
    return b"x" * size
for _ in range(10):
    step()  # the heap finds its size
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.parametrize(
    ("size", "how", "kept"),
    # 40 MB are above what glibc ever learns to keep by itself.
    [(40_000_000, "keep", True), (40_000_000, "small", False), (20_000_000, "small", True)],
)
def test_freed_memory_is_not_faulted_in_again(size: int, how: str, kept: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", COUNT, how, str(size)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    pages = 10 * size // resource.getpagesize()
    assert (int(ran.stdout) < pages / 4) == kept
