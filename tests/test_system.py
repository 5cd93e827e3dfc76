"""Cores that a process may use, by its affinity and the quotas of its cgroups; free ports."""

import os
import socket
from pathlib import Path

import pytest

from skindx import system


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 3),  # two and a half: the third is there half the time
        ({"cpu.max": "1000 100000"}, 1),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, 8),
        ({"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}, 2),
        ({"cpu.max": "nonsense"}, 8),
    ],
)
def test_cores_are_those_of_affinity_and_quota(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(system, "_cgroup_folders", lambda: [tmp_path / "gone", tmp_path])
    assert system.cpu_count() == cores


def test_this_process_may_use_some() -> None:
    assert 1 <= system.cpu_count() <= (os.cpu_count() or 1)


def test_a_free_port_is_one_that_the_system_gives_to_no_connection() -> None:
    ports = {system.free_port() for _ in range(20)}
    assert ports <= set(range(15_000, 30_000))
    assert len(ports) > 1


def test_a_port_in_use_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", system.free_port()))
        listener.listen()
        taken = listener.getsockname()[1]
        monkeypatch.setattr(system, "_PORTS", [taken] * 100)
        assert system.free_port() not in (0, taken)


def test_free_memory_of_a_machine_and_of_a_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  1000 kB\nMemAvailable:  900 kB\nHugePages_Total:  0\n")
    assert system.free_memory(meminfo, tmp_path) == 900 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("300000\n")
    (tmp_path / "memory.stat").write_text("anon 200000\ninactive_file 50000\n")
    assert system.free_memory(meminfo, tmp_path) == 900 * 1024
    (tmp_path / "memory.max").write_text("400000\n")
    assert system.free_memory(meminfo, tmp_path) == 400_000 - 300_000 + 50_000
    (tmp_path / "memory.max").write_text("200000\n")
    assert system.free_memory(meminfo, tmp_path) == 0
    assert system.free_memory() > 0
