"""Checkpoints that several ranks' threads write: under ZeRO, and where one has an accident."""

import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import forking, free_port, run_ranks
from states import as_arrays
from torch import nn

from skindx.training.checkpoint import keeper as store
from skindx.training.checkpoint import rank_parts
from skindx.training.checkpoint.keeper import At, Keeper, path_of, read_index, saved_in
from skindx.training.checkpoint.resume import RandomNumbers
from skindx.training.config.engine import CheckpointSettings, EngineSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.mesh import Mesh, leave

BATCH = 12
CPU = torch.device("cpu")
ZERO = (1, 3)
"""The code of DeepSpeed's second stage is that of its first."""


class Kept:
    """An engine with AdamW, and its checkpoints."""

    def __init__(self, mesh: Mesh, folder: Path, zero: int = 0) -> None:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
        settings = mesh.settings.model_copy(update={"zero": zero})
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        self.mesh, self.lines, self.folder = mesh, [], folder
        self.engine = Engine(module, optimizer, Mesh(mesh.data, CPU, settings), BATCH)
        self.keeper = Keeper(
            folder,
            "m",
            CheckpointSettings(),
            mesh,
            self.lines.append,
            shared={"engine": self.engine},
            per_rank={"random": RandomNumbers(mesh.data.rank, mesh.data.size, CPU)},
        )

    def step(self, number: int) -> None:
        data = self.mesh.data
        inputs = torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(number))
        inputs, labels = (
            inputs[data.rank :: data.size],
            (torch.arange(BATCH) % 3)[data.rank :: data.size],
        )
        loss = nn.functional.cross_entropy(self.engine(inputs), labels, reduction="sum")
        self.engine.backward(loss, BATCH)
        self.engine.step(0.1)

    def steps(self, first: int, last: int) -> dict[str, Any]:
        """Take steps and return the weights."""
        for number in range(first, last):
            self.step(number)
        return as_arrays(self.engine.state_dict()["weights"])

    def go_on(self, last: int) -> tuple[At | None, dict[str, Any]]:
        """Go on from the last checkpoint."""
        at = self.keeper.resume()
        weights = self.steps(at.step if at else 0, last)
        self.engine.close()
        return at, weights


class SlowDisk:
    """A disk of this rank that takes nothing until it is free."""

    def __init__(self) -> None:
        self.free, self._flush = threading.Event(), rank_parts.flush
        rank_parts.flush = self._wait

    def _wait(self, path: Path) -> None:
        assert self.free.wait(60)
        self._flush(path)

    def let_go(self) -> None:
        rank_parts.flush = self._flush
        self.free.set()


def _meet(rank: int, port: int) -> Mesh:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    return join(EngineSettings(accelerator="cpu"))


def _until_one_dies(rank: int, port: int, folder: Path, victim: int) -> None:
    """A checkpoint after two steps; that after four is on its way when a rank is killed."""
    kept = Kept(_meet(rank, port), folder)
    try:
        kept.steps(0, 2)
        kept.keeper.save(At(0, 2), wait=False)
        kept.steps(2, 4)
        kept.keeper.settle()
        if rank == victim:
            SlowDisk()
        kept.keeper.save(At(0, 4), wait=False)
        kept.step(4)
        if rank == victim:
            while not (store.writing(folder) / f"rank-{rank}" / "tensors.safetensors").exists():
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        kept.step(5)
    except Exception:
        kept.keeper.settle(leaving=True, wait_s=0.2)
        os._exit(len(kept.lines))
    os._exit(99)


def _accidents(kept: Kept) -> dict[str, Any]:
    """A full disk of rank 1, then a stop while a checkpoint is on its way."""
    rank, keeper, limit = (
        kept.mesh.data.rank,
        kept.keeper,
        resource.getrlimit(resource.RLIMIT_FSIZE),
    )
    assert keeper.resume() == At(0, 2)
    if rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    begun = keeper.save(At(0, 3), wait=False)
    kept.step(3)
    keeper.settle()
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    full = {"begun": begun, "lines": list(kept.lines), "saved": saved_in(kept.folder)}
    disk = SlowDisk()
    keeper.save(At(0, 4), wait=False)
    kept.step(4)
    threading.Timer(0.1, disk.let_go).start()
    stopped = keeper.save(At(0, 5), wait=True)
    return {"full": full, "stopped": stopped, "saved": saved_in(kept.folder)}


def _two_ranks(folder: Path, killed: list[Path]) -> dict[str, Any]:
    mesh, found = join(EngineSettings(accelerator="cpu")), {}
    for zero in ZERO:
        kept, disk = Kept(mesh, folder / f"zero-{zero}", zero), SlowDisk()
        kept.steps(0, 2)
        kept.keeper.save(At(0, 2), wait=False)
        whole = kept.steps(2, 4)  # all weights and moments change while they are on their way
        before = saved_in(kept.folder)
        disk.let_go()
        kept.keeper.settle()
        kept.engine.close()
        again = Kept(mesh, kept.folder, zero)
        copy = Kept(mesh, folder / f"copy-{zero}", zero)
        copy.keeper.save(At(0, 0))
        copy.steps(0, 2)
        copy.keeper.save(At(0, 2))
        files = [
            read_index(path_of(each.folder, At(0, 2)))["files"]["shared/tensors.safetensors"]
            for each in (kept, copy)
        ]
        found[zero] = {
            "whole": whole,
            "before": before,
            "files": files,
            "again": again.go_on(4),
        }
    found["whole"] = Kept(mesh, folder / "none").go_on(6)[1]
    found["killed"] = [Kept(mesh, path).go_on(6) for path in killed]
    found["accidents"] = _accidents(Kept(mesh, folder / "zero-1", 1))
    leave()
    return found


def _other_ranks(folder: Path) -> dict[int, Any]:
    mesh = join(EngineSettings(accelerator="cpu"))
    found = {zero: Kept(mesh, folder / f"copy-{zero}", zero).go_on(4) for zero in ZERO}
    leave()
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, context = tmp_path_factory.mktemp("ranks"), forking()
    killed = [folder / f"killed-{victim}" for victim in (0, 1)]
    processes = []
    for victim, path in enumerate(killed):
        port = free_port()
        for rank in (0, 1):
            process = context.Process(target=_until_one_dies, args=(rank, port, path, victim))
            process.start()
            processes.append(process)
    for process in processes:
        process.join(60)
    first, second = run_ranks(2, _two_ranks, folder, killed)
    return {
        "codes": [process.exitcode for process in processes],
        "first": first,
        "second": second,
        "others": run_ranks(1, _other_ranks, folder)[0],
    }


def _same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return all((ours[name] == theirs[name]).all() for name in theirs)


@pytest.mark.distributed
@pytest.mark.parametrize("zero", ZERO)
def test_zero_resumes_to_the_bit_from_what_threads_wrote(found: Any, zero: int) -> None:
    for rank in ("first", "second"):
        result = found[rank][zero]
        assert result["before"] == []
        assert result["again"][0] == At(0, 2)
        assert _same(result["again"][1], result["whole"])
        assert result["files"][0] == result["files"][1]  # of a save that is waited for


@pytest.mark.distributed
@pytest.mark.parametrize("zero", ZERO)
def test_zero_resumes_on_another_number_of_ranks(found: Any, zero: int) -> None:
    at, weights = found["others"][zero]
    assert at == At(0, 2)
    for name, value in found["first"][zero]["whole"].items():
        assert weights[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.distributed
def test_a_rank_killed_while_it_writes_leaves_the_last_one(found: Any) -> None:
    """The main rank, or the other one, which the main one waits for and tells."""
    assert found["codes"] == [-signal.SIGKILL, 0, 1, -signal.SIGKILL]
    for at, weights in found["first"]["killed"]:
        assert at == At(0, 2)
        assert _same(weights, found["first"]["whole"])


@pytest.mark.distributed
def test_a_full_disk_of_one_rank_is_told_and_a_stop_saves_behind_a_write(found: Any) -> None:
    accidents = found["first"]["accidents"]
    (line,) = accidents["full"]["lines"]
    assert line.startswith("no checkpoint was written (rank 1: ")
    assert line.endswith("; the training goes on without")
    assert accidents["full"]["begun"]
    assert accidents["full"]["saved"] == [At(0, 2)]
    assert accidents["stopped"]
    assert accidents["saved"] == [At(0, 5), At(0, 4)]
