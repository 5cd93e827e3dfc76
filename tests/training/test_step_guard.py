"""What a rank learns in its one look at a step."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_engine import Alone

from skindx.core.errors import UserError
from skindx.training.config.engine import EngineSettings
from skindx.training.parallel.mesh import Mesh, ProcessGroup
from skindx.training.position import Position, StepGuard, count_step
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


def _counted(losses: list[float | None], bad_steps: int = 2) -> tuple[Position, list[str]]:
    """Count steps of four images, of which those without a loss are skipped."""
    guard, lines = StepGuard(Alone(), bad_steps), list[str]()
    batch: Any = SimpleNamespace(local_count=2, count=4)
    training: Any = SimpleNamespace(name="a", position=Position(), guard=guard)
    for loss in losses:
        training.position.step += 1
        count_step(training, loss, batch, SimpleNamespace(line=lines.append), rate=0.1)
    return training.position, lines


def test_skipped_images_count_in_no_mean_and_good_steps_end_a_bad_run() -> None:
    """Two of six steps are skipped twice in a row each time: never more than may be."""
    stands, lines = _counted([8.0, None, None, 4.0, None, None])
    assert (stands.loss_sum, stands.skipped, stands.skipped_pictures) == (12.0, 4, 16)
    assert len(lines) == 4
    assert lines[0] == "epoch 1, step 2: the loss is not finite, the step is skipped"
    row = stands.row(24, stands.loss_sum, {"val": 1})
    assert row == {"epoch": 1, "loss": 12 / 8, "val": 1, "skipped_steps": 4}
    stands.next_epoch()
    assert (stands.epoch, stands.step, stands.loss_sum) == (1, 0, 0.0)
    assert stands.row(24, 12.0, {}) == {"epoch": 2, "loss": 0.5, "skipped_steps": 0}
    assert stands.bad_run == 2  # it goes on over the end of an epoch


@pytest.mark.parametrize("rank", [0, 1])
def test_the_main_rank_alone_says_that_a_checkpoint_is_due(rank: int) -> None:
    mesh = Mesh(ProcessGroup(rank, 1), torch.device("cpu"), EngineSettings(accelerator="cpu"))
    guard = StepGuard(mesh, 3, due=lambda: True)
    guard.check(torch.tensor(1.0))
    assert guard.save == (rank == 0)


def test_one_bad_step_more_than_may_be_ends_a_training() -> None:
    _counted([1.0, None, None])
    with pytest.raises(
        UserError, match=r"^a diverged: .* not finite in 3 consecutive steps .*0\.1;"
    ):
        _counted([1.0, None, None, None])
