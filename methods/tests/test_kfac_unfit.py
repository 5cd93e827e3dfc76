"""Layers, factors and states that K-FAC cannot use: what it does without them, and says."""

import pytest
import torch
from plain_engine import Alone
from test_kfac import PLAIN, one_step, small_net
from torch import nn

from skindx.core.state_checks import UnfitStateError
from skindx_methods.kfac.eigen import decompose
from skindx_methods.kfac.kfac import Kfac
from skindx_methods.kfac.layers import INSIDE


def test_a_wide_or_unknown_layer_keeps_its_gradient_and_is_named() -> None:
    said: list[str] = []
    net = nn.Sequential(
        nn.Linear(4, 9), nn.LayerNorm(9), nn.Linear(9, 2), nn.LSTM(2, 2, bias=False)
    )
    kfac = Kfac(PLAIN.model_copy(update={"widest": 9}), net, Alone(), draw=None, say=said.append)
    assert [layer.name for layer in kfac.layers] == ["0"]
    assert said == [
        "K-FAC skips 2: a factor is wider than widest=9",
        "K-FAC knows no factors of 1, 3, which keep their plain gradient",
    ]


def test_a_factor_that_is_not_positive_gets_more_damping_or_none() -> None:
    torch.manual_seed(0)
    rows = torch.randn(2, 5, 8)
    positive = rows @ rows.transpose(1, 2)
    assert decompose(positive, 0.01) is not None
    below = (
        positive - 0.05 * torch.eye(5) - torch.linalg.eigvalsh(positive)[:, :1, None] * torch.eye(5)
    )
    lifted = decompose(below, 0.01)
    assert lifted is not None
    rebuilt = (lifted.vectors_SWW * lifted.values_SW[:, None]) @ lifted.vectors_SWW.transpose(1, 2)
    torch.testing.assert_close(rebuilt, below + 0.1 * torch.eye(5), rtol=1e-4, atol=1e-3)
    assert decompose(positive - 1000 * torch.eye(5), 0.01) is None
    assert decompose(positive * torch.nan, 0.01) is None


def test_a_layer_without_eigenvectors_keeps_its_gradient_and_is_named() -> None:
    said: list[str] = []
    net = small_net()
    kfac = Kfac(PLAIN, net, Alone(), draw=None, say=said.append)
    # Not the first step, in which factors replace their averages.
    kfac.steps, kfac.bases.plain = 2 * PLAIN.inverses_every, set()
    kfac.factors.averages = {
        key: torch.eye(shape[1]).repeat(shape[0], 1, 1) * (-1e6 if key[0] == "0" else 1.0)
        for key, shape in kfac.factors.shapes.items()
    }
    kfac.forward(2)
    outputs = net(torch.randn(2, 3, 6, 6))
    kfac.backward(0.5)
    (outputs.square().sum() / 2).backward()
    before = [weight.grad.clone() for weight in net.parameters()]
    kfac.apply(0.1)
    moved = [
        not torch.equal(*pair)
        for pair in zip(before, (w.grad for w in net.parameters()), strict=True)
    ]
    assert moved == [False, *[True] * (len(moved) - 1)]
    assert len(said) == 1
    assert "the factors of 0 are not positive" in said[0]


def test_a_step_without_images_leaves_the_averages_as_they_were() -> None:
    kfac = Kfac(PLAIN, small_net(), Alone(), draw=None)
    kfac.factors.averages = {key: torch.ones(shape) for key, shape in kfac.factors.shapes.items()}
    kfac.factors.take_in({}, 0, 0.5)
    assert all(bool((average == 1).all()) for average in kfac.factors.averages.values())


def test_inputs_that_are_not_finite_leave_the_averages_as_they_were() -> None:
    settings = PLAIN.model_copy(update={"factors_every": 1, "inverses_every": 1})
    net, inputs = nn.Linear(3, 2), torch.randn(4, 3)
    kfac = Kfac(settings, net, Alone(), draw=None)
    for spoiled in (False, True):
        if spoiled:
            held = {key: value.clone() for key, value in kfac.factors.averages.items()}
            inputs[0, 0] = torch.inf
        kfac.forward(4)
        outputs = net(inputs)
        kfac.backward(0.25)
        outputs.square().sum().backward()
        kfac.apply(0.1)
    assert torch.equal(kfac.factors.averages["", INSIDE], held["", INSIDE])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": "two"}, "steps"),
        ({"steps": -1}, "below zero"),
        ({"factors": {"elsewhere": {INSIDE: torch.eye(2)}}}, "elsewhere"),
        ({"factors": {"0": {INSIDE: torch.eye(2)}}}, r"float32 \(2, 2\)"),
        ({"bases": None}, "no bases"),
    ],
)
def test_a_state_of_other_layers_is_refused(change: dict[str, object], said: str) -> None:
    kfac, _ = one_step(small_net(), torch.randn(6, 3, 6, 6))
    state = {**kfac.state_dict(), **change}
    with pytest.raises(UnfitStateError, match=said):
        Kfac(PLAIN, small_net(), Alone(), draw=None).load_state_dict(state)
