"""Checkpoints of plain modules and optimizers, by one process that may play several ranks."""

import random
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from plain_engine import Alone, Plain
from torch import nn

from skindx.core.errors import UserError
from skindx.core.state_checks import UnfitStateError
from skindx.training.checkpoint import keeper as store
from skindx.training.checkpoint.keeper import At, Keeper, refuse_mismatch
from skindx.training.checkpoint.resume import RandomNumbers, Remembered, _LossSum
from skindx.training.checkpoint.saved_state import (
    GROUP_STEP,
    Buffers,
    State,
    check_optimizer,
    load_named_state,
    read_state,
    split,
    write_state,
)
from skindx.training.config.engine import CheckpointSettings
from skindx.training.parallel.mesh import ProcessGroup
from skindx.training.position import Position

CPU = torch.device("cpu")


def _keeper(folder: Path, plain: Plain, said: list[str], mark: str = "m", **settings: Any):
    return Keeper(
        folder,
        mark,
        CheckpointSettings(**settings),
        Alone(),
        said.append,
        shared={"plain": plain},
        per_rank={"statistics": Buffers([plain.module], 0, 1), "random": RandomNumbers(0, 1, CPU)},
    )


def _saved(folder: Path, steps: Sequence[int] = (1, 2, 3), **settings: Any) -> Plain:
    """Take steps 0, 1, … and save after each of `steps`."""
    plain, said = Plain(), []
    keeper = _keeper(folder, plain, said, **settings)
    for step in range(max(steps)):
        plain.step(step)
        if step + 1 in steps:
            assert keeper.save(At(0, step + 1))
    assert said == []
    return plain


def test_state_comes_back_as_it_was(tmp_path: Path) -> None:
    weight = torch.randn(3, 4)
    state = {
        "tied": {"a": weight, "b": weight},
        "view": weight[1:].T,
        "dtypes": [torch.tensor(3), torch.ones(2, dtype=torch.bfloat16), torch.tensor([True])],
        "empty": {},
        "array": np.arange(6, dtype=np.int64).reshape(2, 3),
        "plain": {"n": 2**70, "x": 0.1, "none": None, "inf": float("inf"), "word": "ä/$tensor"},
    }
    write_state(tmp_path / "s", split(state))
    assert not [file for file in (tmp_path / "s").iterdir() if b"pickle" in file.read_bytes()]
    found = read_state(tmp_path / "s")
    assert found["plain"] == state["plain"]
    assert found["empty"] == {}
    assert (found["array"] == state["array"]).all()
    assert found["tied"]["a"].equal(weight)
    assert found["tied"]["b"].equal(weight)
    assert found["view"].equal(weight[1:].T)
    for ours, theirs in zip(found["dtypes"], state["dtypes"], strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.equal(theirs)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lamb", "lars"])
def test_a_resumed_optimizer_goes_on_to_the_bit(optimizer: str, tmp_path: Path) -> None:
    whole, said = Plain(optimizer), []
    for step in range(3):
        whole.step(step)
    _keeper(tmp_path, whole, said).save(At(0, 3))
    for step in range(3, 6):
        whole.step(step)

    again = Plain(optimizer)
    assert _keeper(tmp_path, again, said).resume() == At(0, 3)
    for step in range(3, 6):
        again.step(step)
    for name, value in whole.module.state_dict().items():
        assert again.module.state_dict()[name].equal(value), name


def test_the_steps_of_a_group_come_back_beside_its_moments() -> None:
    plain, again = Plain("lamb"), Plain("lamb")
    for step in range(3):
        plain.step(step)
    state = plain.state_dict()["optimizer"]
    for _ in range(2):  # the second time the optimizer counts already, and looking counts nothing
        check_optimizer(state, again.optimizer, again.module, complete=True)
        load_named_state(again.optimizer, again.module, state)
        assert [float(group["step"]) for group in again.optimizer.param_groups] == [3, 3]
        assert {name for kept in again.optimizer.state.values() for name in kept} == {
            "exp_avg",
            "exp_avg_sq",
        }
    for count in (-1, float("nan")):
        forged = {name: {**kept, GROUP_STEP: count} for name, kept in state.items()}
        with pytest.raises(UnfitStateError):
            check_optimizer(forged, again.optimizer, again.module, complete=True)


def test_a_checkpoint_without_the_steps_of_groups_still_opens() -> None:
    plain, again = Plain("lamb"), Plain("lamb")
    plain.step(0)
    state = {
        name: {key: value for key, value in kept.items() if key != GROUP_STEP}
        for name, kept in plain.state_dict()["optimizer"].items()
    }
    check_optimizer(state, again.optimizer, again.module, complete=True)
    load_named_state(again.optimizer, again.module, state)
    assert "step" not in again.optimizer.param_groups[0]
    again.step(1)
    assert float(again.optimizer.param_groups[0]["step"]) == 1


def _truncate(checkpoint: Path) -> None:
    file = checkpoint / "shared" / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def _flip(checkpoint: Path) -> None:
    file = checkpoint / "shared" / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def _take_away(checkpoint: Path) -> None:
    (checkpoint / "rank-0" / "values.json").unlink()


def _alter_index(checkpoint: Path) -> None:
    file = checkpoint / "index.json"
    file.write_text(file.read_text().replace('"ranks": 1', '"ranks": 2'))


def _truncate_index(checkpoint: Path) -> None:
    file = checkpoint / "index.json"
    file.write_text(file.read_text()[:-20])


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (_truncate, "shared/tensors.safetensors has"),
        (_flip, "shared/tensors.safetensors was altered"),
        (_take_away, "rank-0/values.json is missing"),
        (_alter_index, "index.json was altered"),
        (_truncate_index, "index.json cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_taken(
    damage: Any, word: str, tmp_path: Path
) -> None:
    _saved(tmp_path)
    damage(store.path_of(tmp_path, At(0, 3)))
    said: list[str] = []
    keeper = _keeper(tmp_path, Plain(), said)
    assert keeper.resume() == At(0, 2)
    (line,) = said
    assert word in line
    assert line.endswith("the one before is taken")
    # The training comes to the same place again: the damaged one is replaced.
    assert keeper.save(At(0, 3))
    assert _keeper(tmp_path, Plain(), said).resume() == At(0, 3)


def test_no_whole_checkpoint_starts_anew(tmp_path: Path) -> None:
    _saved(tmp_path, [1])
    _flip(store.path_of(tmp_path, At(0, 1)))
    said: list[str] = []
    assert _keeper(tmp_path, Plain(), said).resume() is None
    assert said[0].endswith("the member starts again")
    assert _keeper(tmp_path / "nothing", Plain(), said).resume() is None


def test_the_newest_stay(tmp_path: Path) -> None:
    _saved(tmp_path, [1, 2, 3, 4], keep=3)
    assert store.saved_in(tmp_path) == [At(0, 4), At(0, 3), At(0, 2)]
    # After a fall back the ones that stand further are of no use.
    _saved(tmp_path, [2], keep=3)
    assert store.saved_in(tmp_path) == [At(0, 2)]


def test_a_rank_that_was_cut_off_leaves_what_the_others_saved(tmp_path: Path) -> None:
    _saved(tmp_path, [1, 2, 6])
    store.begin(tmp_path, number=3)
    files = store.write_part(store.writing(tmp_path, 3), {"shared": split({})})
    head = {"fingerprint": "m", "ranks": 1}
    store.finish(tmp_path, At(0, 3), head, files, keep=1, number=3)
    assert store.saved_in(tmp_path) == [At(0, 6), At(0, 3)]


@pytest.mark.parametrize(("rank", "world", "mine"), [(1, 2, 5.0), (0, 3, 8.0), (2, 3, 0.0)])
def test_the_loss_of_an_epoch_comes_back_as_a_whole(rank: int, world: int, mine: float) -> None:
    """Each rank has its own again; of another number of ranks the main one has all of it."""
    mesh = SimpleNamespace(data=ProcessGroup(rank, world), is_main=rank == 0)
    training: Any = SimpleNamespace(position=Position(), mesh=mesh)
    loss = _LossSum(training)
    loss.load_state_dict([{"loss_sum": 3.0}, {"loss_sum": 5.0}])
    assert loss.state_dict() == {"loss_sum": mine}


def test_remains_of_a_killed_save_do_not_matter(tmp_path: Path) -> None:
    _saved(tmp_path, [1])
    (store.writing(tmp_path) / "shared").mkdir(parents=True)
    (store.writing(tmp_path) / "shared" / "tensors.safetensors").write_bytes(b"half")
    said: list[str] = []
    keeper = _keeper(tmp_path, Plain(), said)
    assert keeper.resume() == At(0, 1)
    assert keeper.save(At(0, 2))
    assert not store.writing(tmp_path).exists()
    assert said == []


@contextmanager
def _full_disk(size_bytes: int) -> Iterator[None]:
    """Let every file of this process end at `size_bytes`: the system refuses to write on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("size_bytes", [0, 300, 2000])
def test_a_full_disk_warns_and_the_old_checkpoint_stays(size_bytes: int, tmp_path: Path) -> None:
    plain, said = _saved(tmp_path, [1]), []
    keeper = _keeper(tmp_path, plain, said)
    with _full_disk(size_bytes):
        assert not keeper.save(At(0, 2))
        assert not keeper.save(At(0, 3))
    assert len(said) == 2
    assert all("no checkpoint was written" in line for line in said)
    assert [file.name for file in tmp_path.iterdir()] == ["epoch-0001-step-000001"]
    assert keeper.save(At(0, 4))
    assert store.saved_in(tmp_path) == [At(0, 4), At(0, 1)]


def test_weights_that_are_not_finite_replace_nothing(tmp_path: Path) -> None:
    plain, said = _saved(tmp_path, [1]), []
    with torch.no_grad():
        plain.module[0].weight[0, 0] = float("nan")
    assert not _keeper(tmp_path, plain, said).save(At(0, 2))
    assert "plain/weights/0.weight has invalid values" in said[0]
    assert store.saved_in(tmp_path) == [At(0, 1)]


def test_when_a_save_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_steps = _keeper(tmp_path / "s", Plain(), [], every_steps=3, every_minutes=None)
    due = []
    for step in range(1, 7):
        due.append(by_steps.due())
        by_steps.count_step()
        if due[-1]:
            by_steps.save(At(0, step))
    assert due == [False, False, True] * 2

    by_time = _keeper(tmp_path / "t", Plain(), [], every_minutes=10)
    assert not by_time.due()
    later = time.monotonic() + 601
    monkeypatch.setattr("time.monotonic", lambda: later)
    assert by_time.due()


def test_other_settings_are_refused(tmp_path: Path) -> None:
    _saved(tmp_path)
    refuse_mismatch(tmp_path, "m")
    refuse_mismatch(tmp_path / "nothing", "other")
    with pytest.raises(UserError, match=r"other settings or other data \(.*\); give another --out"):
        refuse_mismatch(tmp_path, "other")
    # A damaged index says nothing of its settings.
    _truncate_index(store.path_of(tmp_path, At(0, 3)))
    with pytest.raises(UserError, match="other settings"):
        refuse_mismatch(tmp_path, "other")


class Residual:
    """Stands for an exchange: keeps its residual on as many ranks, else shares out their sum."""

    def __init__(self, rank: int, world: int, value: float) -> None:
        self.rank, self.world, self.value = rank, world, torch.tensor([value])

    def state_dict(self) -> State:
        return {"residual": self.value}

    def load_state_dict(self, states: Sequence[State]) -> None:
        if len(states) == self.world:
            self.value = states[self.rank]["residual"]
        else:
            self.value = sum(state["residual"] for state in states) / self.world


def _of_three_ranks(folder: Path) -> None:
    """Write what three ranks hold, one after the other, as `Keeper` does at once."""
    files: dict[str, Any] = {}
    store.begin(folder)
    for rank in range(3):
        network = nn.BatchNorm1d(2)
        network.running_mean.fill_(float(rank))
        network.num_batches_tracked.fill_(7)
        np.random.seed(rank)
        random.seed(rank)
        torch.manual_seed(rank)
        own = {
            "statistics": Buffers([network], rank, 3).state_dict(),
            "residual": Residual(rank, 3, float(rank + 1)).state_dict(),
            "random": RandomNumbers(rank, 3, CPU).state_dict(),
        }
        parts = {f"rank-{rank}": split(own), **({} if rank else {"shared": split({})})}
        files |= store.write_part(store.writing(folder), parts)
    store.finish(folder, At(1, 0), {"fingerprint": "m", "ranks": 3}, files, keep=1)


def test_each_rank_gets_its_own_back(tmp_path: Path) -> None:
    _of_three_ranks(tmp_path)
    checkpoint = store.path_of(tmp_path, At(1, 0))
    assert store.verify(checkpoint)["ranks"] == 3
    network, residual = nn.BatchNorm1d(2), Residual(2, 3, 0)
    Buffers([network], 2, 3).load_state_dict(store.RankStates(checkpoint, 3, "statistics"))
    assert network.running_mean.tolist() == [2, 2]
    residual.load_state_dict(store.RankStates(checkpoint, 3, "residual"))
    assert residual.value == 3
    RandomNumbers(2, 3, CPU).load_state_dict(store.RankStates(checkpoint, 3, "random"))
    drawn = [np.random.random(), random.random(), torch.rand(1).item()]
    np.random.seed(2)
    random.seed(2)
    torch.manual_seed(2)
    assert drawn == [np.random.random(), random.random(), torch.rand(1).item()]


def test_another_number_of_ranks_gets_what_fits(tmp_path: Path) -> None:
    _of_three_ranks(tmp_path)
    checkpoint = store.path_of(tmp_path, At(1, 0))
    network, residual = nn.BatchNorm1d(2), Residual(0, 2, 0)
    Buffers([network], 0, 2).load_state_dict(store.RankStates(checkpoint, 3, "statistics"))
    assert network.running_mean.tolist() == [1, 1]
    assert network.num_batches_tracked == 7
    residual.load_state_dict(store.RankStates(checkpoint, 3, "residual"))
    assert residual.value == 3
    before = torch.get_rng_state()
    RandomNumbers(0, 2, CPU).load_state_dict(store.RankStates(checkpoint, 3, "random"))
    assert torch.get_rng_state().equal(before)


def test_a_skipped_step_leaves_the_statistics(tmp_path: Path) -> None:
    network = nn.BatchNorm1d(2)
    buffers = Buffers([network], 0, 1)
    network(torch.randn(4, 2))
    before = network.running_mean.clone()
    buffers.remember()
    network(torch.full((4, 2), float("nan")))
    assert not network.running_mean.isfinite().all()
    buffers.go_back()
    assert network.running_mean.equal(before)
    assert network.num_batches_tracked == 1


class _OtherForm:
    def state_dict(self) -> dict[str, Any]:
        return {"step": 3}

    def load_state_dict(self, states: Any) -> None:
        raise UnfitStateError("exchange/residual is float32 (4), but must be float32 (3)")


def test_what_an_exchange_remembers_stays_under_its_form() -> None:
    remembered = Remembered(_OtherForm())
    assert remembered.state_dict() == {"step": 3}
    said = r"must be float32 \(3\); engine.parallel.kind and exchange.kind must be those of the"
    with pytest.raises(UnfitStateError, match=said):
        remembered.load_state_dict([])
