"""K-FAC's products leave out eigenvectors of negligible curvature, and nothing else."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from skindx_methods.kfac.eigen import Eigen, Inverse, make_inverse, precondition
from skindx_methods.kfac.layers import plain_nt

DAMPING, NEGLIGIBLE = 0.5, 0.04


def _eigen(values_SW: Sequence[Sequence[float]], seed: int) -> Eigen:
    """Return eigenvectors of random matrices with these values, ascending."""
    values = torch.tensor(values_SW)
    rows = torch.randn(*values.shape, values.shape[1], generator=torch.manual_seed(seed))
    return Eigen(values, torch.linalg.qr(rows).Q)


def _both(
    inside: Eigen, outside: Eigen | None, negligible: float
) -> tuple[Tensor, Tensor, Inverse]:
    """Return a prepared and a plain natural gradient, and what made the first."""
    outputs = outside.values_SW.shape[1] if outside else 1
    shape = len(inside.values_SW), outputs, inside.values_SW.shape[1]
    gradient = torch.randn(shape, generator=torch.manual_seed(9))
    inverse = make_inverse({"layer": (inside, outside)}, DAMPING, negligible)
    found = inverse.natural({"layer": gradient}, plain_nt)["layer"]
    return found, precondition(gradient, inside, outside, DAMPING), inverse


WIDE = [[0.0] * 20 + [1e-4] * 15 + [1.0, 2.0, 3.0, 4.0, 5.0]] * 2
NARROW = [[1e-5, 0.5, 1.0], [0.0, 1e-6, 2.0]]


@pytest.mark.parametrize(
    ("wide", "narrow"), [(WIDE, NARROW), (WIDE, None), ([[0.1, 2.0]] * 7, None)]
)
def test_with_all_eigenvectors_it_is_the_plain_formula(
    wide: list[list[float]], narrow: list[list[float]] | None
) -> None:
    found, plain, _ = _both(_eigen(wide, 0), _eigen(narrow, 1) if narrow else None, 0.0)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)


def test_what_is_left_out_is_too_short_by_the_share_at_most() -> None:
    inside, outside = _eigen(WIDE, 0), _eigen(NARROW, 1)
    found, plain, inverse = _both(inside, outside, NEGLIGIBLE)
    basis = inverse.large["layer"]
    assert basis.inside_SAK.shape == (2, 40, 5)
    assert basis.outside_SGH.shape == (2, 3, 2)

    def along(natural: Tensor) -> Tensor:
        return outside.vectors_SWW.mT @ natural @ inside.vectors_SWW

    ratio = along(found) / along(plain)
    assert (ratio > 1 - NEGLIGIBLE).all()
    assert (ratio < 1 + 1e-3).all()  # processors round otherwise
    torch.testing.assert_close(ratio[:, 2, 35:], torch.ones(2, 5), rtol=1e-3, atol=0)
    assert float(ratio.min()) < 1 - NEGLIGIBLE / 2


@pytest.mark.parametrize(("largest_a", "largest_g", "kept"), [(0.1, 10.0, 2), (10.0, 0.1, 1)])
def test_a_vector_is_left_out_by_its_largest_product_with_the_other_factor(
    largest_a: float, largest_g: float, kept: int
) -> None:
    """The curvatures of a vector of A are its value times the values of G, whatever A's others."""
    inside = _eigen([[0.0] * 38 + [0.01, largest_a]], 0)
    outside = _eigen([[0.0] * 18 + [largest_g / 2, largest_g]], 1)
    _, _, inverse = _both(inside, outside, NEGLIGIBLE)
    assert inverse.large["layer"].inside_SAK.shape[2] == kept
    _, _, swapped = _both(outside, inside, NEGLIGIBLE)
    assert swapped.large["layer"].outside_SGH.shape[2] == kept


def test_no_curvature_at_all_leaves_the_direction_and_makes_no_products() -> None:
    inside, outside = _eigen([[0.0] * 40], 0), _eigen([[0.0] * 3], 1)
    found, plain, inverse = _both(inside, outside, NEGLIGIBLE)
    assert inverse.large["layer"].scale_SHK.numel() == 0
    torch.testing.assert_close(found, plain / (1 + NEGLIGIBLE), rtol=1e-4, atol=1e-5)


def test_a_value_at_the_border_makes_no_jump() -> None:
    border = NEGLIGIBLE * DAMPING
    naturals = []
    for value in (border * (1 - 1e-6), border * (1 + 1e-6)):
        inside = _eigen([[0.0] * 38 + [value, 1.0]], 0)
        found, _, inverse = _both(inside, _eigen([[0.1, 1.0]], 1), NEGLIGIBLE)
        naturals.append((found, inverse.large["layer"].inside_SAK.shape[2]))
    (below, few), (above, more) = naturals
    assert (few, more) == (1, 2)
    torch.testing.assert_close(below, above, rtol=1e-5, atol=1e-6)


def test_a_very_steep_layer_keeps_all_eigenvectors() -> None:
    """Else single precision would lose the gradient along the steep one."""
    inside, outside = _eigen([[0.0] * 39 + [1e7]], 0), _eigen([[1.0, 1.0]], 1)
    found, plain, inverse = _both(inside, outside, NEGLIGIBLE)
    assert inverse.large["layer"].rest == 0
    steep = (found - plain) @ inside.vectors_SWW[:, :, 39:]
    assert steep.abs().max() < 1e-5


def test_small_layers_of_one_width_are_one_stack() -> None:
    layers = {"first": _eigen([[0.1, 2.0]] * 3, 0), "second": _eigen([[0.0, 1.0]] * 4, 1)}
    gradients = {name: torch.randn(len(own.values_SW), 1, 2) for name, own in layers.items()}
    inverse = make_inverse({name: (own, None) for name, own in layers.items()}, DAMPING, NEGLIGIBLE)
    assert len(inverse.small) == 1
    found = inverse.natural(gradients, plain_nt)
    for name, own in layers.items():
        torch.testing.assert_close(found[name], precondition(gradients[name], own, None, DAMPING))
