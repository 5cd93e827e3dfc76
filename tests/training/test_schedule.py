import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from skindx.training.recipe import Recipe
from skindx.training.schedule import build_optimizer, rate_at


def test_rate_by_hand() -> None:
    rates = [rate_at(step, steps=6, warmup=2, peak=1.0) for step in range(6)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


@given(steps=st.integers(1, 200), warmup=st.integers(0, 50))
def test_rate_stays_between_zero_and_the_peak(steps: int, warmup: int) -> None:
    assert all(0 < rate_at(step, steps, warmup, 0.1) <= 0.1 for step in range(steps))


def test_decay_spares_biases_and_norms_and_the_head_has_its_own_rate() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    recipe = Recipe(learning_rate=0.01, head_learning_rate=0.1, weight_decay=0.5)
    optimizer = build_optimizer(net, recipe, fresh=["3.weight", "3.bias"])
    found = {
        id(parameter): (group["weight_decay"], round(group["lr_scale"], 6))
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    expected = {
        "0.weight": (0.5, 1.0),
        "0.bias": (0.0, 1.0),
        "1.weight": (0.0, 1.0),
        "1.bias": (0.0, 1.0),
        "3.weight": (0.5, 10.0),
        "3.bias": (0.0, 10.0),
    }
    assert {name: found[id(p)] for name, p in net.named_parameters()} == expected
