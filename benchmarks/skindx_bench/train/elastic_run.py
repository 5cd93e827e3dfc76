"""A training on an emulated cluster to whose ranks accidents happen, and what came of it."""

import json
import os
import shutil
import subprocess
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Self

from skindx.core.errors import JobError
from skindx.core.machine import python_command
from skindx.training.config.run import TrainSettings
from skindx.training.launching.supervise import RANKS, read_notes
from skindx_bench.harness.accidents import Accident, Injector
from skindx_bench.harness.netlab import NetLab
from skindx_bench.train.elastic_process import Cluster, StepLine, logged

_MODULE = "skindx_bench.train.elastic_process"
_WARM_STEPS = 5
_START_S, _END_S = 180.0, 60.0
_REFUSED = 2


@dataclass(frozen=True)
class Outcome:
    """What a training did in some periods of equal length."""

    seconds: float
    """Of all periods."""
    steps: list[int]
    """In each period: steps at its end that were not done at its beginning."""
    pauses_s: list[float] = field(default_factory=list)
    """From each kill to the next step that counts."""
    answers_s: dict[str, list[float]] = field(default_factory=dict)
    """What the run's history says of its answers, by figure."""

    @property
    def rate(self) -> float:
        """Steps that count, in a second."""
        return sum(self.steps) / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a JSON file."""
        return asdict(self)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """Return what `to_dict` gave."""
        return cls(**raw)


def outcome_of(
    lines: Sequence[StepLine], began: float, every_s: float, periods: int, kills: Sequence[float]
) -> Outcome:
    """Return what the ranks' logs say of `periods` of `every_s` seconds each."""
    times = [line.when for line in lines]

    def done(moment: float) -> int:
        return lines[bisect_right(times, moment) - 1].done

    ends = [done(began + number * every_s) for number in range(periods + 1)]
    pauses = []
    for kill in kills:
        before = done(kill)
        after = (line.when - kill for line in lines if line.when > kill and line.done > before)
        pauses += list(islice(after, 1))
    steps = [after - before for before, after in pairwise(ends)]
    return Outcome(periods * every_s, steps, pauses)


_NOTICED = {"kill": "closed_noticed", "stop": "hang_noticed", "cut": "cut_noticed"}


def answers_of(
    events: Sequence[Mapping[str, Any]], accidents: Sequence[Accident]
) -> dict[str, list[float]]:
    """Return after how many seconds the others noticed each kind of accident, by a run's history.

    `regroup`: how long they took from there on until they had state and went on.
    """
    result: dict[str, list[float]] = {}
    to_wall = time.time() - time.monotonic()
    for accident in accidents:
        assert accident.happened
        happened = accident.happened + to_wall
        for event in events:
            when = datetime.fromisoformat(event["when"]).timestamp()
            regroup_s = event.get("seconds_since_noticed")
            if when < happened or str(accident.rank) not in event["left"] or regroup_s is None:
                continue
            result.setdefault("regroup", []).append(regroup_s)
            noticed_s = when - regroup_s - happened
            result.setdefault(_NOTICED.get(accident.kind, accident.kind), []).append(noticed_s)
            break
    return result


class ElasticRun:
    """A training in FOLDER, from `with` on; `again`: the same command again whenever it fails."""

    def __init__(
        self,
        folder: Path,
        dataset: Path,
        raw: Mapping[str, Any],
        lab: NetLab,
        *,
        again: bool = False,
    ) -> None:
        self._folder, self._dataset, self._again, self._lab = folder, dataset, again, lab
        self._settings = TrainSettings.parse(dict(raw))
        ranks = self._settings.engine.ranks
        assert isinstance(ranks, int)
        self.ranks = ranks
        self._run, self._logs = folder / "run", folder / "logs"
        self._ending = False
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Self:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._logs.mkdir(parents=True)
        self._settings.save(self._run.with_suffix(".yaml"))
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        if self._process and self._process.poll() is None:
            self._process.terminate()
        self._keeper.join(_END_S)
        if self._process and self._process.poll() is None:
            self._process.kill()

    @property
    def ended(self) -> bool:
        """The training is over, and is not started again."""
        return not self._keeper.is_alive()

    def _keep(self) -> None:
        """Start the training, and again, until it ends well, is refused or stopped."""
        networks = tuple(str(self._lab.namespace(rank + 1)) for rank in range(self.ranks))
        cluster = Cluster(str(self._logs.resolve()), networks, self._lab.address(0))
        words = python_command("-m", _MODULE)
        words += [str(self._run.resolve()), str(self._dataset.resolve())]
        variables = {
            **os.environ,
            **cluster.environment(),
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # it warns that an address has no name
        }
        with (self._folder / "printed.log").open("ab") as log:
            code = 1
            while code not in (0, _REFUSED) and not self._ending:
                self._process = subprocess.Popen(
                    self._lab.command(0, *words),
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                code = self._process.wait()
                if not self._again:
                    return

    def pid_of(self, rank: int) -> int | None:
        """Return the process of a rank that is at work."""
        for note in read_notes(self._run / RANKS):
            if note.rank == rank and note.ending == "at work":
                return note.pid
        return None

    def lines(self) -> list[StepLine]:
        """Return what all ranks have logged."""
        return logged(self._logs)

    def warm_up(self) -> None:
        """Wait until each rank has taken some steps. Raises JobError when it ends before."""
        deadline = time.monotonic() + _START_S
        while True:
            counts = Counter(line.slot for line in self.lines())
            if min(counts[rank] for rank in range(self.ranks)) >= _WARM_STEPS:
                return
            if self.ended or time.monotonic() > deadline:
                raise JobError(
                    f"a training of the benchmark did not begin; see {self._folder / 'printed.log'}"
                )
            time.sleep(0.2)

    def measure(self, schedule: Sequence[Accident], every_s: float) -> Outcome:
        """Let the accidents happen, and count until `every_s` after the last one."""
        self.warm_up()
        injector = Injector(self.pid_of, self._lab, first_node=1)
        periods, began = max(1, len(schedule)), time.monotonic()
        injector.run(schedule, lambda: self.ended)
        while not self.ended and time.monotonic() < began + periods * every_s:
            time.sleep(0.05)
        if self.ended:
            raise JobError(
                f"a training of the benchmark ended too early; see {self._folder / 'printed.log'}"
            )
        kills = [accident.happened for accident in injector.happened if accident.happened]
        outcome = outcome_of(self.lines(), began, every_s, periods, kills)
        return replace(outcome, answers_s=answers_of(self.events(), injector.happened))

    def events(self) -> list[dict[str, Any]]:
        """Return the history of the run's groups."""
        file = self._run / "elastic.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
