import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx.data.loader import cache
from skindx.data.loader.cache import NodeMemory
from skindx.data.loader.source import rank_in_memory
from skindx.data.manifest import Record

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memfd is Linux's")

SIZES = [10, 0, 7000, 1, 300]


def written(folder: Path) -> tuple[list[Record], list[bytes]]:
    contents = [bytes([index]) * size for index, size in enumerate(SIZES)]
    for index, content in enumerate(contents):
        (folder / str(index)).write_bytes(content)
    return [Record(str(i), "", "", 1, 1, "x", "g", "train") for i in range(len(SIZES))], contents


def test_what_one_process_read_all_have(tmp_path: Path) -> None:
    records, contents = written(tmp_path)
    made = cache.create_memory(SIZES)
    assert made
    first = NodeMemory(tmp_path, records, SIZES, made[0])
    descriptor = cache.attach_memory(made[1])
    assert descriptor is not None
    second = NodeMemory(tmp_path, records, SIZES, descriptor)
    assert [first.read(index) for index in (0, 1, 2)] == contents[:3]
    assert [second.read(index) for index in (3, 4)] == contents[3:]
    for index in range(len(SIZES)):
        (tmp_path / str(index)).unlink()
    for node in (first, second):
        assert [node.read(index) for index in range(len(SIZES))] == contents
    del first
    assert second.read(2) == contents[2]  # the memory lives as long as anybody has it


def test_a_share_is_kept_and_the_rest_is_read(tmp_path: Path) -> None:
    records, contents = written(tmp_path)
    made = cache.create_memory(SIZES)
    assert made
    memory = NodeMemory(tmp_path, records, SIZES, made[0], share=0.5)
    assert [memory.read(index) for index in range(len(SIZES))] == contents
    for index in range(len(SIZES)):
        (tmp_path / str(index)).unlink()
        if rank_in_memory(index) < 0.5:
            assert memory.read(index) == contents[index]
        else:
            with pytest.raises(UserError, match="cannot be read"):
                memory.read(index)


def test_a_file_that_changed_its_size_is_never_kept(tmp_path: Path) -> None:
    records, contents = written(tmp_path)
    made = cache.create_memory(SIZES)
    assert made
    memory = NodeMemory(tmp_path, records, SIZES, made[0])
    (tmp_path / "0").write_bytes(b"longer than it was before")
    assert memory.read(0) == b"longer than it was before"
    (tmp_path / "0").write_bytes(contents[0])
    assert [memory.read(index) for index in (0, 1, 2)] == contents[:3]


def test_another_processs_descriptor_is_not_taken_for_ours(tmp_path: Path) -> None:
    made = cache.create_memory(SIZES)
    assert made
    descriptor, handle = made
    assert cache.attach_memory(cache.MemoryHandle(handle.pid, handle.descriptor, "other")) is None
    assert (
        cache.attach_memory(cache.MemoryHandle(2**22 + 1, handle.descriptor, handle.name)) is None
    )
    os.close(descriptor)
    assert cache.attach_memory(handle) is None


HOLD = """
import sys, time
from skindx.data.loader import cache
descriptor, handle = cache.create_memory([50_000_000])
import os
os.pwrite(descriptor, b"x" * 50_000_000, 1)
print(handle.pid, handle.descriptor, handle.name, flush=True)
time.sleep(60)
"""


def test_a_killed_process_leaves_memory_to_those_who_have_it_and_then_to_nobody() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        pid, number, name = child.stdout.readline().split()
        handle = cache.MemoryHandle(int(pid), int(number), name)
        descriptor = cache.attach_memory(handle)
        child.send_signal(signal.SIGKILL)
    assert descriptor is not None
    assert os.pread(descriptor, 3, 49_999_998) == b"xxx"
    assert cache.attach_memory(handle) is None  # no name is left that anybody could open
    os.close(descriptor)
