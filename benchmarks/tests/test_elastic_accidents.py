"""Ranks that are killed, stopped, cut off and come back: the training ends, and nothing is lost."""

import csv
import math
import statistics
from pathlib import Path

import pytest
from elastic_schedules import check, settings_of, train_through

from skindx.training.config.run import TrainSettings
from skindx_bench.harness.accidents import Accident, Kind, at_random
from skindx_bench.harness.netlab import Link, NetLab
from skindx_bench.train.convergence_pairs import overlay

pytestmark = pytest.mark.distributed

EXCHANGES = ("dense", "fused", "topk", "gtopk", "local")


def test_a_killed_and_a_stopped_rank_stop_nobody(small_dataset: Path, tmp_path: Path) -> None:
    run, settings = tmp_path / "run", settings_of(3, epochs=4)
    schedule = [Accident(0.2, "kill", 0), Accident(1.2, "stop", 2, 2.2)]
    happened = train_through(run, small_dataset, settings, schedule, pause_s=0.08, limit_s=60)
    events = check(run, small_dataset, settings)
    assert [one.kind for one in happened] == ["kill", "stop"]
    gone = next(number for number, event in enumerate(events) if "0" in event["left"])
    assert any(0 in event["ranks"] for event in events[gone:])


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_random_schedules(first: int, lab_here: None, small_dataset: Path, tmp_path: Path) -> None:
    """Ten schedules of three or four ranks, by seeds."""
    kinds: tuple[Kind, ...] = ("kill", "stop", "cut", "kill")
    with NetLab(5, Link(1000)) as lab:
        for seed in range(first, first + 10):
            ranks, exchange = 3 + seed % 2, EXCHANGES[seed % len(EXCHANGES)]
            run, settings = tmp_path / f"run-{seed}", settings_of(ranks, 8, exchange)
            schedule = at_random(seed, ranks, 5.0, 2 + seed % 4, kinds)
            try:
                train_through(
                    run, small_dataset, settings, schedule, pause_s=0.08, limit_s=90, lab=lab
                )
                check(run, small_dataset, settings)
            except AssertionError as error:
                pytest.fail(f"seed {seed}, {exchange}: {error}\n{schedule}")


@pytest.mark.long
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_disturbed_trainings_learn_what_undisturbed_ones_do(
    exchange: str, small_dataset: Path, tmp_path: Path
) -> None:
    """Their mean last loss is in the 99 % interval of the undisturbed seeds."""
    ends: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(8):
        disturbed, run = seed >= 5, tmp_path / f"run-{seed}"
        raw = settings_of(3, 8, exchange).model_dump(mode="json", exclude_unset=True)
        member = [{**raw["members"][0], "seed": seed}]
        settings = TrainSettings.parse(overlay(raw, {"members": member}))
        schedule = at_random(seed, 3, 5.0, 3, ("kill", "stop")) if disturbed else []
        train_through(run, small_dataset, settings, schedule, pause_s=0.08, limit_s=90)
        with (run / "members" / "a" / "history.csv").open() as file:
            ends[disturbed].append(float(list(csv.DictReader(file))[-1]["loss"]))
    middle, spread = statistics.fmean(ends[False]), statistics.stdev(ends[False])
    far = 4.604 * spread * math.sqrt(1 / 5 + 1 / 3)  # Student's t of four degrees
    assert abs(statistics.fmean(ends[True]) - middle) < far, ends
