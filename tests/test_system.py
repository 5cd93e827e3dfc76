"""How many cores a process may use: by its affinity, and by the quotas of its cgroups."""

import os
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
