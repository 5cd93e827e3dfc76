"""What else a machine did: clocks that drift, load of others; by hand, without waiting."""

import os
import subprocess
import sys
from pathlib import Path

from skindx_bench.harness.conditions import (
    Conditions,
    ProcessTree,
    cpu_mhz,
    drifted,
    machine_busy_s,
)


def watched(busy: list[float | None], own: list[float], mhz: float | None = 2000.0) -> Conditions:
    times = iter((0.0, 10.0))
    busy_times, own_times = iter(busy), iter(own)
    with Conditions(
        clock_mhz=lambda: mhz,
        busy_s=lambda: next(busy_times),
        own_s=lambda: next(own_times),
        every_s=60,
        clock=lambda: next(times),
    ) as conditions:
        pass
    return conditions


def test_the_share_of_others_is_what_the_machine_did_and_we_did_not() -> None:
    cores = os.cpu_count() or 1
    found = watched([0.0, 10.0 + 5.0 * cores], [0.0, 10.0])
    assert found.others_share == 0.5
    assert found.marks == ("other processes used 50 % of the cores' time",)
    assert watched([0.0, 10.0], [0.0, 10.0]).marks == ()


BURN = "import time\nwhile time.process_time() < 0.4: pass\nprint('burnt', flush=True)"
LEAVE = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', sys.argv[1]])"


def test_what_an_ended_child_leaves_behind_counts_as_ours() -> None:
    """As a fork server of ranks, which ends after the bench that started it."""
    tree = ProcessTree(os.getpid())
    with Conditions(clock_mhz=lambda: None):
        before = tree.cpu_s()
        # The pipe ends with the last process that holds it: the one that was left behind.
        done = subprocess.run([sys.executable, "-c", LEAVE, BURN], capture_output=True, check=True)
        assert done.stdout == b"burnt\n"
        assert tree.cpu_s() - before > 0.3  # counted in hundredths


def test_what_cannot_be_read_is_none_and_no_zero() -> None:
    found = watched([None, None], [0.0, 1.0], mhz=None)
    assert found.as_dict() == {"clock_mhz": None, "others_share": None, "marks": []}


def test_a_clock_that_falls_is_marked() -> None:
    assert drifted([3000, 3000, 2900, 2400, 2100, 2100])
    assert not drifted([3000, 2000, 3010, 3000, 2990, 3000, 3010, 2990, 3000])
    assert not drifted([3000])


def test_files_of_the_system(tmp_path: Path) -> None:
    for core, khz in ((0, 1_000_000), (1, 3_000_000)):
        folder = tmp_path / f"cpu{core}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{khz}\n")
    assert cpu_mhz(tmp_path, tmp_path / "none") == 2000
    (tmp_path / "cpuinfo").write_text("cpu MHz\t\t: 1500.0\ncpu MHz\t\t: 2500.0\n")
    assert cpu_mhz(tmp_path / "none", tmp_path / "cpuinfo") == 2000
    assert cpu_mhz(tmp_path / "none", tmp_path / "none") is None
    tick = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(f"cpu {tick} {tick} {tick} 999 999 0 0 {tick} 0 0\n")
    assert machine_busy_s(tmp_path / "stat") == 4.0
    assert machine_busy_s(tmp_path / "none") is None
