"""Objects of all ranks, whatever their sizes, without more threads than before, and no pickle."""

import pickle
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from skindx.comm.fabric import Fabric
from skindx.core.errors import JobError
from skindx.training.config.engine import EngineSettings
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel import messages
from skindx.training.parallel.mesh import leave
from skindx.training.parallel.messages import broadcast_object, gather_objects, packed, unpacked


def _message(head: str) -> bytes:
    return len(head).to_bytes(8, "little") + head.encode()


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


VALUE: dict[Any, Any] = {
    "plain": [None, True, -(2**70), 0.1, float("inf"), "ä", b"\0\xff"],
    3: (1, [2.5], ()),
    "numbers": np.arange(6, dtype=np.float16).reshape(2, 3)[:, ::2],
    "none": np.empty((0, 4)),
    "of numpy": np.float32(0.5),
    "weights": {"a": torch.arange(6.0, dtype=torch.bfloat16).view(2, 3).T, "b": torch.tensor(True)},
}


def test_a_message_brings_back_plain_values_arrays_and_tensors() -> None:
    back = unpacked(packed(VALUE))
    assert back["plain"] == VALUE["plain"]
    assert back[3] == VALUE[3]
    assert (back["numbers"].dtype, back["numbers"].tolist()) == (np.float16, [[0, 2], [3, 5]])
    assert (back["none"].shape, back["of numpy"]) == ((0, 4), 0.5)
    weights = back["weights"]
    assert weights["a"].dtype == torch.bfloat16
    assert weights["a"].equal(VALUE["weights"]["a"])
    assert bool(weights["b"])
    with pytest.raises(TypeError, match="not PosixPath"):
        packed([Path()])


class Evil:
    """Runs something where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _attacked(file: Path) -> list[str]:
    """As rank 1 bring a pickle into what rank 0 gathers, and takes from the main rank."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    said = []
    if dist.get_rank() == 1:
        messages.packed = lambda value: pickle.dumps(Evil(file))  # type: ignore[assignment]
    cpu, gathers = torch.device("cpu"), partial(gather_objects, ranks=2, device=torch.device("cpu"))
    for call in (
        lambda: gathers("x"),
        lambda: broadcast_object("x", 1, cpu),
    ):
        try:
            call()
        except (JobError, dist.DistError) as error:
            said.append(str(error))
    return said


def test_a_pickle_of_a_peer_does_not_run(tmp_path: Path) -> None:
    said, _ = run_ranks(2, _attacked, tmp_path / "ran")
    assert not (tmp_path / "ran").exists()
    assert len(said) == 2
    assert all("a rank received data that skindx did not send" in one for one in said)


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"\xff" * 20, b"\x01" + b"\0" * 7, pickle.dumps({"a": 1})),
        *(_message(head) for head in ('["array", "O", [1]]', '["array", "f4", [-1]]', "[[]]")),
        *(_message(head) for head in ('["tensor", "load", [1]]', '["bytes", -1]', '["x", 1, [1]]')),
        *(_message(head) for head in ('["bytes", 99]', "[" * 10**5, '["array", "f4", [1e3]]')),
        _message('"whole"') + b"more",
    ],
)
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(JobError, match="data that skindx did not send"):
        unpacked(message)


def test_one_rank_gets_its_own_object_without_a_process_group() -> None:
    value = {"a": object()}
    assert gather_objects(value, 1, torch.device("cpu")) == [value]
