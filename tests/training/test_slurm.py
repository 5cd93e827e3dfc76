"""The batch script, run by bash with stand-ins for Slurm's programs."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skindx.cli import app
from skindx.training.deepspeed.ranks import read_hosts

TRAIN = Path(__file__).parents[2] / "train"
SCRIPT = TRAIN / "slurm.sbatch"

_SCONTROL = """#!/usr/bin/env bash
if [ "$1 $2" = "show job" ]; then echo "PreemptTime=${PREEMPTED:-None}"; exit; fi
if [ "$1" = show ]; then printf 'node1\\nnode2\\n'; else echo "$@" >> "$SEEN/scontrol"; fi
"""
_SCANCEL = """#!/usr/bin/env bash
[ "$*" = "--signal=TERM $SLURM_JOB_ID" ] && kill -TERM "$(cat "$SEEN/ready")"
"""
_SRUN = """#!/usr/bin/env bash
while [ "$1" != bash ]; do shift; done
exec "$@"
"""
_PYTHON = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$SEEN/python"
[ -n "${BUSY:-}" ] || exit "${ENDS:-0}"
trap 'kill $!; touch "$SEEN/ended"; exit 0' TERM
sleep 60 > /dev/null &
echo "$$" > "$SEEN/ready.new" && mv "$SEEN/ready.new" "$SEEN/ready"
wait
"""


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose programs write into tmp_path what they were called with."""
    programs = tmp_path / "bin"
    programs.mkdir()
    stubs = {"scontrol": _SCONTROL, "scancel": _SCANCEL, "srun": _SRUN, "python": _PYTHON}
    for name, text in stubs.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SEEN": str(tmp_path),
        **{"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "71003", "SLURM_NNODES": "2"},
        **{"SLURM_NODEID": "1", "SLURM_GPUS_ON_NODE": "4"},
    }


def _command(*more: str) -> list[str]:
    return ["bash", str(SCRIPT), "my data", "my.yaml", "my run", *more]


def test_bash_reads_the_script() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def test_every_node_runs_a_command_that_we_accept(slurm: dict[str, str], tmp_path: Path) -> None:
    subprocess.run(_command("--set", "recipe.epochs=3"), env=slurm, check=True, timeout=60)
    words = (tmp_path / "python").read_text().splitlines()
    assert words[:2] == ["-m", "torch.distributed.run"]
    wanted = ("nnodes=2", "node-rank=1", "nproc-per-node=4", "master-addr=node1")
    assert words[2:6] == [f"--{option}" for option in wanted]
    assert words[6] == "--master-port=31003"
    assert words[7:9] == ["-m", "skindx"]
    assert words[9:11] == ["train", "my data"]
    done = CliRunner().invoke(app, words[9:])
    assert "my.yaml does not exist" in str(done.exception)  # understood, as far as its files go


def test_near_its_end_a_job_stops_cleanly_and_queues_again(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    environment = {**slurm, "BUSY": "1"}
    with subprocess.Popen(_command(), env=environment, stdout=subprocess.PIPE) as job:
        try:
            deadline = time.monotonic() + 60
            while not (tmp_path / "ready").exists():
                assert job.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            job.send_signal(signal.SIGUSR1)
            said, _ = job.communicate(timeout=60)
        finally:
            job.kill()
    assert job.returncode == 0
    assert b"time is nearly up" in said
    assert (tmp_path / "ended").exists()
    assert (tmp_path / "scontrol").read_text() == "requeue 71003\n"


@pytest.mark.parametrize(
    ("preempted", "code", "queued"), [("2026-11-27T01:02:20", 0, True), ("None", 7, False)]
)
def test_a_job_that_fails_queues_again_only_if_another_took_its_nodes(
    slurm: dict[str, str], tmp_path: Path, preempted: str, code: int, *, queued: bool
) -> None:
    environment = {**slurm, "ENDS": "7", "PREEMPTED": preempted}
    done = subprocess.run(
        _command(), env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code
    assert ("another job takes the nodes" in done.stdout) == queued
    assert (tmp_path / "scontrol").exists() == queued


def test_too_few_arguments(slurm: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT), "data"], env=slurm, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "usage: sbatch train/slurm.sbatch DATASET CONFIG RUN" in done.stderr


def test_the_example_hostfile_is_one() -> None:
    assert read_hosts(TRAIN / "hostfile.example") == ["node1", "node2"]
