from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.data.loader.batches import global_batches, share
from skindx.training.config.engine import EngineSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.batch_norm import average_buffers
from skindx.training.parallel.mesh import leave, resolve_accelerator, resolve_ranks

CPU = EngineSettings(accelerator="cpu", gradient_clip=1.0)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5).eval(), nn.ReLU(), nn.Linear(5, 3))


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(23, 6, generator=generator), torch.arange(23) % 3


def _train_under_engine(precision: str) -> dict[str, Any]:
    """Two epochs of 23 samples in batches of 7 or 8: shares of the ranks are uneven."""
    mesh = join(CPU.model_copy(update={"precision": precision}))
    model, (inputs, labels) = _model(), _data()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), mesh, batch=8)
    for epoch in range(2):
        for batch in global_batches(23, 8, 0, epoch):
            own = torch.from_numpy(share(batch, mesh.data.rank, mesh.data.size))
            loss = nn.functional.cross_entropy(engine(inputs[own]), labels[own], reduction="sum")
            engine.backward(loss, len(batch))
            engine.step(0.5)
    weights = {name: value.numpy().copy() for name, value in model.state_dict().items()}

    # Statistics that differ by rank must agree afterwards, at their mean.
    model[1].running_mean.fill_(float(mesh.data.rank))
    average_buffers(model, mesh)
    mean = model[1].running_mean.tolist()
    gathered = mesh.gather(mesh.data.rank)
    engine.close()
    leave()
    return {"weights": weights, "mean": mean, "gathered": gathered}


def _train_plainly() -> dict[str, Tensor]:
    model, (inputs, labels) = _model(), _data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(2):
        for batch in global_batches(23, 8, 0, epoch):
            own = torch.from_numpy(batch)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[own]), labels[own]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return model.state_dict()


@pytest.mark.distributed
def test_uneven_ranks_equal_one_plain_process() -> None:
    results = run_ranks(3, _train_under_engine, "fp32")
    plain = _train_plainly()
    for result in results:
        for name, value in plain.items():
            found = torch.from_numpy(result["weights"][name])
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)
        assert result["mean"] == [1.0] * 5
        assert result["gathered"] == [0, 1, 2]


@pytest.mark.distributed
def test_bf16_follows_fp32() -> None:
    (result,) = run_ranks(1, _train_under_engine, "bf16")
    for name, value in _train_plainly().items():
        found = torch.from_numpy(result["weights"][name])
        torch.testing.assert_close(found, value, rtol=0.1, atol=0.05)


def _fail_on_rank_1() -> None:
    mesh = join(CPU)
    if mesh.data.rank == 1:
        raise ValueError("spilt coffee")
    mesh.barrier()


@pytest.mark.distributed
def test_a_failing_rank_brings_its_traceback() -> None:
    with pytest.raises(AssertionError, match="rank 1 failed") as caught:
        run_ranks(2, _fail_on_rank_1, timeout_s=60)
    assert "Traceback" in str(caught.value)
    assert "spilt coffee" in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_one_sentence() -> None:
    with pytest.raises(UserError, match="torch finds no usable GPU"):
        resolve_accelerator("cuda")
    assert resolve_accelerator("auto") == "cpu"


def test_ranks() -> None:
    assert resolve_ranks(EngineSettings(accelerator="cpu")) == 1
    assert resolve_ranks(EngineSettings(accelerator="cpu", ranks=3)) == 3
    with pytest.raises(UserError, match=r"engine\.ranks is 0, but must be at least 1"):
        resolve_ranks(EngineSettings(accelerator="cpu", ranks=0))
