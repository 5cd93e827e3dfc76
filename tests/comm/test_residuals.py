"""What becomes of residuals on other ranks, how the density falls, and momentum by hand."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import skindx.comm
from skindx.comm.exchange import Exchange
from skindx.comm.fabric import GradientBuffer
from skindx.comm.gtopk import GTopKSettings
from skindx.comm.powersgd import PowerSGDSettings
from skindx.comm.powersgd_exchange import PowerSGD
from skindx.comm.sparse_exchange import GTopK
from skindx.core.errors import UserError


class _Alone:
    """The fabric of one rank, which says that there are `world`."""

    device = torch.device("cpu")
    bytes_sent = 0

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world

    def all_reduce(self, flat: Tensor) -> Any:
        return SimpleNamespace(wait=lambda: flat)


def _attached(exchange: Exchange, fabric: Any, steps_per_epoch: int = 2) -> GradientBuffer:
    gradients = GradientBuffer([("a", nn.Parameter(torch.zeros(2, 5)))])
    gradients.attach()
    exchange.attach(fabric, gradients, steps_per_epoch)
    return gradients


@pytest.mark.parametrize(
    "exchange", [GTopK(GTopKSettings(momentum=0.9)), PowerSGD(PowerSGDSettings())]
)
def test_other_ranks_take_the_mean_so_that_the_update_to_come_is_the_same(
    exchange: Exchange,
) -> None:
    generator = torch.Generator().manual_seed(0)
    states = []
    for rank in range(3):
        _attached(exchange, _Alone(rank, 3))
        state = exchange.state_dict()
        for name in ("residual", "velocity"):
            if name in state:
                state[name] = torch.randn(10, generator=generator)
        if "step" in state:
            state["step"] = 7
        states.append(state)
    pending = torch.stack([state["residual"] for state in states]).mean(0)
    for world in (1, 2, 3, 5):
        held = []
        for rank in range(world):
            _attached(exchange, _Alone(rank, world))
            exchange.load_state_dict(states)
            state = exchange.state_dict()
            held.append(state["residual"].clone())
            assert state.get("step", 7) == 7
        torch.testing.assert_close(torch.stack(held).mean(0), pending)
        if world == 3:
            assert all(
                torch.equal(mine, state["residual"])
                for mine, state in zip(held, states, strict=True)
            )


def _step(exchange: Exchange, gradients: GradientBuffer, gradient: list[float]) -> Tensor:
    gradients.flat.copy_(torch.tensor(gradient))
    assert exchange.finish()
    return gradients.flat.clone()


def test_the_density_falls_epoch_by_epoch() -> None:
    exchange = GTopK(GTopKSettings(density=0.1, warmup=(0.5, 0.25)))  # 2.5 of ten are 3
    gradients = _attached(exchange, _Alone(), steps_per_epoch=2)
    sent = [
        int((_step(exchange, gradients, [float(number) for number in range(1, 11)]) != 0).sum())
        for _ in range(6)
    ]
    assert sent == [5, 5, 3, 3, 1, 1]


def test_what_is_not_sent_comes_later_and_momentum_is_sent_once() -> None:
    """Density 0.1 of ten elements: one a step, by hand."""
    exchange = GTopK(GTopKSettings(density=0.1, warmup=()))
    gradients = _attached(exchange, _Alone())
    first = [5.0, 3, 0, 0, 0, 0, 0, 0, 0, 0]
    assert _step(exchange, gradients, first).tolist() == [5.0, *[0.0] * 9]
    # The second element has waited: 3 + 3 beats 5.
    assert _step(exchange, gradients, first).tolist() == [0.0, 6, *[0.0] * 8]
    assert exchange.residual_M.tolist() == [5.0, *[0.0] * 9]

    exchange = GTopK(GTopKSettings(density=0.1, warmup=(), momentum=0.5))
    gradients = _attached(exchange, _Alone())
    assert _step(exchange, gradients, first).tolist() == [5.0, *[0.0] * 9]
    # Velocities: 5 was sent and forgotten, 0.5 * 3 + 3 = 4.5 joins the residual of 3.
    assert _step(exchange, gradients, first).tolist() == [0.0, 7.5, *[0.0] * 8]
    assert exchange.residual_M.tolist() == [5.0, *[0.0] * 9]
    # Now 0.5 * 5 + 5 = 7.5 joins 5; of the second, whose velocity was sent, 3 are new.
    assert _step(exchange, gradients, first).tolist() == [12.5, *[0.0] * 9]


def test_powersgd_projects_on_what_the_last_step_left() -> None:
    """Algorithm 1 by NumPy: the basis of (M + E) Q, then Q = (M + E)^T basis, for each matrix."""
    shapes = [(6, 8), (5,), (4, 3, 2, 3), (4, 4)]  # the last as two thin ones is no smaller
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in reversed(shapes)]
    named = [(str(number), parameter) for number, parameter in enumerate(parameters)]
    gradients = GradientBuffer(named)
    gradients.attach()
    exchange, twin = (PowerSGD(PowerSGDSettings(rank=2)) for _ in range(2))
    for one in (exchange, twin):  # whatever else was drawn
        one.attach(_Alone(), gradients, 2)
    right = [tensor.double().numpy() for tensor in exchange.state_dict()["right"]]
    assert all(map(torch.equal, exchange.state_dict()["right"], twin.state_dict()["right"]))
    assert [each.shape for each in right] == [(8, 2), (18, 2)]
    rest, random = [np.zeros((6, 8)), np.zeros((4, 18))], np.random.default_rng(0)
    for _ in range(4):
        drawn = [random.normal(size=shape) for shape in shapes]
        for view, values in zip(gradients.views, drawn, strict=True):
            view.copy_(torch.from_numpy(values))
        assert exchange.finish()
        sent = [view.double().numpy() for view in gradients.views]
        for whole in (1, 3):
            np.testing.assert_allclose(sent[whole], drawn[whole], rtol=1e-6)
        for number, at in enumerate((0, 2)):
            matrix = drawn[at].reshape(rest[number].shape) + rest[number]
            basis = np.linalg.qr(matrix @ right[number])[0]
            right[number] = matrix.T @ basis
            update = basis @ right[number].T
            np.testing.assert_allclose(sent[at].reshape(update.shape), update, atol=1e-5)
            rest[number] = matrix - update


def test_without_numba_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "skindx.comm.kernels", raising=False)
    monkeypatch.delattr(skindx.comm, "kernels", raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(UserError, match=r"run `.* install .*\[train\]'`"):
        _attached(GTopK(GTopKSettings()), _Alone())
