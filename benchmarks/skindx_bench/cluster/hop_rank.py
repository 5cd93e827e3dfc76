"""A process of the hop benchmark in a namespace: a data-parallel rank, or a worker with leases."""

import os
import socket
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from skindx.core.machine import go_offline
from skindx.data.manifest import read_manifest
from skindx.taxonomy import Taxonomy
from skindx.training.callbacks import Silent
from skindx.training.config.run import SETTINGS, TrainSettings
from skindx.training.deepspeed.ranks import join, join_nobody
from skindx.training.launching.supervise import StopRequest
from skindx.training.loop import end_epoch, take_steps
from skindx.training.state import EpochSpeed, Training
from skindx.training.tasks.classifier_job import MemberJob, setup_member
from skindx.workers import worker_process
from skindx_bench.cluster.hop_storage import PORT
from skindx_bench.harness.answering import answer_commands
from skindx_bench.harness.netlab import transmitted
from skindx_methods.hopping.hop_worker import HopWorker
from skindx_methods.hopping.member_visits import States


class RemoteStates(States):
    """States in a folder of this rank alone, which are sent to the storage and fetched from it."""

    def __init__(self, run: Path, own: Path, address: str, secret: str) -> None:
        """Keep copies in the folder `own`."""
        super().__init__(run)
        self._own, self._address, self._secret = own, address, secret

    def folder(self, member: str) -> Path:
        """Return where this rank has the states of a member."""
        return self._own / self.run.name / member

    def fetch(self, member: str, name: str) -> Path:
        """Return a state after it came over the link, unless this rank wrote it itself."""
        folder = self.path(member, name)
        if not folder.is_dir():
            for part, data in self._ask("get", member, name)["files"].items():
                file = folder / part
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
        return folder

    def publish(self, member: str, name: str) -> None:
        """Send a state over the link."""
        folder = self.path(member, name)
        files = {
            str(file.relative_to(folder)): file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file()
        }
        self._ask("put", member, name, files=files)

    def names(self, member: str) -> list[str]:
        """Return the names of a member's states here and there."""
        there: list[str] = self._ask("names", member, "")["names"]
        return sorted({*there, *super().names(member)})

    def forget(self, member: str, names: Iterable[str]) -> None:
        """Remove states here and there."""
        gone = list(names)
        super().forget(member, gone)
        self._ask("drop", member, "", names=gone)

    def remove(self, member: str) -> None:
        """Remove all states of a member here and there."""
        self._ask("drop", member, "", names=self.names(member))
        super().remove(member)

    def _ask(self, do: str, member: str, name: str, **more: Any) -> Any:
        of = f"{self.run.name}/{member}"
        with socket.create_connection((self._address, PORT), timeout=300) as connection:
            connection.sendall(self._secret.encode())
            connection.sendall(worker_process.pack({"do": do, "of": of, "name": name, **more}))
            with connection.makefile("rb") as stream:
                return worker_process.receive(stream.read)


Answer = dict[str, Any]


class DataParallel:
    """A rank of all: one training for each gradient exchange, an epoch at a call."""

    def __init__(self, dataset: str, kinds: dict[str, dict[str, Any]]) -> None:
        """Join the others and set up a training for each of `kinds`: name -> settings."""
        settings = {name: TrainSettings.parse(raw) for name, raw in kinds.items()}
        self._mesh = join(next(iter(settings.values())).engine)
        records = read_manifest(Path(dataset))
        classes = Taxonomy.load(Path(dataset) / "taxonomy.yaml").keys
        self._trainings: dict[str, Training[Any]] = {}
        for name, own in settings.items():
            member = own.members[0]
            job = MemberJob(Path("nowhere"), Path(dataset), own, member, records, classes)
            self._trainings[name] = setup_member(own, member, job.data, self._mesh, _nothing)

    def epoch(self, kind: str) -> Answer:
        """Train and validate one epoch of one member on all ranks."""
        dist.barrier()
        sent, began = transmitted(), time.perf_counter()
        training = self._trainings[kind]
        take_steps(training, Silent(), _nothing)
        end_epoch(training, EpochSpeed(1.0, 0.0, 0.0, 0.0))
        dist.barrier()
        return {"seconds": time.perf_counter() - began, "sent": transmitted() - sent}


class Hopping:
    """A worker that trains alone, one run at a call."""

    def __init__(self, own: str, storage: str, secret: str, workers: int) -> None:
        """Keep states in the folder `own` and at the `storage`'s address."""
        self._own, self._workers = Path(own), workers
        self._storage, self._secret = storage, secret
        self._rank = int(os.environ["RANK"])
        os.environ["LOCAL_WORLD_SIZE"] = str(workers)  # they share this machine's cores
        self._mesh = join_nobody(TrainSettings().engine)

    def work(self, run: str, dataset: str) -> Answer:
        """Do units of a run until none is left."""
        folder = Path(run)
        settings = TrainSettings.load(folder / SETTINGS)
        make_states = partial(
            RemoteStates,
            own=self._own / str(self._rank),
            address=self._storage,
            secret=self._secret,
        )
        sent, began = transmitted(), time.perf_counter()
        worker = HopWorker(
            folder,
            Path(dataset),
            settings,
            self._mesh,
            StopRequest(settings.checkpoint.grace_s),
            rank=self._rank,
            workers=self._workers,
            make_states=make_states,
        )
        worker.work()
        return {"seconds": time.perf_counter() - began, "sent": transmitted() - sent}


def _nothing(_: Any) -> None: ...


def _rank_of(job: dict[str, Any]) -> DataParallel | Hopping:
    go_offline()
    torch.set_num_threads(1)
    roles: dict[str, type[DataParallel | Hopping]] = {"data": DataParallel, "hop": Hopping}
    return roles[job.pop("role")](**job)


if __name__ == "__main__":
    answer_commands(_rank_of)
