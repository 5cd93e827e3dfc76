"""A training whose ranks have a node of an emulated cluster each, and its ranks, which log steps.

`python -m skindx_bench.train.elastic_process RUN DATASET` is `skindx train` by RUN.yaml on a node;
where RANK is set it is one of the ranks. CLUSTER is JSON in the environment: see `Cluster`.
"""

import faulthandler
import hashlib
import json
import os
import runpy
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

CLUSTER = "SKINDX_BENCH_CLUSTER"
_MODULE = "skindx_bench.train.elastic_process"
_RANK = "skindx.training.launching.rank"


@dataclass(frozen=True)
class Cluster:
    """Where the ranks are, and where they write."""

    logs: str
    """Folder of the ranks' logs."""
    networks: tuple[str, ...] = ()
    """File of each rank's network namespace; none: all are on this machine."""
    meet_at: str = ""
    """Address at which they meet; empty: as the launcher says."""
    pause_s: float = 0.0
    """By so much each step takes longer."""

    def environment(self) -> dict[str, str]:
        """Return the variables for `skindx train`."""
        given = {"MASTER_ADDR": self.meet_at} if self.meet_at else {}
        return {**given, CLUSTER: json.dumps(asdict(self))}

    @classmethod
    def here(cls) -> Self:
        """Return what this process's environment says."""
        raw = json.loads(os.environ[CLUSTER])
        return cls(**{**raw, "networks": tuple(raw["networks"])})

    @property
    def first_address(self) -> str:
        """The address of rank 0, where a run that is not elastic meets."""
        return self.meet_at.rpartition(".")[0] + ".2" if self.meet_at else ""


@dataclass(frozen=True)
class StepLine:
    """A step that a rank has done, or, of the same form, the last thing that it knew at the end."""

    when: float
    """By the monotonic clock, which all processes of a machine share."""
    slot: int
    done: int
    """Steps since the first epoch, this one counted."""
    group: int
    rank: int
    """In its group."""
    world: int
    images: list[int]
    """Numbers of the training images that this rank saw in the step."""
    digest: str = ""
    """Of the weights, at the end."""


def logged(folder: Path) -> list[StepLine]:
    """Return what all ranks have logged, in order of time."""
    result = []
    for file in folder.glob("*-*.steps"):
        slot = int(file.name.partition("-")[0])
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # the last line of a killed rank may be cut
                when, *rest = json.loads(line)
                result.append(StepLine(when, slot, *rest))
    return sorted(result, key=lambda line: line.when)


def log_steps(file: Path, pause_s: float = 0.0) -> None:
    """Let this process write a line after each step, which takes `pause_s` longer, and at the end.

    Read beside the trainer, which knows nothing of it: what it loads, counts and holds.
    """
    from skindx.data.loader.batches import steps_of
    from skindx.training import loop
    from skindx.training.tasks import classifier_task

    log = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    of_loop, of_task = vars(loop), vars(classifier_task)
    count_step, train, load = of_loop["count_step"], of_loop["train"], of_task["training_batches"]
    coming: list[Any] = []

    def write(training: Any, images: list[int], digest: str = "") -> None:
        task, position, mesh = training.task, training.position, training.mesh
        done = position.epoch * steps_of(task.images, task.batch) + position.step
        place = (getattr(mesh, "number", 0), mesh.data.rank, mesh.data.size)
        line = [round(time.monotonic(), 4), done, *place, images, digest]
        os.write(log, f"{json.dumps(line)}\n".encode())

    def loading(images: Any, numbers: Any, *rest: Any, **named: Any) -> Any:
        coming[:] = numbers
        return load(images, numbers, *rest, **named)

    def counted(training: Any, *arguments: Any, **named: Any) -> None:
        time.sleep(pause_s)
        write(training, coming.pop(0).tolist() if coming else [])
        count_step(training, *arguments, **named)  # where ranks meet, which may fail

    def to_the_end(training: Any, *arguments: Any, **named: Any) -> Any:
        result = train(training, *arguments, **named)
        digest = hashlib.sha256()
        for value in training.engine.whole().parameters():
            digest.update(value.detach().cpu().numpy().tobytes())
        write(training, [], digest.hexdigest())
        return result

    of_loop |= {"count_step": counted, "train": to_the_end}
    of_task["training_batches"] = loading


def _be_a_rank(cluster: Cluster) -> None:
    from skindx.workers.forked_module import enter_network
    from skindx_methods.elastic.elastic_settings import ELASTIC

    faulthandler.register(signal.SIGUSR1)  # where a rank hangs that others wait for
    rank = int(os.environ["RANK"])
    if cluster.networks:
        enter_network(Path(cluster.networks[rank]))
        if ELASTIC not in os.environ:
            os.environ["MASTER_ADDR"] = cluster.first_address
    log_steps(Path(cluster.logs) / f"{rank}-{os.getpid()}.steps", cluster.pause_s)
    runpy.run_module(_RANK, run_name="__main__", alter_sys=True)


def _train(run: Path, dataset: Path) -> int:
    from skindx.core.errors import JobError, UserError
    from skindx.training import run as training_run
    from skindx.training.config.run import TrainSettings
    from skindx.training.launching.supervise import StoppedError

    names = vars(training_run)
    launch = names["launch"]

    def placed(engine: Any, accelerator: str, module: str, *rest: Any, **named: Any) -> None:
        launch(engine, accelerator, _MODULE, *rest, **named)

    names["launch"] = placed
    try:
        training_run.train(dataset, TrainSettings.load(run.with_suffix(".yaml")), run)
    except StoppedError as stopped:
        return stopped.code
    except (JobError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    return 0


def main() -> None:
    """Be what this process is."""
    if "RANK" in os.environ:
        _be_a_rank(Cluster.here())
    else:
        sys.exit(_train(Path(sys.argv[1]), Path(sys.argv[2])))


if __name__ == "__main__":
    main()
