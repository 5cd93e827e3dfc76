"""Hopping members: bit-equal to one process in the recorded order, whatever crashes."""

import gc
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_process import alone, in_order, recorded
from ranks import run_ranks

from skindx.core.errors import JobError, UserError
from skindx.data.loader.batches import steps_of
from skindx.data.manifest import Record, read_manifest, split_of
from skindx.models.classifier.classifier import Classifier, ClassifierSettings, build_classifier
from skindx.models.classifier.network_setup import shapes_only
from skindx.training.checkpoint.finished import load_member, member_folder
from skindx.training.checks import check_smallest_step
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import TrainSettings
from skindx.workers.lease_queue import (
    ASIDE,
    DONE,
    FAILED,
    OPEN,
    LeaseQueue,
    LeaseTask,
    TaskState,
    WorkerState,
)
from skindx_methods.hopping.hop_units import Unit, hop_tasks
from skindx_methods.hopping.local_workers import line, progress_of
from skindx_methods.hopping.partition_images import Partitions, Visits, check_partitions
from skindx_methods.hopping.run_queue import (
    conclude,
    raise_problems,
    schedule,
    state_bytes,
    unschedule,
)

PARTITIONS = 2

SETTINGS = {
    "engine": {"accelerator": "cpu", "schedule": "hop", "partitions": PARTITIONS},
    "recipe": {"epochs": 2, "batch": 9, "mix": {}, "warmup_epochs": 0.5},
    "members": [
        {
            "name": "averaged",
            "model": "test_resnet",
            "preprocess": {"size": 64},
            "recipe": {"epochs": 2, "batch": 9, "ema": {"decay": 0.9}, "optimizer": "sgd"},
        },
        {"name": "dropping", "model": "test_vit", "preprocess": {"size": 160},
         "model_args": {"drop_rate": 0.2}, "recipe": {"epochs": 1, "batch": 13}},
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Hopped:
    """What the rank brings back."""

    crashes: int
    same: dict[str, bool]
    near: dict[str, float]
    left: list[str]
    """Files among the checkpoints when all is over."""
    problems: dict[str, str]
    alive: int
    """Most networks that a worker still held when a unit was over."""
    stayed: tuple[bool, int, list[str]]
    """A member that stays on a worker is trained as one rank trains it; steps that were done twice;
    what was said of its lease."""


class _Crash(Exception):
    pass


def _hop(run: Path, dataset: Path) -> Hopped:
    """Let two workers take turns in one process, and lose some of them in the middle of a unit."""
    from skindx.training.launching.supervise import StopRequest
    from skindx.training.position import StepGuard
    from skindx_methods.hopping.hop_worker import HopWorker

    settings, rng = TrainSettings.parse(SETTINGS), random.Random(3)
    mesh, stop = alone(settings), StopRequest(25)
    workers = [
        HopWorker(run, dataset, settings, mesh, stop, rank=rank, workers=2) for rank in range(2)
    ]
    leases = workers[0].leases
    names = [leases.enter({"rank": rank}, home=rank) for rank in range(2)]
    check, crashes, due = StepGuard.check, 0, [False]

    def with_crashes(self: StepGuard, loss: torch.Tensor) -> float | None:
        if due[0] and rng.random() < 0.5:
            due[0] = False
            raise _Crash
        return check(self, loss)

    StepGuard.check = with_crashes  # type: ignore[method-assign]
    alive = 0
    gc.freeze()
    while leases.has_work():
        rank = rng.randrange(2)
        due[0] = crashes < 2  # a unit that ended three workers would be set aside
        try:
            workers[rank].turn(names[rank])
        except _Crash:
            crashes += 1
            leases.lose(names[rank])
            names[rank] = leases.enter({"rank": rank}, home=rank)
        gc.collect()
        alive = max(alive, sum(isinstance(held, Classifier) for held in gc.get_objects()))
    StepGuard.check = check  # type: ignore[method-assign]
    problems = _refusals(run, dataset, settings, workers[0], mesh)
    for name in names:
        leases.leave(name)
    conclude(run, leases)
    same, near = {}, {}
    for member in settings.members:
        order = recorded(run, member.name)
        expected = in_order(dataset, settings, member.name, order, PARTITIONS, mesh)
        found = load_member(run, member.name)
        assert found.state.keys() == expected.state.keys()
        same[member.name] = all(
            found.state[key].equal(value) for key, value in expected.state.items()
        )
        assert (found.truth_N == expected.truth_N).all()
        near[member.name] = float(np.abs(found.validation_NC - expected.validation_NC).max())
    left = sorted(str(path.relative_to(run)) for path in (run / "checkpoints").rglob("*"))
    stayed = _stay(run.with_name("stay"), dataset, mesh, stop)
    return Hopped(crashes, same, near, left, problems, alive, stayed)


def _stay(run: Path, dataset: Path, mesh: Any, stop: Any) -> tuple[bool, int, list[str]]:
    """Train by `members` with a lease that is lost once, and compare with the ordinary loop."""
    from skindx.training.position import StepGuard
    from skindx_methods.hopping.hop_worker import HopWorker

    (member, _) = SETTINGS["members"]  # type: ignore[misc]
    raw = {"engine": {"accelerator": "cpu", "schedule": "members"}, "members": [member]}
    settings = TrainSettings.parse(raw)
    worker = HopWorker(run, dataset, settings, mesh, stop, rank=0, workers=2)
    said: list[str] = []
    worker._say = said.append  # type: ignore[method-assign]
    check, steps = StepGuard.check, [0]

    def lose_the_lease(self: StepGuard, loss: torch.Tensor) -> float | None:
        steps[0] += 1
        if steps[0] == 2:
            (alive,) = worker.leases.workers()
            worker.leases.lose(alive.worker)
            worker._heartbeat.lost = True  # type: ignore[union-attr]
        return check(self, loss)

    StepGuard.check = lose_the_lease  # type: ignore[method-assign]
    worker.work()
    hopped = steps[0]
    conclude(run, worker.leases)
    expected = in_order(dataset, settings, "averaged", {}, 0, mesh).state
    StepGuard.check = check  # type: ignore[method-assign]
    found = load_member(run, "averaged").state
    same = all(found[key].equal(value) for key, value in expected.items())
    again = hopped - (steps[0] - hopped)
    return same, again, [line for line in said if "lease" in line]


def _refusals(
    run: Path, dataset: Path, settings: TrainSettings, worker: Any, mesh: Any
) -> dict[str, str]:
    """Return what is said of partitions and states that are not there."""
    from skindx_methods.hopping.partition_images import PartitionImages

    records = read_manifest(dataset)
    partitions = Partitions.of(records, settings, PARTITIONS)
    gone = PartitionImages(run / "nowhere", records, partitions, settings.loader, mesh)
    job = worker._jobs.by_key["averaged"]
    said = {}
    try:
        gone.opener(1)(job.data, job.member, settings.loader, mesh, lambda text: None)
    except UserError as error:
        said["partition"] = str(error)
    done = [TaskState("averaged/0000/train/0", "averaged", 0, 0, 1, DONE, "w", 0, 0.0, 1.0,
                      {"state": "lost"}, 1)]  # fmt: skip
    try:
        worker._visitor.train(job, Unit("averaged", 0, "train", 1), done, "new")
    except UserError as error:
        said["state"] = str(error)
    return said


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hop") / "run"


@pytest.fixture(scope="module")
def hopped(small_dataset: Path, run: Path) -> Hopped:
    (found,) = run_ranks(1, _hop, run, small_dataset)
    return found


@pytest.mark.distributed
def test_the_weights_are_those_of_one_process_in_the_recorded_order(hopped: Hopped) -> None:
    assert hopped.crashes == 2
    assert hopped.same == {"averaged": True, "dropping": True}
    assert max(hopped.near.values()) < 1e-4


@pytest.mark.distributed
def test_a_hopped_member_leaves_what_any_member_leaves(hopped: Hopped, run: Path) -> None:
    assert hopped.left == []
    rows = (member_folder(run, "averaged") / "history.csv").read_text().splitlines()
    assert rows[0].startswith("epoch,loss,val_top1,val_balanced,pictures_per_s")
    assert len(rows) == 3
    order = recorded(run, "averaged")
    assert {epoch: sorted(parts) for epoch, parts in order.items()} == {0: [0, 1], 1: [0, 1]}


@pytest.mark.distributed
def test_a_worker_holds_no_member_between_two_units(hopped: Hopped) -> None:
    """So its memory is that of one member, however many there are."""
    assert hopped.alive == 0


@pytest.mark.distributed
def test_a_member_may_stay_on_one_worker(hopped: Hopped) -> None:
    same, again, said = hopped.stayed
    assert same
    assert again == 2  # the third step would have been another worker's
    assert said == [
        "worker 0 was silent for more than engine.lease_s = 60 s and lost its lease; another "
        "worker does its unit, and it takes a new one"
    ]


@pytest.mark.distributed
def test_what_is_gone_is_named(hopped: Hopped, run: Path) -> None:
    assert "partition 2 of 2 cannot be read on" in hopped.problems["partition"]
    assert "the state of member averaged in" in hopped.problems["state"]
    assert "is damaged or" in hopped.problems["state"]


@given(
    count=st.integers(4, 60),
    partitions=st.integers(1, 4),
    batch=st.integers(2, 20),
    seed=st.integers(0, 99),
)
def test_a_partition_shows_the_same_steps_whatever_came_before(
    count: int, partitions: int, batch: int, seed: int
) -> None:
    owner_N = np.arange(count) % partitions
    visits = Visits(owner_N, partitions)
    order = np.random.default_rng(seed).permutation(partitions).tolist()
    visits.order = order
    whole = visits.plan(batch, seed, 1)
    assert sorted(np.concatenate(whole).tolist()) == list(range(count))
    assert len(whole) == max(partitions, steps_of(count, batch)) == sum(visits.steps(batch))
    parts = []
    for partition in order:
        visits.order = (partition,)
        parts += visits.plan(batch, seed, 1)
    assert all((one == other).all() for one, other in zip(whole, parts, strict=True))
    assert all((owner_N[numbers] == owner_N[numbers[0]]).all() for numbers in whole if len(numbers))


@pytest.mark.parametrize(
    ("counts", "batch", "steps"),
    [
        ((10, 7, 3), 4, [2, 2, 1]),  # of quotas 2.5, 1.75 and 0.75
        ((18, 1, 1), 5, [2, 1, 1]),  # 3.6, 0.2 and 0.2: each has one, and the largest gives them
        ((9, 9, 6), 5, [2, 2, 1]),  # 1.875, 1.875 and 1.25
        ((1, 1, 1), 30, [1, 1, 1]),
    ],
)
def test_partitions_share_an_epochs_steps_by_largest_remainders(
    counts: tuple[int, ...], batch: int, steps: list[int]
) -> None:
    assert Visits(np.repeat(np.arange(len(counts)), counts), len(counts)).steps(batch) == steps


def test_partitions_deal_out_every_image_once(small_dataset: Path) -> None:
    records = read_manifest(small_dataset)
    for fold in (None, 1):
        settings = TrainSettings.parse(
            {"members": [{"name": "a", "model": "test_resnet", "fold": fold}]}
        )
        partitions = Partitions.of(records, settings, 3)
        train = split_of(records, "train")
        counts = np.bincount(partitions.owner_N(train), minlength=3)
        assert counts.sum() == len(train)
        assert counts.max() - counts.min() <= (1 if fold is None else 8)
        test = split_of(records, "test")
        assert not any(record.path in partitions.owner for record in test)


def test_too_small_partitions_are_refused(small_dataset: Path) -> None:
    settings = TrainSettings.parse(SETTINGS)
    with pytest.raises(UserError, match=r"batch=9 is more than the 5 training images"):
        check_partitions(read_manifest(small_dataset), settings, 10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"exchange": {"kind": "gtopk"}}, "exchanges no gradients"),
        ({"detector": {"size": 64}}, r"in detector\.from"),
        ({"engine": {"schedule": "hop", "zero": 1}}, r"set engine\.zero=0"),
        ({"engine": {"schedule": "hop", "partitions": 0}}, "must be 1 to"),
        ({"engine": {"leases": "postgresql://me:secret@host/db"}}, "must not contain a password"),
        ({"engine": {"schedule": "hopp"}}, "'data', 'hop' or 'members'"),
    ],
)
def test_settings_that_do_not_go_together(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        TrainSettings.parse({**SETTINGS, **change})


def _states(make: Callable[[Unit], dict[str, Any]]) -> list[TaskState]:
    (member, _) = TrainSettings.parse(SETTINGS).members
    tasks = hop_tasks(member, 1, [10, 10], [4, 4])
    kept = ("worker", "began", "took_s", "answer", "ended")
    blank = {"state": OPEN, "losses": 0, **dict.fromkeys(kept)}
    return [
        TaskState(**vars(task) | blank | make(Unit.of(task.key)))  # type: ignore[arg-type]
        for task in tasks
    ]


def test_progress_says_who_is_where_and_when_it_ends() -> None:
    def make(unit: Unit) -> dict[str, Any]:
        if unit.kind == "train" and unit.partition == 0:
            return {"state": DONE, "took_s": 60.0, "ended": 1}
        if unit.kind == "train":
            return {"state": "taken", "worker": "w"}
        return {}

    workers = [WorkerState("w", {"host": "node2", "rank": 1}, (1,))]
    found, left_s = progress_of(_states(make), workers)
    assert found[0].where == "epoch 1 trains on partition 2, worker 1 on node2"
    assert (found[0].done, found[0].units) == (1, 4)
    assert left_s == pytest.approx(60 + 2 * 4 * 0.3 * 6)
    assert line(found, left_s) == "units done: averaged 1/4; about 1 min left"


def test_one_training_schedules_a_run_until_it_lets_go(tmp_path: Path) -> None:
    with LeaseQueue(tmp_path / "leases.sqlite", "q") as queue:
        queue.put([LeaseTask("t")], fingerprint="same", version="1", facts={})
        token = schedule(queue, "host a", 60)
        assert schedule(queue, "host a", 60, token) == token
        with pytest.raises(
            UserError, match=r"another training is already running on this run \(host a\)"
        ):
            schedule(queue, "host b", 60)
        unschedule(queue, token)
        schedule(queue, "host b", 60)


def test_units_that_did_not_work_are_named() -> None:
    refused = _states(lambda unit: {"state": FAILED, "answer": "the loss was not finite."})
    with pytest.raises(UserError, match="member averaged, epoch 1, partition 1"):
        raise_problems(refused)
    aside = _states(lambda unit: {"state": ASIDE} if unit.key.endswith("validate/1") else {})
    named = "validation of member averaged, epoch 1, partition 2: 3 workers"
    with pytest.raises(JobError, match=named):
        raise_problems(aside)


@pytest.mark.parametrize("schedule", ["members", "hop"])
def test_heads_on_a_frozen_trunk_are_not_scheduled(schedule: str) -> None:
    member = {"name": "a", "model": "test_vit", "trunk": "frozen", "head": "linear"}
    with pytest.raises(UserError, match="heads on a frozen trunk"):
        TrainSettings.parse({"engine": {"schedule": schedule}, "members": [member]})


def test_a_batch_norm_gets_two_images_in_each_visit() -> None:
    members = [{"name": "m", "model": "test_efficientnet", "preprocess": {"size": 32}}]
    recipe = {"batch": 2, "epochs": 2, "warmup_epochs": 1}
    settings = TrainSettings.parse(
        {"members": members, "recipe": recipe, "engine": {"schedule": "hop"}}
    )
    with shapes_only():
        classifier = build_classifier(settings.members[0], 3)
    records = [Record(f"{n}", "0", "0" * 16, 9, 9, "a", "g", "train") for n in range(14)]
    for count, fits in ((7, True), (2, False)):  # partitions of 2 images, and of 7
        partitions = Partitions.of(records, settings, count)
        with nullcontext() if fits else pytest.raises(UserError, match=r"recipe.batch=3"):
            least = partial(partitions.least_of_visits, records)
            check_smallest_step(settings, settings.members[0], classifier, records, least=least)


def test_the_memory_of_a_member_counts_what_its_optimizer_keeps() -> None:
    net = build_classifier(ClassifierSettings(model="mobilenetv2_100"), 8)
    weights = sum(weight.numel() for weight in net.parameters())
    assert state_bytes(net, Recipe(optimizer="muon")) == 4 * 3 * weights
