"""The same tasks on the host and in a container, in interleaved pairs, with a sham and a plant."""

import math
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from skindx.core.errors import JobError
from skindx.core.machine import cpu_count, python_command
from skindx.core.settings_base import Settings
from skindx_bench.harness.conditions import Conditions
from skindx_bench.harness.result import Figure, Result
from skindx_bench.serve.container_runtimes import Chosen, Inside, choose_runtime, find_root, see
from skindx_bench.serve.container_tasks import START, TASKS, Agent, Amounts, TaskName, timed

PAPER = (
    "Overhead of containers | Xu, Shi and Chu, Performance Evaluation of Deep Learning "
    "Tools in Docker Containers, arXiv 1711.03386, 2017 | "
    "benchmarks/tests/test_bench_container.py | docs/measured/container.json"
)

# B = resamples, S = starts, R = rounds of a start

ARMS = ("host", "container", "sham", "planted")
"""sham is a second process of the host; planted is the same one with more work planted."""

ORDERS = ((0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0), (3, 0, 2, 1))
"""Orders of the arms in four rounds: each comes once in each place and once after each other one
(Williams 1949, "Experimental designs balanced for the estimation of residual effects"). What an arm
leaves behind, as threads that still spin, then troubles all others alike."""

Run = Callable[[str], float]
"""Runs a task once in an arm and returns its seconds."""


@dataclass
class Rounds:
    """Seconds of one task by arm; every arm has had the same rounds.

    `starts` says with which processes a round was run: rounds of the same ones are no independent
    measurements, since where a process' memory lies makes it faster or slower for all its life.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: {arm: [] for arm in ARMS})
    starts: list[int] = field(default_factory=list)

    def add(self, taken: Mapping[str, float], start: int = 0) -> None:
        """Add a whole round; half a round is no pair."""
        self.starts.append(start)
        for arm in ARMS:
            self.seconds[arm].append(taken[arm])

    def ratios(self, arm: str) -> list[float]:
        """Return how many times faster than the host an arm was, by round."""
        pairs = zip(self.seconds["host"], self.seconds[arm], strict=True)
        return [host / other for host, other in pairs]


def one_round(run: Run, turn: int) -> dict[str, float]:
    """Run all arms, in an order in which none follows another one more often than the rest do."""
    return {ARMS[number]: run(ARMS[number]) for number in ORDERS[turn % len(ORDERS)]}


def bootstrap(
    ratios: Sequence[float],
    starts: Sequence[int],
    resamples: int,
    rng: np.random.Generator,
    tests: int = 1,
) -> Figure:
    """Return the median of the rounds' ratios with a bootstrap interval.

    Draws starts with replacement, then rounds of each (Davison and Hinkley 1997, "Bootstrap Methods
    and their Application", section 3.8). The interval is one of 95 % for `tests` figures together
    (Bonferroni).
    """
    values, groups = np.asarray(ratios), np.asarray(starts)
    rounds = [values[groups == start] for start in np.unique(groups)]
    sizes_S = np.array([len(own) for own in rounds])
    padded_SR = np.full((len(rounds), sizes_S.max()), np.nan)
    for row, own in zip(padded_SR, rounds, strict=True):
        row[: len(own)] = own
    picks_BS1 = rng.integers(len(rounds), size=(resamples, len(rounds), 1))
    shares_BSR = rng.random((resamples, *padded_SR.shape))
    drawn_BSR = padded_SR[picks_BS1, (shares_BSR * sizes_S[picks_BS1]).astype(int)]
    if sizes_S.min() < sizes_S.max():
        drawn_BSR[np.arange(padded_SR.shape[1]) >= sizes_S[picks_BS1]] = np.nan
    drawn = np.nanmedian(drawn_BSR.reshape(resamples, -1), axis=1)
    tail = 0.025 / tests
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Figure(float(np.median(values)), "×", len(values), (float(low), float(high)))


@dataclass(frozen=True)
class Verdict:
    """Whether the method may be believed for a task.

    It must see nothing where nothing is, and a slowdown where one is planted.
    """

    sham_holds_one: bool
    planted_found: bool

    @property
    def sound(self) -> bool:
        """Whether both are so."""
        return self.sham_holds_one and self.planted_found


def judge(sham: Figure, planted: Figure) -> Verdict:
    """Return the verdict: the sham's interval holds 1, the planted one's lies below 1."""
    low, high = sham.spread
    return Verdict(low <= 1.0 <= high, planted.spread[1] < 1.0)


SMALLEST = (
    "tasks=[cpu,disk write,start-up]",
    "rounds=3",
    "restarts=2",
    "least_s=0.001",
    "disk_mb=1",
    "memory_mb=1",
    "matrix=32",
    "resamples=50",
    "rootfs=/",
)


class Config(Settings):
    """What is run, on which runtime, how often."""

    runtime: Literal["auto", "podman", "docker", "crun", "bubblewrap"] = "auto"
    """auto: the first one that works."""
    rootfs: Path | None = None
    """A root file system that exists; `/` is the host's own, read-only."""
    build: Path | None = Path("runs/container/debian")
    """Where debootstrap makes one, once; null: the host's own."""
    folder: Path = Path("runs/container")
    """Where the tasks' files lie, on the disk that is measured."""
    tasks: tuple[TaskName, ...] = TASKS
    rounds: int = Field(32, ge=3)
    restarts: int = Field(8, ge=1)
    """Times that all processes are started anew: where its memory lies makes a process faster or
    slower as long as it lives."""
    limit_s: float | None = Field(None, gt=0)
    """Seconds after which no round is begun; the rounds so far are marked as partial."""
    least_s: float = Field(0.3, gt=0)
    """A round repeats a task for so long."""
    planted: float = Field(0.05, gt=0, lt=1)
    """Share of its time that the planted arm takes longer."""
    disk_mb: int = Field(64, ge=1)
    memory_mb: int = Field(256, ge=1)
    matrix: int = Field(1024, ge=8)
    images: int = Field(16, ge=1)
    batch: int = Field(16, ge=2)
    resamples: int = Field(2000, ge=50)
    seed: int = 0


def run(settings: Config) -> Result:
    """Measure pairs; after Ctrl-C the whole rounds so far are returned, marked as partial.

    Raises UserError when no runtime can run here, JobError when a worker ends.
    """
    shared = (settings.folder / "work").resolve()
    shared.mkdir(parents=True, exist_ok=True)
    found: dict[str, Rounds] = {task: Rounds() for task in settings.tasks}
    partial = ""
    with ExitStack() as stack:
        work = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="bench-", dir=shared, ignore_cleanup_errors=True)
            )
        )
        root, root_note = find_root(settings.rootfs, settings.build)
        inside = see(root, shared, cpu_count())
        chosen = choose_runtime(settings.runtime, inside, python_command("-c", "pass"))
        conditions = stack.enter_context(Conditions())
        end = math.inf if settings.limit_s is None else time.monotonic() + settings.limit_s
        repeats: dict[str, int] = {}
        starts = np.array_split(np.arange(settings.rounds), min(settings.restarts, settings.rounds))
        try:
            for start, turns in enumerate(starts):
                with ExitStack() as agents:
                    own = Path(
                        agents.enter_context(
                            tempfile.TemporaryDirectory(dir=work, ignore_cleanup_errors=True)
                        )
                    )
                    arms = _arms(settings, inside, chosen, own, agents)
                    _warm_up(settings, arms, repeats)
                    for turn in turns.tolist():
                        if time.monotonic() > end:
                            break
                        _round(settings, arms, repeats, found, turn, start)
                if time.monotonic() > end:
                    break
            done = min(len(rounds.starts) for rounds in found.values())
            if done < settings.rounds:
                partial = f"limit_s is over after {done} of {settings.rounds} rounds"
        except KeyboardInterrupt:
            done = min(len(rounds.starts) for rounds in found.values())
            partial = f"stopped after {done} of {settings.rounds} rounds"
    figures, parts = _figures(settings, found)
    return Result(
        "container",
        figures,
        notes=_notes(settings, chosen, root_note, conditions, parts),
        parts=parts,
        headings=("median", "95 % interval"),
        partial=partial,
    )


Arms = Mapping[str, Callable[[str, int], float]]
"""Arm -> runs a task so many times, and returns its seconds."""


def _arms(settings: Config, inside: Inside, chosen: Chosen, work: Path, stack: ExitStack) -> Arms:
    amounts = asdict(
        Amounts(
            settings.disk_mb, settings.memory_mb, settings.matrix, settings.images, settings.batch
        )
    )
    staying = [task for task in settings.tasks if task != START]
    python = python_command("-m", "skindx_bench.serve.container_tasks")
    bare = python_command("-c", "pass")
    started = iter(range(1 << 30))

    def contained(command: list[str]) -> list[str]:
        return chosen.runtime.command(inside, command, work / f"oci-{work.name}-{next(started)}")

    agents: dict[str, Agent] = {}
    for name, command in (
        ("host", python),
        ("container", contained(python)),
        ("sham", python),
    ):
        if not staying:
            break
        (work / name).mkdir()
        job: dict[str, Any] = {"folder": str(work / name), "amounts": amounts, "tasks": staying}
        agent = Agent(name, command, inside.environment, work / f"{name}.log", job)
        agents[name] = stack.enter_context(agent)

    def arm(name: str, slow: float, contain: bool) -> Callable[[str, int], float]:
        def seconds(task: str, repeats: int) -> float:
            if task == START:
                command = contained(bare) if contain else bare
                return timed(lambda: _start(command, inside), slow, repeats)
            return agents[name].seconds(task, slow, repeats)

        return seconds

    return {
        "host": arm("host", 0.0, False),
        "container": arm("container", 0.0, True),
        "sham": arm("sham", 0.0, False),
        "planted": arm("sham", settings.planted, False),
    }


def _start(command: list[str], inside: Inside) -> None:
    """Start Python and wait for its end."""
    done = subprocess.run(
        command,
        env=dict(inside.environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise JobError(f"a start ended with {done.returncode}: {done.stderr.strip()[-200:]}")


def _warm_up(settings: Config, arms: Arms, repeats: dict[str, int]) -> None:
    """Do what takes longer the first time; find out how many calls make a round."""
    for task in settings.tasks:
        for run_arm in arms.values():
            run_arm(task, 1)
        if task not in repeats:
            took = arms["host"](task, 1)
            repeats[task] = max(1, round(settings.least_s / max(took, 1e-6)))


def _round(  # noqa: PLR0917
    settings: Config,
    arms: Arms,
    repeats: Mapping[str, int],
    found: dict[str, Rounds],
    turn: int,
    start: int,
) -> None:
    """Add one round of each task to `found`."""
    for task in settings.tasks:
        taken = one_round(
            lambda arm, task=task: arms[arm](task, repeats[task]),  # type: ignore[misc]
            turn,
        )
        found[task].add(taken, start)
    print(f"round {turn + 1} of {settings.rounds}: done", flush=True)


def _figures(
    settings: Config, found: Mapping[str, Rounds]
) -> tuple[dict[str, Figure], dict[str, dict[str, Any]]]:
    rng = np.random.default_rng(settings.seed)
    figures: dict[str, Figure] = {}
    parts: dict[str, dict[str, Any]] = {}
    for task, rounds in found.items():
        if len(rounds.seconds["host"]) < 2:
            continue
        three = {
            arm: bootstrap(
                rounds.ratios(arm),
                rounds.starts,
                settings.resamples,
                rng,
                len(found) if arm == "sham" else 1,
            )
            for arm in ("container", "sham", "planted")
        }
        for arm, figure in three.items():
            figures[f"{task}: {arm}_over_host"] = figure
        verdict = judge(three["sham"], three["planted"])
        parts[task] = {**asdict(verdict), "sound": verdict.sound}
    return figures, parts


def _notes(
    settings: Config,
    chosen: Chosen,
    root_note: str,
    conditions: Conditions,
    parts: Mapping[str, Mapping[str, Any]],
) -> tuple[str, ...]:
    refused = "; ".join(f"{name}: {why}" for name, why in chosen.refused.items())
    unsound = [
        f"{task} ({'' if part['sham_holds_one'] else 'the sham does not hold 1'}"
        f"{'' if part['sham_holds_one'] or part['planted_found'] else ', '}"
        f"{'' if part['planted_found'] else 'the planted slowdown is not found'})"
        for task, part in parts.items()
        if not part["sound"]
    ]
    notes = [
        f"Runtime: {chosen.runtime.name}" + (f" ({refused})." if refused else "."),
        root_note + " Python, packages and skindx are the host's, read-only; the tasks' folder is "
        "on the same disk outside and inside.",
        "container_over_host: how many times faster than the host; below 1 the container costs "
        "time. Medians of the ratios of interleaved rounds, 95 % bootstrap interval over starts of "
        f"the processes ({min(settings.restarts, settings.rounds)}) and rounds of each. Before a "
        "task is timed, it is called once.",
        "sham: a second process of the host, whose interval (95 % for all tasks together) must "
        f"hold 1. planted: that process with {100 * settings.planted:g} % more time, whose "
        "interval must lie below 1.",
    ]
    if unsound:
        notes.append(f"Not to be believed, on this run: {'; '.join(unsound)}. Take more rounds.")
    if conditions.marks:
        notes.append(f"Doubtful: {'; '.join(conditions.marks)}.")
    return tuple(notes)
