"""`skindx train` as typed, interrupted in the middle of an epoch again and again, and finished."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faults
import psutil
import pytest
import yaml
from command_line import Skindx
from safetensors.torch import load_file

from skindx.training.config.run import TrainSettings
from skindx.training.launching.supervise import RANKS, read_notes

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

SETTINGS = {
    "engine": {"accelerator": "cpu", "ranks": 2},
    # Its residuals differ by rank, and have to come back to the bit as well.
    "exchange": {"kind": "gtopk", "density": 0.05, "warmup": [0.5]},
    "recipe": {"epochs": 5, "batch": 9},
    "members": [
        {
            "name": "a",
            "model": "test_resnet",
            "model_args": {"drop_rate": 0.2},
            "preprocess": {"size": 64},
        }
    ],
    "detector": None,
    "loader": {"threads": 1},
    "checkpoint": {"every_steps": 2, "grace_s": 60},
}
MUON = {"recipe": {**SETTINGS["recipe"], "optimizer": "muon"}}
SHORT = {"recipe": {**SETTINGS["recipe"], "epochs": 4}}
LIMIT_S = 240
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@dataclass
class Training:
    """A command at work, stopped nowhere yet, with two ranks below it."""

    run: Path
    process: subprocess.Popen[str]

    def __post_init__(self) -> None:
        self._before = set(self._saved())

    def _saved(self) -> list[str]:
        folder = self.run / "checkpoints" / "a"
        return [file.name for file in folder.glob("epoch-*") if not file.name.endswith("-000000")]

    def wait_until_mid_epoch(self, epoch: int = 1) -> dict[int, psutil.Process]:
        """Wait for a new checkpoint in the middle of `epoch` or a later one; return the ranks."""
        deadline = time.monotonic() + LIMIT_S
        while max(set(self._saved()) - self._before, default="") < f"epoch-{epoch:04}":
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        command = psutil.Process(self.process.pid)
        self._all = [command, *command.children(recursive=True)]
        self._port = next(port for port in map(_port_of, self._all) if port)
        notes = read_notes(self.run / RANKS)
        assert [note.rank for note in notes] == [0, 1]
        return {note.rank: psutil.Process(note.pid) for note in notes}

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit code and what was said. Nothing may be left."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        left = [worker for worker in self._all if worker.is_running()]
        assert not left
        assert not list(Path("/dev/shm").glob(f"*_{self._port}_*"))
        assert not (self.run / "bundle").exists()
        return self.process.returncode, out, err


def _port_of(process: psutil.Process) -> str:
    """Return where the ranks met, if this is our launcher or a rank of torchrun's."""
    words = process.cmdline()
    if "skindx.training.launching.local" in words:
        return words[words.index("skindx.training.launching.local") + 3]
    return process.environ().get("MASTER_PORT", "")


@contextmanager
def _training(
    dataset: Path, config: Path, run: Path, before: tuple[str, ...] = ()
) -> Iterator[Training]:
    process = subprocess.Popen(
        _command(dataset, config, run, before),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        yield Training(run, process)
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()


def _command(dataset: Path, config: Path, run: Path, before: tuple[str, ...] = ()) -> list[str]:
    command = ["train", str(dataset), "--config", str(config), "--out", str(run)]
    return [sys.executable, *before, "-m", "skindx", *command]


@pytest.fixture
def two_cores() -> Iterator[None]:
    """Let the launcher find a core for each rank: threads decide the last bits of a sum."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    yield
    os.sched_setaffinity(0, before)


def _sigterm(training: Training, again: str) -> None:
    training.wait_until_mid_epoch()
    training.process.send_signal(signal.SIGTERM)
    code, out, err = training.end()
    assert code == 128 + signal.SIGTERM, err
    assert out == ""
    (said,) = [line for line in err.splitlines() if line.startswith("stopped")]
    assert said.startswith("stopped by SIGTERM before the training was finished (a: ")
    assert said.endswith(f"steps done); to go on: {again}")


def _sigterm_to_a_rank(training: Training, again: str) -> None:
    training.wait_until_mid_epoch()[1].send_signal(signal.SIGTERM)
    code, _, err = training.end()
    assert code == 128 + signal.SIGTERM, err
    assert "stopped by SIGTERM to rank 1 before the training was finished (a: " in err
    assert again in err


def _sigkill_to_a_rank(training: Training, again: str) -> None:
    victim = training.wait_until_mid_epoch()[1]
    victim.send_signal(signal.SIGKILL)
    code, _, err = training.end()
    assert code == 1
    assert "goes on from its checkpoint: " in err
    said = err.splitlines()[-1]
    assert said.startswith(f"error: rank 1 (process {victim.pid} on ")
    assert "run the same command again to go on" in said
    assert "Traceback" not in err


def _torchrun(training: Training, again: str) -> None:
    """Stop torchrun's ranks behind an epoch's end: they do what the launcher's would have done."""
    training.wait_until_mid_epoch(3)[1].send_signal(signal.SIGTERM)
    code, _, err = training.end()
    assert code != 0, err
    (said,) = [line for line in err.splitlines() if "run the same command again to go on" in line]
    assert said.startswith("stopped before the training was finished (a: ")


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("interruptions", "change"),
    [
        ([_sigterm], SHORT),
        pytest.param([_sigterm], {}, marks=pytest.mark.long),
        pytest.param(
            [_sigkill_to_a_rank, _sigterm_to_a_rank, _torchrun], {}, marks=pytest.mark.long
        ),
        pytest.param(
            [_sigterm, _sigkill_to_a_rank],
            {"exchange": {"kind": "local", "steps": 4, "overlap": 2}},
            marks=pytest.mark.long,
        ),
        pytest.param([_sigterm], MUON | {"exchange": {"kind": "dense"}}, marks=pytest.mark.long),
        pytest.param(
            [_sigterm],
            MUON | {"exchange": {"kind": "local", "steps": 4, "outer_momentum": 0.5}},
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_training_survives_what_happens_to_it(
    small_dataset: Path,
    tmp_path: Path,
    interruptions: list[Callable[[Training, str], None]],
    change: dict[str, Any],
    skindx: Skindx,
) -> None:
    """One interruption after the other; the bits are those of a training left alone.

    The short training goes on in this process, whose launcher has imported all.
    """
    config, run, whole = (tmp_path / name for name in ("train.yaml", "run", "whole"))
    settings = SETTINGS | change
    config.write_text(yaml.safe_dump(settings))
    ranks = faults.start(2, whole, small_dataset, TrainSettings.parse(settings))
    assert faults.wait(ranks) == [0, 0]

    again = shlex.join(["skindx", *_command(small_dataset, config, run)[3:]])
    for interrupt in interruptions:
        before = TORCHRUN if interrupt is _torchrun else ()
        with _training(small_dataset, config, run, before) as training:
            interrupt(training, again)

    other = shutil.copytree(run, tmp_path / "other")
    if change is not SHORT:
        done = _to_its_end(_command(small_dataset, config, run))
        assert f"packed {run / 'bundle'}: a" in done.stdout.splitlines()
        assert "a  epoch   5  " in done.stderr
    else:
        code, out, err = skindx(*_command(small_dataset, config, run)[3:])
        assert code == 0, err
        assert f"packed {run / 'bundle'}: a" in out.splitlines()
    file = "members/a/model.safetensors"
    ours, theirs = load_file(run / file), load_file(whole / file)
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)
    if "exchange" in change:
        alone = [*_command(small_dataset, config, other), "--set", "engine.ranks=1"]
        assert "goes on from its checkpoint: " in _to_its_end(alone).stderr
        assert (other / "bundle").exists()


def _to_its_end(command: list[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    return done
