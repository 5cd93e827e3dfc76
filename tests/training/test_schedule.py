import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.training.config.optimizers import rate_at
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import TrainSettings


def test_rate_by_hand() -> None:
    rates = [rate_at(step, steps=6, warmup=2, peak=1.0) for step in range(6)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


@given(steps=st.integers(1, 200), warmup=st.integers(0, 50))
def test_rate_stays_between_zero_and_the_peak(steps: int, warmup: int) -> None:
    assert all(0 < rate_at(step, steps, warmup, 0.1) <= 0.1 for step in range(steps))


def test_a_recipe_by_hand() -> None:
    plain = Recipe(epochs=3, warmup_epochs=1, learning_rate=1.0)
    assert [plain.rate_at(step, 2) for step in range(6)] == [
        rate_at(step, 6, 2, 1.0) for step in range(6)
    ]
    low = Recipe.parse(
        {
            "epochs": 2,
            "warmup_epochs": 0,
            "learning_rate": 1,
            "schedule": {"kind": "cosine", "minimum": 0.2},
        }
    )
    assert low.rate_at(0, 2) == 1
    assert low.rate_at(2, 2) == pytest.approx(0.6)  # half way between 1 and 0.2


def test_steps_by_hand() -> None:
    recipe = Recipe.parse(
        {
            "epochs": 4,
            "warmup_epochs": 0.5,
            "learning_rate": 0.1,
            "schedule": {"kind": "steps", "epochs": [1, 3]},
        }
    )
    rates = [recipe.rate_at(step, 4) for step in range(16)]
    expected = [0.05, 0.1, 0.1, 0.1, *[0.01] * 8, *[0.001] * 4]
    assert rates == pytest.approx(expected)


def _sides(epochs: int, size: int, **resize: object) -> list[int]:
    recipe = Recipe.parse({"epochs": epochs, "resize": resize})
    return [recipe.side_at(size, epoch) for epoch in range(epochs)]


def test_sides_by_hand() -> None:
    assert _sides(4, 224, start=128, until=0.75) == [128, 160, 192, 224]
    assert _sides(4, 208, start=96, until=1.0) == [96, 128, 160, 192]
    assert _sides(4, 200, start=96, until=0.5) == [96, 160, 200, 200]  # at once its own
    assert Recipe().side_at(200, 0) == 200


@given(
    epochs=st.integers(1, 40),
    start=st.sampled_from([32, 96, 128]),
    size=st.integers(130, 400),
    until=st.floats(0.1, 0.9),
)
def test_sides_grow_to_the_members_own(epochs: int, start: int, size: int, until: float) -> None:
    sides = _sides(epochs, size, start=start, until=until)
    assert sides == sorted(sides)
    assert all(side % 32 == 0 or side == size for side in sides)
    if epochs > 1 / (1 - until):
        assert sides[-1] == size


def test_resizing_must_grow() -> None:
    with pytest.raises(UserError, match=r"resize.start=128 must be below its preprocess.size=96"):
        TrainSettings.parse(
            {
                "recipe": {"resize": {"start": 128}},
                "members": [{"name": "a", "model": "test_resnet", "preprocess": {"size": 96}}],
            }
        )


def test_the_last_epochs_are_clean() -> None:
    recipe = Recipe.parse({"epochs": 5, "mix": {"clean_epochs": 2}})
    assert [recipe.mix_at(epoch) is None for epoch in range(5)] == [False] * 3 + [True] * 2
    assert Recipe().mix_at(0) is None
