"""Ranks that go on when one is lost: forked processes, with a store in the test's own."""

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ranks import forking
from torch._C._distributed_c10d import TCPStore

from skindx.training.config.run import TrainSettings
from skindx_methods.elastic.run_secret import RunSecret

Plan = dict[tuple[int, int], str]
"""(slot, its n-th backward pass) -> what its process does to itself there."""


def elastic_settings(ranks: int, **changes: Any) -> TrainSettings:
    """Return settings of a small training of 6 steps an epoch on `small_dataset`."""
    raw: dict[str, Any] = {
        "engine": {
            "accelerator": "cpu",
            "ranks": ranks,
            "timeout_s": 60,
            "elastic": {"silent_s": 1.5},
        },
        "recipe": {"epochs": 2, "batch": 9, "ema": {"decay": 0.9}},
        "members": [{"name": "a", "model": "test_resnet", "preprocess": {"size": 32}}],
        "loader": {"threads": 1},
    }
    return TrainSettings.parse(raw | changes)


@dataclass
class Ranks:
    """Processes by their slots, and the store that they meet at."""

    run: Path
    dataset: Path
    settings: TrainSettings
    plan: Plan = field(default_factory=dict)
    store: Any = None
    processes: dict[int, ForkServerProcess] = field(default_factory=dict)

    def start(self, *slots: int) -> None:
        """Start ranks, also again."""
        for slot in slots:
            place = (slot, int(self.settings.engine.ranks), self.store.port)
            plan = {str(at): what for (of, at), what in self.plan.items() if of == slot}
            process = forking().Process(
                target=_work, args=(place, self.run, self.dataset, plan), daemon=True
            )
            process.start()
            self.processes[slot] = process
            self.plan = {key: what for key, what in self.plan.items() if key[0] != slot}

    def wait(self, until: Callable[[], bool], limit_s: float = 40) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + limit_s
        while not until():
            assert time.monotonic() < deadline, self.events()
            time.sleep(0.02)

    def join(self, *slots: int) -> list[int | None]:
        """Wait for these to end; return their exit codes."""
        self.wait(lambda: not any(self.processes[slot].is_alive() for slot in slots))
        return [self.processes[slot].exitcode for slot in slots]

    def waits(self, slot: int) -> bool:
        """Tell whether a rank waits to be taken in."""
        name, secret = f"card/{slot}", RunSecret.within(self.run / "ranks")
        card = json.loads(secret.opened(name, self.store.get(name)))
        return bool(card) and card["state"] == "waiting"

    def open_gate(self) -> None:
        """Let a rank that stands at the gate go on."""
        (self.run / "gate").touch()

    def signal(self, slot: int, number: signal.Signals) -> None:
        """Send a signal to one rank."""
        pid = self.processes[slot].pid
        assert pid
        os.kill(pid, number)

    def events(self) -> list[dict[str, Any]]:
        """Return the rows of the groups."""
        return _rows(self.run / "elastic.jsonl")

    def steps(self, slot: int) -> list[dict[str, Any]]:
        """Return what a rank noted after each step."""
        return _rows(self.run / f"steps-{slot}.jsonl")


def _rows(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


@contextmanager
def elastic_ranks(
    run: Path, dataset: Path, settings: TrainSettings, plan: Plan | None = None
) -> Iterator[Ranks]:
    """Return ranks that are yet to start; none outlives the block."""
    run.mkdir(parents=True)
    settings.save(run / "train.yaml")
    (run / "ranks").mkdir()
    ranks = Ranks(run, dataset, settings, dict(plan or {}))
    ranks.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    try:
        yield ranks
    finally:
        for process in ranks.processes.values():
            if process.is_alive():
                process.kill()


def train_plainly(run: Path, dataset: Path, settings: TrainSettings) -> None:
    """Train as one rank of a run that stops with the first rank that is lost."""
    from skindx.training.deepspeed.ranks import join
    from skindx.training.jobs import train
    from skindx.training.launching.supervise import StopRequest

    train(run, dataset, settings, join(settings.engine), StopRequest(10))


def hand_over(dataset: Path, settings: TrainSettings) -> list[Any]:
    """Take over what both hold, and what rank 0 holds, as it is and damaged.

    Return the loss of the epoch after the first two, and the givers or sentences.
    """
    import torch

    from skindx.core.errors import UserError
    from skindx.data.manifest import read_manifest
    from skindx.taxonomy import Taxonomy
    from skindx.training.deepspeed.ranks import join
    from skindx.training.jobs import jobs_of
    from skindx.training.launching.supervise import StopRequest
    from skindx_methods.elastic.handover import Handover, Held, take_over

    mesh = join(settings.engine)
    classes = Taxonomy.load(dataset / "taxonomy.yaml").keys
    (job,) = jobs_of(dataset, dataset, settings, read_manifest(dataset), classes)
    training = job.setup(mesh, print)
    held = Held()
    held.membership = SimpleNamespace()  # type: ignore[assignment]
    saving = Handover(held, dataset, "f", settings.checkpoint, StopRequest(1))
    saving._training = training
    training.position.loss_sum = 6.0 + 4 * mesh.data.rank
    saving.settle(leaving=False)
    weights = held.holding.shared["engine"]["weights"] if held.holding else {}
    name = next(iter(weights))
    answers: list[Any] = []
    for gives in (held.holding, None if mesh.data.rank else held.holding):
        training.position.loss_sum = 0.0
        take_over(training, gives, "f")
        answers.append(training.position.loss_sum)
    for damaged in (None, torch.full_like(weights[name], torch.nan), torch.zeros(3)):
        if damaged is not None:
            weights[name] = damaged
        try:
            answers.append(take_over(training, None if mesh.data.rank else held.holding, "f"))
        except UserError as error:
            answers.append(str(error))
    return answers


def _work(place: tuple[int, int, int], run: Path, dataset: Path, plan: dict[str, str]) -> None:
    slot, slots, port = place
    os.environ.update(
        RANK=str(slot),
        LOCAL_RANK=str(slot),
        WORLD_SIZE=str(slots),
        LOCAL_SIZE=str(slots),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        SKINDX_ELASTIC="1",
        OMP_NUM_THREADS="1",
    )
    from skindx.training import jobs, loop
    from skindx.training.deepspeed.engine import Engine

    passes, backward, take_step = [0], Engine.backward, loop.take_step
    acts: dict[str, Callable[[], None]] = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "kill once saved": lambda: _kill_once(run / "checkpoints/a/epoch-0001-step-000003"),
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "leave": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "gate": lambda: _wait_for(run / "gate"),
    }

    def watched_backward(engine: Any, *arguments: Any, **more: Any) -> None:
        if engine.mesh.number:
            passes[0] += 1
            acts.get(plan.get(str(passes[0]), ""), lambda: None)()
        backward(engine, *arguments, **more)

    def noted_step(training: Any, batch: Any) -> float | None:
        loss = take_step(training, batch)
        position = training.position
        row = {
            "at": [position.epoch, position.step],
            "ranks": training.mesh.data.size,
            "images": batch.local_count,
            "weights": digest(training.engine.module.parameters()),
        }
        with (run / f"steps-{slot}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        return loss

    Engine.backward = watched_backward  # type: ignore[method-assign]
    loop.take_step = noted_step
    log = os.open(run / f"log-{slot}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    jobs.end_with_parent = lambda: None
    os._exit(jobs.main([str(run), str(dataset)]))


def _kill_once(checkpoint: Path) -> None:
    _wait_for(checkpoint)  # of which this rank writes a part beside its steps
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.02)


def digest(tensors: Sequence[Any]) -> str:
    """Return a hash of numbers to the bit."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(tensor.detach().cpu().numpy().tobytes())
    return hashed.hexdigest()
