"""The file of a monitor: what it holds, killed writers, two processes, another bundle."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from skindx.cli import app
from skindx.core.errors import UserError
from skindx.monitor import monitor_file
from skindx.monitor.drift_detector import URGENT, DriftDetector, Stream
from skindx.monitor.monitor_file import MonitorFile, charts, shift_of, summary

STREAMS = (
    Stream("yellow", "camera", "photos are yellower", "photos are bluer"),
    Stream("sketch-1", "kind", "the networks see other photos", "the networks see other photos"),
    URGENT,
)
CLASSES = ("nevus", "melanoma")
VERSION = "a" * 64


def photos(count: int, seed: int = 0, yellow: float = 0.0) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    numbers_QK = random.standard_normal((count, len(STREAMS) + len(CLASSES)))
    numbers_QK[:, 0] += yellow
    numbers_QK[:, 2:] = random.random((count, 3)) * 0.4
    return numbers_QK.astype(np.float32)


def numbers_of(reference: NDArray[np.float32] | None, why: str = "") -> Any:
    """Stand in for the numbers of a bundle."""
    bundle = SimpleNamespace(
        spec=SimpleNamespace(name="small"), taxonomy=SimpleNamespace(keys=CLASSES)
    )
    return SimpleNamespace(bundle=bundle, streams=STREAMS, reference=lambda: (reference, why))


@pytest.fixture(autouse=True)
def short_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DriftDetector, "fit", partial(DriftDetector.fit, run_length=300, runs=40))


@pytest.fixture
def monitor(tmp_path: Path) -> MonitorFile:
    return MonitorFile.create(tmp_path / "monitor.db", numbers_of(photos(300)), VERSION)


def test_a_shift_is_named_in_words(monitor: MonitorFile, tmp_path: Path) -> None:
    for seed in range(4):
        monitor.add(photos(10, 50 + seed))
    assert summary(monitor.read())[-1].startswith("No alarm")
    for seed in range(8):
        monitor.add(photos(10, 90 + seed, yellow=3))
    state = monitor.read()
    assert shift_of(state) == "camera"
    lines = "\n".join(summary(state))
    assert "photos are yellower (yellow); alarm at photo" in lines
    assert "skindx adapt" in lines
    since = state.alarms[0].since
    assert abs(since - 41) <= 6
    shown = CliRunner().invoke(app, ["monitor", str(tmp_path / "monitor.db")])
    assert shown.output.splitlines() == summary(state)
    assert next(chart.alarm for chart in charts(state))
    # The alarms are one row a test, however long the shift lasts.
    assert len(state.alarms) <= 2 * len(STREAMS)


def test_the_file_does_not_grow(monitor: MonitorFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_file, "KEPT", 20)
    for seed in range(6):
        monitor.add(photos(10, seed))
    state = monitor.read()
    assert (state.levels.photos, len(state.numbers_KN)) == (60, 20)
    np.testing.assert_array_equal(state.numbers_KN[-10:], photos(10, 5))


def test_the_first_photos_are_the_reference_of_a_bundle_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_file, "LEARNED", 60)
    bare = numbers_of(None, "the bundle holds no features of calibration images")
    monitor = MonitorFile.create(tmp_path / "monitor.db", bare, VERSION)
    monitor.add(photos(60))
    assert monitor.read().detector is None
    assert "the bundle holds no features" in "\n".join(summary(monitor.read()))
    monitor.add(photos(10, 1))
    state = monitor.read()
    assert len(state.reference) == 60
    assert "60 photos that were served" in summary(state)[1]
    monitor.add(photos(40, 2, yellow=-4))
    assert monitor.read().alarms
    assert monitor.accept() == 110
    assert not monitor.read().alarms
    few = MonitorFile.create(tmp_path / "few.db", numbers_of(photos(40)), VERSION)
    assert "40 lesions" in few.read().head.no_reference
    with pytest.raises(UserError, match="then accept them"):
        few.accept()


def test_another_bundle_is_refused(monitor: MonitorFile, tmp_path: Path) -> None:
    file = tmp_path / "monitor.db"
    MonitorFile.create(file, numbers_of(photos(300)), VERSION)
    with pytest.raises(UserError, match="another bundle") as refused:
        MonitorFile.create(file, numbers_of(photos(300)), "b" * 64)
    assert str(refused.value).count(". ") == 0
    assert monitor.read().levels.photos == 0


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + bytes(100)])
def test_what_is_no_monitor_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "other"
    file.write_bytes(content)
    with pytest.raises(UserError, match="cannot be used as a monitor file"):
        MonitorFile.create(file, numbers_of(photos(300)), VERSION)
    assert file.read_bytes() == content
    with pytest.raises(UserError, match="does not exist"):
        MonitorFile(tmp_path / "none").read()
    with pytest.raises(UserError, match="cannot be created"):
        MonitorFile.create(tmp_path / "none" / "file", numbers_of(photos(300)), VERSION)


def test_tables_that_do_not_fit_are_one_sentence(monitor: MonitorFile) -> None:
    with monitor._opened(write=True) as database:
        database.execute("UPDATE monitor SET levels = x'00'")
    with pytest.raises(UserError, match="cannot be used"):
        monitor.add(photos(1))


WRITER = """
import sys
from pathlib import Path
import numpy as np
from skindx.monitor.monitor_file import MonitorFile
monitor = MonitorFile(Path(sys.argv[1]))
numbers = np.random.default_rng(int(sys.argv[2])).random((1, 5)).astype(np.float32)
for _ in range(int(sys.argv[3])):
    monitor.add(numbers)
"""


def writer(file: Path, count: int, seed: int = 0) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", WRITER, str(file), str(seed), str(count)])


def test_two_processes_and_a_killed_one_leave_a_whole_file(
    monitor: MonitorFile, tmp_path: Path
) -> None:
    file = tmp_path / "monitor.db"
    counted, killed = writer(file, 40), writer(file, 10**6, seed=1)
    deadline = time.monotonic() + 60
    while monitor.read(rows=False).levels.photos < 60:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert counted.wait(timeout=60) == 0
    state = monitor.read()
    assert state.levels.photos == len(state.numbers_KN)  # each photo once, whole
    mine = np.random.default_rng(0).random((1, 5)).astype(np.float32)
    assert (state.numbers_KN == mine).all(axis=1).sum() == 40
    # The tests are where they would be after the same photos in one process.
    again = MonitorFile.create(tmp_path / "again.db", numbers_of(photos(300)), VERSION)
    again.add(state.numbers_KN)
    np.testing.assert_array_equal(again.read().levels.level_A, state.levels.level_A)


def test_a_newer_file_is_refused(monitor: MonitorFile) -> None:
    written = monitor_file._written(replace(monitor.read().head)).replace(
        '"format": 1', '"format": 2'
    )
    with monitor._opened(write=True) as database:
        database.execute("UPDATE monitor SET head = ?", (written,))
    with pytest.raises(UserError, match="newer version"):
        monitor.read()
