"""K-FAC on several ranks does what it does on one, and goes on from a checkpoint."""

from typing import Any

import pytest
import torch
from ranks import run_ranks
from states import as_arrays
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from skindx.comm.dense import DenseSettings
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fused import FusedSettings
from skindx.training.checkpoint.saved_state import State
from skindx.training.config.engine import EngineSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.mesh import Mesh, leave
from skindx.training.tasks.losses import SmoothedCrossEntropy, drawn_loss
from skindx_methods.kfac.kfac import Kfac
from skindx_methods.kfac.kfac_settings import KfacSettings

CPU = EngineSettings(accelerator="cpu", gradient_clip=5.0, sync_batch_norm=True)
KFAC = KfacSettings(fisher="empirical", factors_every=2, inverses_every=4, damping=0.05)
IMAGES, STEPS = 11, 6
"""Eleven images on four ranks: their shares are uneven."""


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 8, 3, groups=4),
        BatchNormAct2d(8),
        nn.Conv2d(8, 6, 1, groups=2),
        nn.Flatten(),
        nn.Linear(6 * 4, 3),
    )


class Run:
    """An engine with K-FAC, and what it was told."""

    def __init__(
        self,
        mesh: Mesh,
        *,
        exchange: ExchangeSettings | None = None,
        precision: str = "fp32",
        **changes: Any,
    ) -> None:
        settings = KFAC.model_copy(update=changes)
        own = mesh.settings.model_copy(update={"precision": precision})
        mesh = Mesh(mesh.data, mesh.device, own)
        self.net, self.said = _net(), list[str]()
        draw = drawn_loss(SmoothedCrossEntropy(torch.ones(3), 0.0))
        self.kfac = Kfac(
            settings,
            self.net,
            mesh,
            draw=draw if settings.fisher == "sampled" else None,
            say=self.said.append,
        )
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.engine = Engine(
            self.net,
            optimizer,
            mesh,
            IMAGES,
            exchange=exchange or DenseSettings(),
            method=self.kfac,
        )

    def step(self, number: int, *, pieces: int = 1, spoiled: bool = False) -> bool:
        data, engine = self.engine.mesh.data, self.engine
        generator = torch.Generator().manual_seed(number)
        inputs, labels = torch.randn(IMAGES, 3, 6, 6, generator=generator), torch.arange(IMAGES) % 3
        own = slice(data.rank, None, data.size)
        parts = zip(inputs[own].tensor_split(pieces), labels[own].tensor_split(pieces), strict=True)
        for piece, (part, targets) in enumerate(parts):
            outputs = engine(part)
            if spoiled and data.rank == data.size - 1:
                outputs.register_hook(lambda gradient: gradient * float("nan"))
            loss = nn.functional.cross_entropy(outputs.float(), targets, reduction="sum")
            engine.backward(loss, IMAGES, last=piece == pieces - 1)
        return engine.step(0.05)

    def weights(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.net.parameters()).detach().clone()

    def trained(self, first: int = 0, last: int = STEPS, **how: Any) -> Tensor:
        for number in range(first, last):
            assert self.step(number, **how)
        self.engine.close()
        return self.weights()


def _tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tensors(inner) for key, inner in value.items()}
    return torch.from_numpy(value.copy()) if hasattr(value, "dtype") else value


def _everything(state: State | None) -> dict[str, Any]:
    mesh = join(CPU)
    found: dict[str, Any] = {"all": Run(mesh).trained()}
    begun = Run(mesh, gradient_workers=0.5)
    for number in range(3):
        begun.step(number)
    held = as_arrays(begun.engine.state_dict())
    found["state"] = held
    found["half"] = begun.trained(3)
    again = Run(mesh, gradient_workers=0.5)
    again.engine.load_state_dict(_tensors(held))
    found["half, resumed"] = again.trained(3)
    if state:
        other = Run(mesh)
        other.engine.load_state_dict(_tensors(state))
        found["resumed elsewhere"] = other.trained(3)
    found["one"] = Run(mesh, gradient_workers=0.01).trained()
    found["fused"] = Run(mesh, exchange=FusedSettings(tune=False, bucket_mb=0.0005)).trained()
    found["sampled"] = Run(mesh, fisher="sampled").trained()
    found["bf16"] = Run(mesh, precision="bf16").trained()
    found["skipped"] = _skipped(mesh)
    leave()
    return {
        name: value.numpy() if isinstance(value, Tensor) else value for name, value in found.items()
    }


def _skipped(mesh: Mesh) -> dict[str, Any]:
    """Spoil the third step, at which factors are due, on the last rank, and take it again."""
    run = Run(mesh)
    taken = [run.step(0), run.step(1)]
    before = run.weights()
    averages = {key: value.clone() for key, value in run.kfac.factors.averages.items()}
    taken.append(run.step(2, spoiled=True))
    unchanged = torch.equal(before, run.weights()) and all(
        torch.equal(averages[key], value) for key, value in run.kfac.factors.averages.items()
    )
    weights = run.trained(2).numpy()
    return {"taken": taken, "unchanged": unchanged, "weights": weights}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_ranks(4, _everything, None)
    return found


@pytest.fixture(scope="module")
def alone(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = run_ranks(1, _everything, ranks[0]["state"])
    return dict(found)


def _far(found: Any, expected: Any) -> float:
    return float(abs(found - expected).max() / abs(expected).max())


@pytest.mark.distributed
@pytest.mark.parametrize("name", ["all", "half", "one", "fused"])
def test_four_ranks_train_as_one_wherever_eigenvectors_are_held(
    ranks: list[dict[str, Any]], alone: dict[str, Any], name: str
) -> None:
    for rank in ranks:
        assert _far(rank[name], alone["all"]) < 1e-5


@pytest.mark.distributed
def test_every_rank_has_the_same_weights(ranks: list[dict[str, Any]]) -> None:
    for name in ("all", "half", "one", "fused", "sampled", "bf16"):
        for rank in ranks[1:]:
            assert (rank[name] == ranks[0][name]).all(), name


@pytest.mark.distributed
def test_it_resumes_to_the_bit_and_on_another_number_of_ranks(
    ranks: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    for rank in [*ranks, alone]:
        assert (rank["half, resumed"] == rank["half"]).all()
    assert _far(alone["resumed elsewhere"], alone["all"]) < 1e-5


@pytest.mark.distributed
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all(
    ranks: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    for rank in [*ranks, alone]:
        assert rank["skipped"]["taken"] == [True, True, False]
        assert rank["skipped"]["unchanged"]


@pytest.mark.distributed
def test_half_precision_and_drawn_labels_go_about_the_same_way(alone: dict[str, Any]) -> None:
    assert 0 < _far(alone["bf16"], alone["all"]) < 0.05
    assert 0 < _far(alone["sampled"], alone["all"]) < 0.5
