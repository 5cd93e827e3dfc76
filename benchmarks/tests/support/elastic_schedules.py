"""Elastic trainings of small ranks to which accidents happen, and what must hold afterwards."""

import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from ranks import forking
from safetensors.torch import load_file

from skindx.data.loader.batches import epoch_plan, steps_of
from skindx.data.manifest import read_manifest
from skindx.training.config.run import TrainSettings
from skindx.training.launching.supervise import RANKS, clear_notes, read_notes
from skindx_bench.harness.accidents import Accident, Injector
from skindx_bench.harness.netlab import NetLab
from skindx_bench.train.elastic_process import Cluster, StepLine, logged

EVENTS = "elastic.jsonl"
_MODULE = "skindx_bench.train.elastic_process"


def settings_of(ranks: int, epochs: int, exchange: str = "dense") -> TrainSettings:
    """Return the settings of a small training that notices a silent rank soon."""
    return TrainSettings.parse(
        {
            "engine": {
                "accelerator": "cpu",
                "ranks": ranks,
                "timeout_s": 60,
                "elastic": {"min_ranks": 1, "silent_s": 1.5},
            },
            "exchange": {"kind": exchange},
            "recipe": {"epochs": epochs, "batch": 9, "ema": {"decay": 0.9}},
            "members": [{"name": "a", "model": "test_resnet", "preprocess": {"size": 32}}],
            "loader": {"threads": 1},
        }
    )


def _host(
    run: Path, dataset: Path, settings: TrainSettings, cluster: Cluster, network: Path | None
) -> None:
    """Host the store and start the ranks, as `skindx train` does, without its checks."""
    from skindx.workers.forked_module import enter_network
    from skindx_methods.elastic import restarts
    from skindx_methods.elastic.elastic_run import host_store

    os.setsid()
    if network:
        enter_network(network)
    os.environ.update(cluster.environment())
    log = os.open(run.with_suffix(".log"), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    store = host_store(os.environ)
    launcher = os.fork()
    if not launcher:
        restarts._PAUSES_S = 0.3, 1.0  # a test has no minutes
        ranks, port = str(settings.engine.ranks), os.environ["MASTER_PORT"]
        options = ["1,60", "json", ranks, port, _MODULE, str(run), str(dataset)]
        code = 1
        with suppress(SystemExit):
            code = restarts.main(options)
        os._exit(code if code >= 0 else 128 - code)
    _, status = os.waitpid(launcher, 0)
    del store
    os._exit(os.waitstatus_to_exitcode(status) % 256)


def train_through(
    run: Path,
    dataset: Path,
    settings: TrainSettings,
    schedule: Sequence[Accident],
    *,
    pause_s: float,
    limit_s: float,
    lab: NetLab | None = None,
) -> list[Accident]:
    """Train while the accidents happen; return those that did. Fails after `limit_s`."""
    ranks = settings.engine.ranks
    assert isinstance(ranks, int)
    run.mkdir(parents=True)
    (logs := run.with_suffix(".logs")).mkdir()
    clear_notes(run / RANKS)
    settings.save(run / "train.yaml")
    networks = tuple(str(lab.namespace(rank + 1)) for rank in range(ranks)) if lab else ()
    cluster = Cluster(str(logs), networks, lab.address(0) if lab else "", pause_s)
    host = forking().Process(
        target=_host, args=(run, dataset, settings, cluster, lab.namespace(0) if lab else None)
    )
    host.start()
    deadline = time.monotonic() + limit_s

    def over() -> bool:
        return not host.is_alive() or time.monotonic() > deadline

    def pid_of(rank: int) -> int | None:
        """A rank's process, unless no other one is alive."""
        pids = {
            note.rank: note.pid
            for note in read_notes(run / RANKS)
            if note.ending == "at work" and _runs(note.pid)
        }
        return pids.get(rank) if len(pids) > 1 else None

    injector = Injector(pid_of, lab, first_node=1)
    try:
        while len({line.slot for line in logged(logs)}) < ranks and not over():
            time.sleep(0.02)
        injector.run(schedule, over)
        host.join(max(0.0, deadline - time.monotonic()))
        if host.exitcode is None:
            for note in read_notes(run / RANKS):  # they print where they are
                if _runs(note.pid):
                    os.kill(note.pid, signal.SIGUSR1)
            time.sleep(1)
        printed = run.with_suffix(".log").read_text()
        assert host.exitcode == 0, (
            f"{'hangs' if host.exitcode is None else host.exitcode}\n{printed}"
        )
    finally:
        with suppress(ProcessLookupError):
            os.killpg(host.pid or 0, signal.SIGKILL)
        host.join()
    return injector.happened


def _runs(pid: int) -> bool:
    """A process is there and not stopped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "T")


def check(run: Path, dataset: Path, settings: TrainSettings) -> list[dict[str, Any]]:
    """Fail unless each step that counts was taken once, with its images; return the history."""
    lines = logged(run.with_suffix(".logs"))
    events = [json.loads(line) for line in (run / EVENTS).read_text().splitlines()]
    images = len([record for record in read_manifest(dataset) if record.split == "train"])
    recipe = settings.recipe
    steps = steps_of(images, recipe.batch)
    taken_by = _lineage(events, steps, recipe.epochs * steps)
    assert sorted(taken_by) == list(range(recipe.epochs * steps)), "a step is missing"
    by_step: dict[tuple[int, int], list[StepLine]] = defaultdict(list)
    for line in lines:
        if not line.digest:
            by_step[line.group, line.done - 1].append(line)
    for step, group in taken_by.items():
        took = by_step[group, step]
        assert took, f"nobody took step {step} of group {group}"
        assert len({line.rank for line in took}) == len(took), f"step {step} was taken twice"
        epoch, number = divmod(step, steps)
        for line in took:
            plan = epoch_plan(images, recipe.batch, 0, epoch, line.world, sharded=False)[number]
            assert line.images == plan[line.rank].tolist()
        if len(took) == took[0].world:
            whole = sorted(np.concatenate(plan).tolist())
            assert sorted(image for line in took for image in line.images) == whole
    ends = [line for line in lines if line.digest]
    last = [line for line in ends if line.group == events[-1]["group"]]
    assert last, "no rank saw the end"
    assert len({line.digest for line in last}) == 1, "ranks ended with different weights"
    weights = load_file(run / "members" / "a" / "model.safetensors")
    assert all(value.isfinite().all() for value in weights.values() if value.is_floating_point())
    rows = (run / "members" / "a" / "history.csv").read_text().splitlines()
    assert len(rows) == 1 + recipe.epochs
    return events


def _lineage(events: Sequence[dict[str, Any]], steps: int, total: int) -> dict[int, int]:
    """Return the group in which each step was taken that led to the end."""
    starts = [(event["epoch"] - 1) * steps + event["step"] for event in events]
    result: dict[int, int] = {}
    for event, start, end in zip(events, starts, [*starts[1:], total], strict=True):
        result = {step: group for step, group in result.items() if step < start}
        result |= dict.fromkeys(range(start, end), event["group"])
    return result
