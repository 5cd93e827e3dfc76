"""Checkpoints that a thread writes while the training goes on."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_engine import Alone, Plain
from ranks import forking

from skindx.training.checkpoint import keeper as store
from skindx.training.checkpoint import rank_parts
from skindx.training.checkpoint.keeper import At, Keeper
from skindx.training.checkpoint.rank_parts import NotSavedError
from skindx.training.checkpoint.saved_state import Buffers
from skindx.training.config.engine import CheckpointSettings


def _keeper(folder: Path, plain: Plain, lines: list[str]) -> Keeper:
    return Keeper(
        folder,
        "m",
        CheckpointSettings(),
        Alone(),
        lines.append,
        shared={"plain": plain},
        per_rank={"statistics": Buffers([plain.module], 0, 1)},
    )


def _files(checkpoint: Path) -> dict[str, bytes]:
    files = (path for path in checkpoint.rglob("*") if path.is_file())
    return {str(file.relative_to(checkpoint)): file.read_bytes() for file in files}


class SlowDisk:
    """A disk that takes nothing until it is free."""

    def __init__(self) -> None:
        self.free, self._flush = threading.Event(), rank_parts.flush

    def flush(self, path: Path) -> None:
        assert self.free.wait(20)
        self._flush(path)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    disk = SlowDisk()
    monkeypatch.setattr(rank_parts, "flush", disk.flush)
    return disk


def test_bytes_are_those_of_a_save_that_is_waited_for(slow: SlowDisk, tmp_path: Path) -> None:
    at_once, behind, lines = Plain(), Plain(), []
    keeper = _keeper(tmp_path / "behind", behind, lines)
    at_once.step(0)
    behind.step(0)
    assert keeper.save(At(0, 1), wait=False)
    for number in range(1, 4):
        behind.step(number)  # all tensors change while the old ones are on their way
    assert store.saved_in(tmp_path / "behind") == []
    slow.free.set()
    keeper.settle()
    assert _keeper(tmp_path / "at once", at_once, lines).save(At(0, 1))
    ours, theirs = (
        _files(store.path_of(tmp_path / name, At(0, 1))) for name in ("behind", "at once")
    )
    assert ours == theirs
    assert len(ours) == 5
    assert lines == []


class Fixed:
    """What is saved as it is given."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        pass


def test_the_hashes_are_those_of_versions_without_a_thread(tmp_path: Path) -> None:
    """Written by the version before checkpoints were written behind the steps."""
    weights = torch.arange(12, dtype=torch.float32).view(3, 4)
    named = {"a": weights / 7, "tied": weights[1:].T, "half": (weights / 3).bfloat16()}
    engine = {"weights": named, "optimizer": {"a": {"step": 3, "exp_avg": weights / 9}}}
    shared = {"engine": engine, "position": {"epoch": 0, "step": 2, "loss": 0.1}}
    random = {"torch": torch.arange(8, dtype=torch.uint8), "numpy": np.arange(5, dtype=np.int64)}
    settings = CheckpointSettings()
    keeper = Keeper(tmp_path, "m", settings, Alone(), print, shared={"all": Fixed(shared)},
                    per_rank={"all": Fixed({"random": random})})  # fmt: skip
    assert keeper.save(At(0, 2), wait=False)
    keeper.settle()
    files = store.read_index(store.path_of(tmp_path, At(0, 2)))["files"]
    assert {name: (entry["sha256"][:16], entry["bytes"]) for name, entry in files.items()} == {
        "rank-0/tensors.safetensors": ("7a530159723a7b53", 200),
        "rank-0/values.json": ("b152f5f73af805ae", 245),
        "shared/tensors.safetensors": ("8eda14c26e172f31", 488),
        "shared/values.json": ("cb9867496f96eb3a", 866),
    }


def test_one_at_a_time_and_a_stop_waits_for_it(slow: SlowDisk, tmp_path: Path) -> None:
    plain, lines = Plain(), []
    keeper = _keeper(tmp_path, plain, lines)
    assert keeper.save(At(0, 1), wait=False)
    threading.Timer(0.2, slow.free.set).start()
    assert keeper.save(At(0, 2))
    assert store.saved_in(tmp_path) == [At(0, 2), At(0, 1)]
    before = _files(store.path_of(tmp_path, At(0, 2)))
    plain.step(0)
    assert keeper.save(At(0, 2), wait=False)  # a stop right after a save
    keeper.settle()
    assert _files(store.path_of(tmp_path, At(0, 2))) == before


def test_without_room_for_a_copy_the_step_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "free_memory", lambda: 0)
    assert _keeper(tmp_path, Plain(), []).save(At(0, 1), wait=False)
    assert store.saved_in(tmp_path) == [At(0, 1)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB, where this process may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root alone")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_told_while_the_training_goes_on(small_disk: Path) -> None:
    plain, lines = Plain(), []
    keeper = _keeper(small_disk, plain, lines)
    assert keeper.save(At(0, 1), wait=False)
    keeper.settle()
    (small_disk / "other").write_bytes(bytes(30_000))
    assert keeper.save(At(0, 2), wait=False)
    deadline = time.monotonic() + 10
    while not lines and time.monotonic() < deadline:
        keeper.due()  # as each step asks
        time.sleep(0.01)
    (line,) = lines
    assert line.startswith("no checkpoint was written (")
    assert "No space left on device" in line
    assert store.saved_in(small_disk) == [At(0, 1)]
    (small_disk / "other").unlink()
    assert keeper.save(At(0, 2), wait=False)  # the same place again
    keeper.settle()
    assert store.saved_in(small_disk) == [At(0, 2), At(0, 1)]


def _train_until_killed(folder: Path) -> None:
    disk, plain = SlowDisk(), Plain()
    keeper = _keeper(folder, plain, [])
    for number in range(100):
        plain.step(number)
        if number == 3:
            keeper.settle()
            rank_parts.flush = disk.flush  # this one never comes to its end
        if number in (1, 3):
            keeper.save(At(0, number + 1), wait=False)
        time.sleep(0.02)


def test_a_kill_while_the_thread_writes_costs_nothing(tmp_path: Path) -> None:
    process = forking().Process(target=_train_until_killed, args=(tmp_path,))
    process.start()
    deadline = time.monotonic() + 30
    half = store.writing(tmp_path) / "rank-0" / "tensors.safetensors"
    while not (store.saved_in(tmp_path) and half.exists()) and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert store.saved_in(tmp_path) == [At(0, 2)]
    whole, again, lines = Plain(), Plain(), []
    for number in range(6):
        whole.step(number)
    keeper = _keeper(tmp_path, again, lines)
    assert keeper.resume() == At(0, 2)
    for number in range(2, 6):
        again.step(number)
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(again.module.parameters(), whole.module.parameters(), strict=True)
    )
    assert keeper.save(At(0, 6), wait=False)
    keeper.settle()
    assert store.saved_in(tmp_path) == [At(0, 6), At(0, 2)]
    assert lines == []


def _refuse() -> dict[str, str]:
    raise OSError(28, "No space left on device")


def test_ranks_answer_for_their_parts_by_files(tmp_path: Path) -> None:
    store.begin(tmp_path, ranks=3)
    temporary = store.writing(tmp_path)
    files = {f"rank-{rank}/x": {"sha256": str(rank), "bytes": rank} for rank in (1, 2)}
    late = threading.Timer(
        0.1, rank_parts.answer_with, (temporary, 2, lambda: {"rank-2/x": files["rank-2/x"]})
    )
    late.start()
    assert rank_parts.answer_with(temporary, 1, lambda: {"rank-1/x": files["rank-1/x"]}) == ""
    assert rank_parts.collect(temporary, 3, lambda: False) == files
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (lambda at: rank_parts.answer_with(at, 1, _refuse), "rank 1: .* No space left on device"),
        (lambda at: (at / "rank-1.json").unlink(), "rank 1: it could not write"),
        (lambda at: None, "rank 1: it has not answered in time"),
    ],
)
def test_a_rank_that_cannot_write_or_is_gone(second: object, words: str, tmp_path: Path) -> None:
    store.begin(tmp_path, ranks=2)
    second(store.writing(tmp_path))
    with pytest.raises(NotSavedError, match=words):
        rank_parts.collect(store.writing(tmp_path), 2, lambda: True)
