"""What a rank learns in its one look at a step."""

import math

import pytest
import torch
from plain_engine import Alone

from skindx.training import position
from skindx.training.position import Position, StepGuard
from skindx.training.tasks.image_sets import on_device


def test_the_loss_comes_with_what_was_asked_for() -> None:
    asked, due = [False], [False]
    guard = StepGuard(Alone(), 3, stop_requested=lambda: asked[0], due=lambda: due[0])
    loss = torch.tensor(0.1, requires_grad=True)
    assert guard.check(loss * 1) == loss.item()
    assert (guard.stop, guard.save) == (False, False)
    due[0] = True
    assert guard.check(loss) == loss.item()
    assert (guard.stop, guard.save) == (False, True)
    asked[0] = True
    assert guard.check(loss) == loss.item()
    assert (guard.stop, guard.save) == (True, True)


def test_ranks_apart_ask_for_a_stop_once_in_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of half a second: every fourth asks, or where they meet or save by their steps."""
    now, looked, save = [0.0], list[int](), [False]
    monkeypatch.setattr(position.time, "monotonic", lambda: now[0])
    guard = StepGuard(Alone(), 3, lambda: bool(looked.append(step)), apart=True, agree_s=2.0)
    guard.due_alike = lambda: save[0]
    for step in range(1, 14):
        now[0] += 0.5
        save[0] = step == 10
        guard.agree(Position(), met=step == 7)
    assert looked == [1, 5, 7, 10]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_none(bad: float) -> None:
    guard = StepGuard(Alone(), 3, stop_requested=lambda: True)
    assert guard.check(torch.tensor(bad)) is None
    assert guard.stop


def test_on_a_cpu_batches_stay_where_they_are() -> None:
    batch = (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.zeros(2, dtype=torch.long))
    (same,) = on_device(iter([batch]), torch.device("cpu"))
    assert same[0] is batch[0]
    assert same[1] is batch[1]
