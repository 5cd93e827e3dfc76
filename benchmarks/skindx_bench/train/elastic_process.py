"""A training whose ranks have a node of an emulated cluster each, and its ranks, which log steps.

`python -m skindx_bench.train.elastic_process RUN DATASET` is `skindx train` by RUN.yaml on a node;
where RANK is set it is one of the ranks. CLUSTER is JSON in the environment: see `Cluster`.
"""

import json
import os
import runpy
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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

    def environment(self) -> dict[str, str]:
        """Return the variables for `skindx train`."""
        given = {"MASTER_ADDR": self.meet_at} if self.meet_at else {}
        return {**given, CLUSTER: json.dumps(asdict(self))}

    @property
    def first_address(self) -> str:
        """The address of rank 0, where a run that is not elastic meets."""
        return self.meet_at.rpartition(".")[0] + ".2" if self.meet_at else ""


def logged(folder: Path) -> list[tuple[float, int, int]]:
    """Return (when, steps done since the first epoch, rank) as all ranks logged it, in order."""
    result = []
    for file in folder.glob("*-*.steps"):
        rank = int(file.name.partition("-")[0])
        for line in file.read_text().splitlines():
            when, _, done = line.partition(" ")
            if done:  # the last line of a killed rank may be cut
                result.append((float(when), int(done), rank))
    return sorted(result)


def _log_steps(file: Path) -> None:
    """Write a line when this rank has done a step: the clock, and steps since the first epoch."""
    from skindx.data.loader.batches import steps_of
    from skindx.training import loop

    log = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    names = vars(loop)
    count_step = names["count_step"]

    def counted(training: Any, *arguments: Any, **named: Any) -> None:
        count_step(training, *arguments, **named)
        task, position = training.task, training.position
        done = position.epoch * steps_of(task.images, task.batch) + position.step
        os.write(log, f"{time.monotonic():.4f} {done}\n".encode())

    names["count_step"] = counted


def _be_a_rank(cluster: Cluster) -> None:
    from skindx.training.launching.supervise import ELASTIC
    from skindx.workers.forked_module import enter_network

    rank = int(os.environ["RANK"])
    if cluster.networks:
        enter_network(Path(cluster.networks[rank]))
        if ELASTIC not in os.environ:
            os.environ["MASTER_ADDR"] = cluster.first_address
    _log_steps(Path(cluster.logs) / f"{rank}-{os.getpid()}.steps")
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
    raw = json.loads(os.environ[CLUSTER])
    cluster = Cluster(raw["logs"], tuple(raw["networks"]), raw["meet_at"])
    if "RANK" in os.environ:
        _be_a_rank(cluster)
    else:
        sys.exit(_train(Path(sys.argv[1]), Path(sys.argv[2])))


if __name__ == "__main__":
    main()
