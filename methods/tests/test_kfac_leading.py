"""The largest eigenvalues of a wide factor are found without the others."""

import pytest
import torch
from plain_engine import Alone
from torch import Tensor, nn

from skindx_methods.kfac import bases
from skindx_methods.kfac.eigen import Eigen, decompose, leading, make_inverse
from skindx_methods.kfac.kfac import Kfac
from skindx_methods.kfac.kfac_settings import KfacSettings
from skindx_methods.kfac.layers import INSIDE, OUTSIDE, plain_nt

WIDTH = 600


def _factor(values: Tensor, seed: int = 0) -> Tensor:
    rows = torch.randn(len(values), len(values), generator=torch.manual_seed(seed))
    vectors = torch.linalg.qr(rows).Q
    return ((vectors * values) @ vectors.T)[None]


def _falling(power: float) -> Tensor:
    return torch.arange(1, WIDTH + 1).float() ** -power


@pytest.mark.parametrize("warm", [False, True])
def test_they_are_those_of_the_whole_decomposition(warm: bool) -> None:
    factor = _factor(_falling(1.5))
    least = 0.01
    before = leading(_factor(_falling(1.5), 1).lerp(factor, 0.3), least, None) if warm else None
    found, whole = leading(factor, least, before), decompose(factor, 1.0)
    assert found is not None
    assert whole is not None
    assert (whole.complete, found.complete) == (True, False)
    count = int((whole.values_SW >= least).sum())
    assert int((found.values_SW > 0).sum()) == count
    torch.testing.assert_close(
        found.values_SW[:, -count:], whole.values_SW[:, -count:], rtol=2e-3, atol=0
    )
    assert not found.vectors_SWW[:, :, :-count].any()


def test_the_natural_gradient_is_that_of_all_but_for_the_share() -> None:
    inside, damping, share = _factor(_falling(1.5)), 0.1, 0.03
    outside = Eigen(torch.tensor([[0.2, 0.5, 1.0]]), torch.eye(3)[None])
    gradient = torch.randn(1, 3, WIDTH, generator=torch.manual_seed(4))
    whole, few = decompose(inside, damping), leading(inside, share * damping, None)
    assert whole is not None
    assert few is not None
    exact, found = (
        make_inverse({"layer": (own, outside)}, damping, negligible).natural(
            {"layer": gradient}, plain_nt
        )["layer"]
        for own, negligible in ((whole, 0.0), (few, share))
    )
    assert (found - exact).norm() < share * exact.norm()


def test_a_flat_spectrum_is_left_to_the_whole_decomposition() -> None:
    assert leading(_factor(torch.ones(WIDTH)), 0.5, None) is None
    assert leading(_factor(torch.ones(40)), 0.5, None) is None
    assert leading(torch.full((1, WIDTH, WIDTH), torch.nan), 0.5, None) is None


def _wide_steps(**changes: object) -> tuple[Tensor, Kfac]:
    """Return the gradient of a wide layer after a step on inputs along few directions."""
    torch.manual_seed(0)
    net = nn.Linear(WIDTH, 4, bias=False)
    inputs = torch.randn(30, 8) @ torch.randn(8, WIDTH)
    settings = KfacSettings(fisher="empirical", damping=0.5, kl_clip=0)
    kfac = Kfac(settings.model_copy(update=changes), net, Alone(), draw=None)
    kfac.forward(30)
    outputs = net(inputs)
    kfac.backward(1 / 30)
    (outputs.square().sum() / 30 / 2000).backward()
    kfac.apply(0.1)
    assert net.weight.grad is not None
    return net.weight.grad, kfac


def test_a_step_seeks_them_in_wide_layers_only_where_something_may_be_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact, kfac = _wide_steps(negligible=0.0)
    assert kfac.bases.eigen_of["", INSIDE].complete
    found, kfac = _wide_steps()
    assert not kfac.bases.eigen_of["", INSIDE].complete
    assert kfac.bases.eigen_of["", OUTSIDE].complete
    assert (found - exact).norm() < 0.03 * exact.norm()
    monkeypatch.setattr(bases, "STEEPEST", 0.0)
    assert _wide_steps()[1].bases.eigen_of["", INSIDE].complete


def test_no_gradient_at_the_outputs_makes_no_direction_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As behind a norm whose scale begins at zero: nothing is worth a decomposition."""
    _, kfac = _wide_steps()
    inside, outside = (kfac.factors.averages["", key] for key in (INSIDE, OUTSIDE))
    wide: list[Tensor] = []
    real = bases.decompose
    monkeypatch.setattr(
        bases, "decompose", lambda factor, damping: wide.append(factor) or real(factor, damping)
    )
    averages = {("", INSIDE): inside, ("", OUTSIDE): torch.zeros_like(outside)}
    kfac.bases.renew(averages, 0.5, 0.03)
    assert [factor.shape[1] for factor in wide] == [outside.shape[1]]
    found = {"": (kfac.bases.eigen_of["", INSIDE], kfac.bases.eigen_of["", OUTSIDE])}
    gradient = torch.randn(1, outside.shape[1], inside.shape[1])
    natural = make_inverse(found, 0.5, 0.03).natural({"": gradient}, plain_nt)[""]
    torch.testing.assert_close(natural, gradient / (0.5 * 1.03))


def test_it_goes_on_to_the_bit_from_a_state() -> None:
    """The next ones are sought from the last ones."""
    _, kfac = _wide_steps()
    _, again = _wide_steps(damping=0.7)
    again.load_state_dict(kfac.state_dict())
    for one in (kfac, again):
        one.bases.renew(one.factors.averages, 0.5, 0.03)
    for key, eigen in kfac.bases.eigen_of.items():
        assert torch.equal(eigen.vectors_SWW, again.bases.eigen_of[key].vectors_SWW)
