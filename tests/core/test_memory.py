import platform
import subprocess
import sys

import pytest

COUNT = """
import resource, sys
from skindx.core.machine import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def step():
    return b"x" * 40_000_000  # above what glibc ever learns to keep by itself
for _ in range(10):
    step()  # the heap finds its size
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_memory_is_not_faulted_in_again() -> None:
    faults = {
        how: int(
            subprocess.run(
                [sys.executable, "-c", COUNT, how],
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            ).stdout
        )
        for how in ("plain", "keep")
    }
    assert faults["keep"] < faults["plain"] / 4
