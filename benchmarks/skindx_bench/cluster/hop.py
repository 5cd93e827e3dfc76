"""The time and bytes of an epoch of several members: hopping, data-parallel, a member a rank."""

import heapq
import os
import random
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

import yaml
from pydantic import Field

from skindx.core.atomic_files import write_text
from skindx.core.errors import JobError
from skindx.core.machine import python_command
from skindx.core.settings_base import Settings
from skindx.data.layout import store_bytes
from skindx.data.manifest import SPLITS, Record, write_manifest
from skindx.taxonomy import SkinClass, Taxonomy
from skindx.training.config.run import SETTINGS, TrainSettings
from skindx.workers.lease_queue import TaskState
from skindx.workers.leases import Leases
from skindx_bench.cluster.hop_storage import PORT, SECRET, SECRET_BYTES
from skindx_bench.harness.netlab import Link, NetLab, require
from skindx_bench.harness.ranks import EmulatedCluster
from skindx_bench.harness.result import Figure, Result, median, ratio
from skindx_bench.harness.training import HEIGHT, WIDTH, noisy_jpegs
from skindx_methods.hopping.hop_units import Unit, choose, open_queue
from skindx_methods.hopping.run_queue import RunJobs, fill


class Config(Settings):
    """`members` equal members on as many `ranks`, each rank in a network namespace of its own."""

    parts: tuple[Literal["cluster", "makespan"], ...] = ("cluster", "makespan")
    model: str = "mobilenetv2_100"
    size: int = Field(96, ge=32)
    batch: int = Field(32, ge=2)
    images: int = Field(2560, ge=16)
    """Of the training split."""
    validation: int = Field(256, ge=4)
    members: int = Field(4, ge=1)
    ranks: int = Field(4, ge=2, le=16)
    rate_mbit: float = Field(100, gt=0)
    """Of each rank's link, and of the storage's."""
    epochs: int = Field(2, ge=1)
    """Of a hopping run; its time is divided by them."""
    rounds: int = Field(3, ge=2)
    density: float = Field(0.001, gt=0, le=1)
    """Of gTop-k."""
    makespan_members: int = Field(8, ge=1)
    makespan_model: str = "test_resnet"
    makespan_epochs: int = Field(3, ge=1)
    makespan_images: int = Field(2560, ge=16)
    simulations: int = Field(200, ge=2)


@dataclass(frozen=True)
class Recorded:
    """The time that units of a run took."""

    makespan_s: float
    """From the first one that was taken to the end of the last."""
    bound_s: float
    train_MP: list[list[float]]
    """Mean seconds of a member's visit of a partition."""
    validation: float
    """Of the time of visits."""

    @property
    def over_bound(self) -> float:
        """How many times the bound it took."""
        return self.makespan_s / self.bound_s


def record(tasks: Sequence[TaskState]) -> Recorded:
    """Return what the finished units of a hopping run took."""
    units = [(Unit.of(t.key), t.began or 0.0, t.took_s or 0.0) for t in tasks]
    members = sorted({unit.member for unit, _, _ in units})
    count = 1 + max(unit.partition for unit, _, _ in units)
    epochs = 1 + max(unit.epoch for unit, _, _ in units)
    both_MP = [[0.0] * count for _ in members]
    train_MP = [[0.0] * count for _ in members]
    for unit, _, took in units:
        member = members.index(unit.member)
        both_MP[member][unit.partition] += took
        if unit.kind == "train":
            train_MP[member][unit.partition] += took / epochs
    train, both = (sum(map(sum, table)) for table in (train_MP, both_MP))
    first, last = min(began for _, began, _ in units), max(b + took for _, b, took in units)
    return Recorded(last - first, bound_s(both_MP), train_MP, both / epochs / train - 1)


def simulate(found: Recorded, members: int, epochs: int, times: int) -> list[float]:
    """Return makespan over bound of `times` schedules of so many members of the recorded times."""
    ratios = []
    for seed in range(times):
        rng = random.Random(seed)  # noqa: S311 (a simulation)
        times_MP = [rng.choice(found.train_MP) for _ in range(members)]
        took, bound = makespan_s(times_MP, epochs, rng, found.validation, jitter=0.1)
        ratios.append(took / bound)
    return ratios


CLASSES = tuple(f"class{number}" for number in range(8))


def write_dataset(folder: Path, train: int, val: int) -> None:
    """Write a dataset of noisy images."""
    records = []
    for number, data in enumerate(noisy_jpegs(train + val)):
        sha256, path = store_bytes(folder, data, ".jpg")
        label, split = CLASSES[number % len(CLASSES)], SPLITS[0 if number < train else 1]
        records.append(Record(path, sha256, "0" * 16, WIDTH, HEIGHT, label, sha256, split))
    classes = tuple(SkinClass(key=key, name=key) for key in CLASSES)
    Taxonomy(name="bench", title="Bench", classes=classes).save(folder / "taxonomy.yaml")
    write_manifest(folder, records)


def training(
    model: str, size: int, batch: int, members: int, epochs: int, **engine: Any
) -> dict[str, Any]:
    """Return the settings of a run of equal members, as plain values."""
    return {
        "engine": {"accelerator": "cpu", **engine},
        "recipe": {"epochs": epochs, "batch": batch, "warmup_epochs": 0},
        "loader": {"threads": 1},
        "members": [
            {
                "name": f"member{number}",
                "model": model,
                "seed": number,
                "preprocess": {"size": size},
            }
            for number in range(members)
        ],
    }


SMALLEST = (
    "model=test_resnet",
    "size=32",
    "batch=4",
    "images=16",
    "validation=4",
    "members=2",
    "ranks=2",
    "rate_mbit=1000",
    "epochs=1",
    "rounds=2",
    "makespan_members=2",
    "makespan_epochs=1",
    "makespan_images=16",
    "simulations=5",
)

_WORKER = "skindx_bench.cluster.hop_rank"
_EXCHANGES = ("dense", "fused", "gtopk")


def run(settings: Config) -> Result:
    """Measure on an emulated cluster. Raises UserError where none can be built."""
    require()
    with tempfile.TemporaryDirectory(prefix="skindx-hop-") as name, ExitStack() as stack:
        folder = Path(name)
        lab = stack.enter_context(NetLab(settings.ranks + 1, Link(settings.rate_mbit)))
        storage = lab.address(settings.ranks)
        secret = token_hex(SECRET_BYTES // 2)
        stack.enter_context(_storage(lab, settings.ranks, storage, secret))
        own = str(folder / "own")
        job = {"role": "hop", "own": own, "storage": storage, "secret": secret}
        workers = EmulatedCluster(lab, settings.ranks, {**job, "workers": settings.ranks}, _WORKER)
        bench = _Bench(settings, folder, stack.enter_context(workers))
        figures: dict[str, Figure] = {}
        if "cluster" in settings.parts:
            figures |= bench.cluster()
        if "makespan" in settings.parts:
            figures |= bench.makespan()
    return Result("hop", figures, notes=_notes(settings))


@contextmanager
def _storage(lab: NetLab, node: int, address: str, secret: str) -> Iterator[None]:
    command = lab.command(node, *python_command("-m", "skindx_bench.cluster.hop_storage", address))
    variables = os.environ | {SECRET: secret}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise JobError(f"the storage at {address}:{PORT} did not start; see above.")
            yield
        finally:
            process.kill()


class _Bench:
    def __init__(self, settings: Config, folder: Path, workers: EmulatedCluster) -> None:
        self.settings, self.folder, self.workers = settings, folder, workers
        self._runs = 0

    def cluster(self) -> dict[str, Figure]:
        """Take turns with all ways to train an epoch of all members."""
        s, dataset = self.settings, self.folder / "data"
        write_dataset(dataset, s.images, s.validation)
        seconds: dict[str, list[float]] = {}
        sent: dict[str, list[float]] = {}
        own = training(s.model, s.size, s.batch, 1, 1000)
        kinds = {kind: {**own, "exchange": self._exchange(kind)} for kind in _EXCHANGES}
        job = {"role": "data", "dataset": str(dataset), "kinds": kinds}
        with EmulatedCluster(self.workers.lab, s.ranks, job, _WORKER) as ranks:
            ranks.ask("epoch", kind="fused")  # it tries its plans in the first steps
            for turn in range(s.rounds):
                for kind in _EXCHANGES:
                    found = ranks.ask("epoch", kind=kind)
                    took = max(answer["seconds"] for answer in found)
                    # Equal members, one after the other.
                    seconds.setdefault(kind, []).append(s.members * took)
                    total = s.members * sum(answer["sent"] for answer in found)
                    sent.setdefault(kind, []).append(total)
                order = ("hop", "members") if turn % 2 else ("members", "hop")
                for schedule in order:
                    raw = training(s.model, s.size, s.batch, s.members, s.epochs)
                    took, bytes_sent, _ = self._train(raw, schedule, dataset)
                    seconds.setdefault(schedule, []).append(took / s.epochs)
                    sent.setdefault(schedule, []).append(bytes_sent / s.epochs)
        hop, others = seconds["hop"], (*_EXCHANGES, "members")
        return {
            **{f"hop_over_{other}": ratio(hop, seconds[other]) for other in others},
            **{
                f"bytes_less_than_{kind}": median(
                    [a / max(1.0, b) for a, b in zip(sent[kind], sent["hop"], strict=True)],
                    "times fewer",
                )
                for kind in _EXCHANGES
            },
            **{f"{way}_epoch_s": median(seconds[way], "s") for way in ("hop", *others)},
            **{
                f"{way}_epoch_mb": median([b / 1e6 for b in sent[way]], "MB")
                for way in ("hop", *_EXCHANGES)
            },
        }

    def _exchange(self, kind: str) -> dict[str, Any]:
        if kind == "gtopk":
            return {"kind": "gtopk", "density": self.settings.density, "warmup": ()}
        return {"kind": kind}

    def makespan(self) -> dict[str, Figure]:
        """Train many members on the same workers, and compare with what no schedule beats."""
        s, dataset = self.settings, self.folder / "many"
        write_dataset(dataset, s.makespan_images, s.validation)
        measured, simulated = [], []
        for _ in range(s.rounds):
            raw = training(s.makespan_model, s.size, s.batch, s.makespan_members, s.makespan_epochs)
            _, _, tasks = self._train(raw, "hop", dataset)
            found = record(tasks)
            measured.append(found.over_bound)
            simulated += simulate(found, s.makespan_members, s.makespan_epochs, s.simulations)
        return {
            "makespan_over_bound": median(measured, "×"),
            "simulated_makespan_over_bound": median(simulated, "×"),
        }

    def _train(
        self, raw: dict[str, Any], schedule: str, dataset: Path
    ) -> tuple[float, float, list[TaskState]]:
        """Let the workers do a run; return seconds, bytes on all links, and the units."""
        self._runs += 1
        folder = self.folder / f"run-{self._runs}"
        engine = {"accelerator": "cpu", "schedule": schedule}
        write_text(folder / SETTINGS, yaml.safe_dump({**raw, "engine": engine}))
        settings = TrainSettings.load(folder / SETTINGS)
        before = self._storage_sent()
        with open_queue(folder, settings.engine) as queue:
            fill(queue, RunJobs.of(folder, dataset, settings), self.settings.ranks)
            found = self.workers.ask("work", run=str(folder), dataset=str(dataset))
            tasks = Leases(queue, 60).tasks()
        seconds = max(answer["seconds"] for answer in found)
        own = sum(answer["sent"] for answer in found)
        return seconds, own + self._storage_sent() - before, tasks

    def _storage_sent(self) -> int:
        """Bytes that the storage's link has carried towards the ranks."""
        lab = self.workers.lab
        file = "/sys/class/net/eth0/statistics/tx_bytes"
        command = lab.command(self.settings.ranks, "cat", file)
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _notes(s: Config) -> tuple[str, ...]:
    return (
        f"{s.members} members {s.model}, {s.size} px, batch {s.batch}, AdamW, {s.images} training "
        f"and {s.validation} validation images, {s.ranks} ranks of one thread, each in a network "
        f"namespace whose link carries {s.rate_mbit:g} Mbit/s both ways (tc tbf). Times are of one "
        "epoch of all members with its validation: those of dense, fused and gTop-k (density "
        f"{s.density:g}) are {s.members} times that of one member on all ranks, without the set-up "
        f"of a training; those of hop and members are a whole run of {s.epochs} epochs from the "
        "first lease to the last member written, divided by the epochs.",
        "hop: each state crosses the links to a storage behind one more link of the same rate, and "
        "back, with hashes and fsync; the leases lie in a SQLite file that all processes reach. "
        "members: every rank reads all images, and nothing crosses a link. Bytes are those of all "
        "links by the interfaces' own counters.",
        f"makespan_over_bound: {s.makespan_members} members {s.makespan_model} of "
        f"{s.makespan_epochs} epochs on the same ranks, from the first unit taken to the last one "
        "ended, over the larger of the busiest worker's and the longest member's time in units; "
        "simulated: the same by the scheduler's own choices over the recorded times, each drawn "
        "within 10 %.",
        "All ranks share this machine's cores: where they are fewer than ranks, a rank that waits "
        "for its link leaves its share of them to the others.",
    )


def bound_s(times_MP: Sequence[Sequence[float]]) -> float:
    """Return what no schedule beats: the longest work of one worker, or of one member.

    `times_MP` has the seconds of each member on each worker, of all epochs.
    """
    workers = [sum(column) for column in zip(*times_MP, strict=True)]
    members = [sum(row) for row in times_MP]
    return float(max(*workers, *members))


def makespan_s(
    times_MP: Sequence[Sequence[float]],
    epochs: int,
    rng: random.Random,
    validation: float = 0.0,
    jitter: float = 0.0,
) -> tuple[float, float]:
    """Simulate the schedule; return its length and the bound of the times that were drawn.

    `times_MP` are the seconds of one epoch, `validation` is the share of them that a member's
    validation takes on each worker after each epoch; each unit's time is drawn within `jitter`.
    """
    members, workers = len(times_MP), len(times_MP[0])
    stages = epochs * (2 if validation else 1)
    shares = [1.0, validation] if validation else [1.0]
    stage, left = [0] * members, [set(range(workers)) for _ in range(members)]
    work = [sum(row) * sum(shares) * epochs for row in times_MP]
    spent_MP = [[0.0] * workers for _ in range(members)]
    waiting, idle = set(range(members)), set(range(workers))
    running: list[tuple[float, float, int, int]] = []
    now = 0.0
    while True:
        for worker in rng.sample(sorted(idle), len(idle)):
            able = [m for m in sorted(waiting) if stage[m] < stages and worker in left[m]]
            if not able:
                continue
            member = able[choose([work[m] for m in able], rng)]
            share = shares[stage[member] % len(shares)]
            mean = times_MP[member][worker] * share
            took = mean * (1 + rng.uniform(-jitter, jitter))
            work[member] -= mean
            spent_MP[member][worker] += took
            left[member].discard(worker)
            waiting.discard(member)
            idle.discard(worker)
            heapq.heappush(running, (now + took, rng.random(), member, worker))
        if not running:
            return now, bound_s(spent_MP)
        now, _, member, worker = heapq.heappop(running)
        waiting.add(member)
        idle.add(worker)
        if not left[member]:
            stage[member], left[member] = stage[member] + 1, set(range(workers))
