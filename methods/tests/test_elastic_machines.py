"""Elastic trainings as a user starts them on several machines; here all of them are this one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from skindx.core.errors import UserError
from skindx.core.machine import free_port
from skindx.training.config.run import TrainSettings
from skindx.training.registry import run_method

LIMIT_S = 240


def test_a_hostfile_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (hostfile := tmp_path / "hosts").write_text("node1 slots=1\nnode2 slots=1\n")
    settings = TrainSettings.parse({"engine": {"hostfile": hostfile, "elastic": {}}})
    with pytest.raises(
        UserError, match=r"engine.elastic .* engine.hostfile, .* one torchrun on each"
    ):
        run_method(settings).launch(tmp_path / "run", tmp_path)


class _Training:
    """Processes of one training, and its history."""

    def __init__(self, folder: Path, dataset: Path) -> None:
        self.folder, self.run = folder, folder / "run"
        settings = {
            "engine": {"accelerator": "cpu", "elastic": {"min_ranks": 1, "silent_s": 2}},
            "recipe": {"epochs": 40, "batch": 9},
            "members": [{"name": "a", "model": "test_resnet", "preprocess": {"size": 32}}],
            "loader": {"threads": 1},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
        config = str(folder / "config.yaml")
        self.words = ["-m", "skindx", "train", str(dataset), "--config", config]
        self.words += ["--out", str(self.run)]
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a Python."""
        with (self.folder / f"{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *words],
                env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def until(self, **wanted: list[int]) -> dict[str, Any]:
        """Wait for a row of the history whose fields are these."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            file = self.run / "elastic.jsonl"
            rows = file.read_text().splitlines() if file.exists() else []
            for row in map(json.loads, rows):
                if all(row[key] == value for key, value in wanted.items()):
                    return row
            assert any(process.poll() is None for process in self.processes), self.printed()
            time.sleep(0.1)
        raise AssertionError(f"no row with {wanted}\n{self.printed()}")

    def printed(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self.folder.glob("*.log")))


@pytest.fixture
def training(small_dataset: Path, tmp_path: Path) -> Iterator[_Training]:
    result = _Training(tmp_path, small_dataset)
    yield result
    for process in result.processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.distributed
def test_a_launcher_starts_the_ranks_and_packs(training: _Training) -> None:
    change = [word for one in ("engine.ranks=2", "recipe.epochs=1") for word in ("--set", one)]
    assert training.start(*training.words, *change).wait(LIMIT_S) == 0, training.printed()
    (row,) = (training.run / "elastic.jsonl").read_text().splitlines()
    assert json.loads(row)["ranks"] == [0, 1]
    assert (training.run / "bundle").is_dir()


@pytest.mark.long
@pytest.mark.distributed
def test_agents_of_torchrun_start_their_rank_again_alone(training: _Training) -> None:
    port, module = str(free_port()), training.words[1:]
    agents = [
        training.start(
            *("-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)),
            *("--nproc-per-node", "1", "--max-restarts", "100"),
            *("--master-addr", "127.0.0.1", "--master-port", port, "-m", *module),
        )
        for node in range(2)
    ]
    training.until(group=1)
    psutil.Process(agents[1].pid).children()[0].kill()
    training.until(left={"1": "its process ended"}, ranks=[0])
    training.until(ranks=[0, 1], came=[1])
    assert [agent.wait(LIMIT_S) for agent in agents] == [0, 0], training.printed()
    assert (training.run / "bundle").is_dir()


@pytest.mark.long
@pytest.mark.distributed
def test_a_rank_by_address_takes_the_place_of_one_that_left(training: _Training) -> None:
    at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    launcher = training.start(*training.words, "--set", "engine.ranks=2", **at)
    training.until(group=1)
    note = json.loads((training.run / "ranks" / "rank-1.json").read_text())
    os.kill(note["pid"], signal.SIGTERM)
    training.until(ranks=[0])
    place = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "SKINDX_ELASTIC": "1"}
    other = training.start(*training.words, "--set", "engine.ranks=2", **at, **place)
    assert training.until(ranks=[0, 1], came=[1])["state_from"] == [0]
    assert launcher.wait(LIMIT_S) == 0, training.printed()
    assert other.wait(LIMIT_S) == 0, training.printed()
    assert (training.run / "bundle").is_dir()
