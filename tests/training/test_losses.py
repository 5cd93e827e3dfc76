import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from skindx.core.errors import UserError
from skindx.training.config.recipe import Recipe
from skindx.training.tasks.losses import build_loss, class_weights

LABELS = np.array([0] * 6 + [1] * 3 + [2])
# Logits whose softmax is (0.5, 0.25, 0.25) and (0.1, 0.1, 0.8).
LOGITS = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]).log()
TARGETS = torch.tensor([0, 1])


def _loss(logits: torch.Tensor, targets: torch.Tensor, **recipe: object) -> float:
    function = build_loss(LABELS, 3, Recipe.parse({"label_smoothing": 0, **recipe}))
    return function(logits, targets).item()


def test_cross_entropy_by_hand_is_a_sum() -> None:
    assert _loss(LOGITS, TARGETS) == pytest.approx(-math.log(0.5) - math.log(0.1), rel=1e-5)
    # N / (C n_c) = 10/18, 10/9, 10/3
    weighted = -10 / 18 * math.log(0.5) - 10 / 9 * math.log(0.1)
    assert _loss(LOGITS, TARGETS, class_weights="balanced") == pytest.approx(weighted, rel=1e-5)
    rooted = -((10 / 18) ** 0.5) * math.log(0.5) - (10 / 9) ** 0.5 * math.log(0.1)
    assert _loss(LOGITS, TARGETS, class_weights="sqrt") == pytest.approx(rooted, rel=1e-5)


def test_focal_by_hand() -> None:
    expected = -(0.5**2) * math.log(0.5) - 0.9**2 * math.log(0.1)
    focal = {"kind": "focal", "gamma": 2}
    assert _loss(LOGITS, TARGETS, loss=focal) == pytest.approx(expected, rel=1e-5)
    weighted = -10 / 18 * 0.25 * math.log(0.5) - 10 / 9 * 0.81 * math.log(0.1)
    found = _loss(LOGITS, TARGETS, loss=focal, class_weights="balanced")
    assert found == pytest.approx(weighted, rel=1e-5)


def test_logit_adjusted_by_hand() -> None:
    """A softmax of p times the prior (0.6, 0.3, 0.1)."""
    first = 0.5 * 0.6 / (0.5 * 0.6 + 0.25 * 0.3 + 0.25 * 0.1)
    second = 0.1 * 0.3 / (0.1 * 0.6 + 0.1 * 0.3 + 0.8 * 0.1)
    found = _loss(LOGITS, TARGETS, loss={"kind": "logit_adjusted"})
    assert found == pytest.approx(-math.log(first) - math.log(second), rel=1e-5)
    adjusted = {"loss": {"kind": "logit_adjusted"}, "class_weights": "balanced"}
    weighted = -10 / 18 * math.log(first) - 10 / 9 * math.log(second)
    assert _loss(LOGITS, TARGETS, **adjusted) == pytest.approx(weighted, rel=1e-5)
    half = _loss(LOGITS[:1], TARGETS[:1], loss={"kind": "logit_adjusted", "tau": 0.5})
    roots = [p * prior**0.5 for p, prior in zip((0.5, 0.25, 0.25), (0.6, 0.3, 0.1), strict=True)]
    assert half == pytest.approx(-math.log(roots[0] / sum(roots)), rel=1e-5)


@given(
    smoothing=st.sampled_from([0.0, 0.1, 0.3]),
    weights=st.sampled_from(["none", "sqrt", "balanced", "effective"]),
    seed=st.integers(0, 99),
)
def test_focal_without_gamma_is_cross_entropy(smoothing: float, weights: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(5, 3, generator=generator)
    hard = torch.randint(0, 3, (5,), generator=generator)
    soft = torch.softmax(torch.randn(5, 3, generator=generator), dim=1)
    same = {"label_smoothing": smoothing, "class_weights": weights}
    for targets in (hard, soft):
        plain = _loss(logits, targets, **same)
        focal = _loss(logits, targets, loss={"kind": "focal", "gamma": 0}, **same)
        assert focal == pytest.approx(plain, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", ["cross_entropy", "focal", "logit_adjusted"])
def test_soft_targets_blend_the_losses_of_hard_ones(kind: str) -> None:
    recipe = {"loss": {"kind": kind}, "class_weights": "sqrt", "label_smoothing": 0.1}
    one, other = torch.tensor([0, 2]), torch.tensor([1, 2])
    blended = 0.3 * functional.one_hot(one, 3) + 0.7 * functional.one_hot(other, 3)
    expected = 0.3 * _loss(LOGITS, one, **recipe) + 0.7 * _loss(LOGITS, other, **recipe)
    assert _loss(LOGITS, blended, **recipe) == pytest.approx(expected, rel=1e-5)
    hard = functional.one_hot(one, 3).float()
    assert _loss(LOGITS, hard, **recipe) == pytest.approx(_loss(LOGITS, one, **recipe), rel=1e-5)


def test_a_sure_focal_loss_has_a_finite_slope() -> None:
    logits = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    loss = build_loss(LABELS, 3, Recipe.parse({"loss": {"kind": "focal", "gamma": 0.5}}))
    loss(logits, torch.tensor([0])).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_effective_number_by_hand() -> None:
    recipe = Recipe(class_weights="effective", effective_beta=0.5)
    # (1 - b) / (1 - b^n) for n = 6, 3, 1
    raw = np.array([0.5 / (1 - 0.5**6), 0.5 / (1 - 0.5**3), 1.0])
    found = class_weights(LABELS, 3, recipe).numpy()
    np.testing.assert_allclose(found, raw * 3 / raw.sum(), rtol=1e-6)
    # Towards one the effective number is the number itself: balanced, but for the scale.
    near = class_weights(LABELS, 3, Recipe(class_weights="effective", effective_beta=1 - 1e-9))
    balanced = class_weights(LABELS, 3, Recipe(class_weights="balanced"))
    np.testing.assert_allclose(near / near.sum(), balanced / balanced.sum(), rtol=1e-4)


def test_a_class_without_images_weighs_as_one_image() -> None:
    for kind in ("none", "sqrt", "balanced", "effective"):
        assert class_weights(LABELS, 5, Recipe(class_weights=kind)).isfinite().all()
    assert math.isfinite(
        build_loss(LABELS, 5, Recipe.parse({"loss": {"kind": "logit_adjusted"}}))(
            torch.zeros(1, 5), torch.tensor([4])
        )
    )


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"class_weights": "sqrt"},
        {"class_weights": "balanced"},
        {"class_weights": "effective"},
        {"loss": {"kind": "logit_adjusted", "tau": 0.7}},
        {"loss": {"kind": "logit_adjusted"}, "class_weights": "sqrt"},
    ],
)
def test_a_loss_has_its_minimum_where_the_recipe_lets_expect(recipe: dict[str, object]) -> None:
    """Of images that look alike the best logits are the logarithms of their shares, and a bias."""
    counts_C = np.bincount(LABELS)
    parsed = Recipe.parse({"label_smoothing": 0, **recipe})
    bias_C = parsed.log_bias(counts_C)
    assert bias_C.sum() == pytest.approx(0, abs=1e-12)
    logits_C = torch.tensor(np.log(counts_C / len(LABELS)) + bias_C, requires_grad=True)
    logits_NC = logits_C.expand(len(LABELS), 3)
    build_loss(LABELS, 3, parsed).double()(logits_NC, torch.from_numpy(LABELS)).backward()
    assert logits_C.grad is not None
    np.testing.assert_allclose(logits_C.grad.numpy(), 0, atol=1e-5)


def test_expected_biases_by_hand() -> None:
    counts_C = np.array([400, 100, 0])
    half_C = -0.5 * np.log([400, 100, 1])
    np.testing.assert_allclose(
        Recipe(class_weights="sqrt").log_bias(counts_C), half_C - half_C.mean()
    )
    adjusted = Recipe.parse({"loss": {"kind": "logit_adjusted", "tau": 1}})
    np.testing.assert_allclose(adjusted.log_bias(counts_C), 2 * (half_C - half_C.mean()))
    np.testing.assert_array_equal(Recipe().log_bias(counts_C), 0)


def test_a_wrong_loss_lists_the_kinds() -> None:
    with pytest.raises(UserError, match="Valid: cross_entropy, focal, logit_adjusted"):
        Recipe.parse({"loss": {"kind": "hinge"}})
