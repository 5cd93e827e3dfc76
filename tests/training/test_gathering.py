"""Objects of all ranks, whatever their sizes, without more threads than before."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ranks import run_ranks

from skindx.comm.fabric import Fabric
from skindx.training.config.engine import EngineSettings
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.mesh import gather_objects, leave

CPU = EngineSettings(accelerator="cpu")


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _rank() -> dict[str, Any]:
    mesh = join(CPU)
    torch.set_num_threads(2)
    rank = mesh.data.rank
    torch.ones(2**20).add_(1)  # PyTorch's own threads are there
    small = mesh.gather((rank, "x" * rank, None))
    before = _threads()
    large = [mesh.gather(np.full((2**18 + 7, rank), rank)) for _ in range(4)]
    after = _threads()
    fabric = Fabric(mesh.device, timedelta(seconds=60))
    fabric.all_gather(torch.ones(1))
    before_tensors = _threads()
    tensors = [fabric.all_gather(torch.full((2**18 + 7,), float(rank))) for _ in range(4)]
    after_tensors = _threads()
    leave()
    return {
        "small": small,
        "sums": [[(part.shape, int(part.sum())) for part in parts] for parts in large],
        "means": [[float(part.mean()) for part in parts] for parts in tensors],
        "started": after - before,
        "started for tensors": after_tensors - before_tensors,
    }


def test_every_rank_gets_all_objects_in_order_and_starts_no_threads() -> None:
    """A team of OpenMP threads for each of gloo's would slow down all later steps."""
    length = 2**18 + 7
    for found in run_ranks(3, _rank):
        assert found["small"] == [(0, "", None), (1, "x", None), (2, "xx", None)]
        expected = [((length, rank), length * rank * rank) for rank in range(3)]
        assert found["sums"] == [expected] * 4
        assert found["started"] == 0
        assert found["means"] == [[0, 1, 2]] * 4
        assert found["started for tensors"] == 0


def test_one_rank_gets_its_own_object_without_a_process_group() -> None:
    value = {"a": object()}
    assert gather_objects(value, 1, torch.device("cpu")) == [value]
