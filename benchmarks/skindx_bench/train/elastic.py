"""What lost ranks cost: an elastic training and one that is started again, beside an undisturbed.

Ranks have a node each of an emulated cluster and are killed on a schedule. Of the steps that a
training has done, those count that it did not lose again.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from skindx.core.atomic_files import write_json
from skindx.core.settings_base import Settings, read_yaml
from skindx.data.layout import MANIFEST, TAXONOMY
from skindx.data.manifest import Split, read_manifest, write_manifest
from skindx.data.synthetic.painter import CLASSES
from skindx.taxonomy import SkinClass, Taxonomy
from skindx_bench.harness.accidents import Accident, Kind, every
from skindx_bench.harness.netlab import Link, NetLab, require
from skindx_bench.harness.result import Figure, Result
from skindx_bench.harness.training import end_on_sigterm, kept_when_stopped
from skindx_bench.train.elastic_run import ElasticRun, Outcome
from skindx_bench.train.second_order import write_painted

SMALLEST = (
    *("model=test_resnet", "size=32", "images=120", "batch=8", "ranks=2", "undisturbed_s=2"),
    *("every_s=[8]", "kills=[1]", "rounds=1", "notices=1", "apart_s=12"),
)

UNDISTURBED, ELASTIC, RESTARTED = "undisturbed", "elastic", "restarted"

_SPLITS: dict[int, Split] = {0: "val", 1: "calibration", 2: "test"}
"""Last digit of an image's number in its class -> its split; all others train."""


class Config(Settings):
    """Finished parts in `out` are reused: a run that was stopped goes on."""

    model: str = "mobilenetv2_100"
    size: int = Field(64, ge=32)
    images: int = Field(1500, ge=60)
    batch: int = Field(32, ge=4)
    """Of all ranks."""
    ranks: int = Field(4, ge=2, le=16)
    rate_mbit: float = Field(1000, gt=0)
    every_s: tuple[float, ...] = Field((120, 30), min_length=1)
    """Seconds between two kills; a rank of random number each. Figures of the first are without a
    number."""
    kills: tuple[int, ...] = Field((1, 2), min_length=1)
    """How many of each, in one round."""
    rounds: int = Field(2, ge=1)
    undisturbed_s: float = Field(20, gt=0)
    """Before the first round and after the last."""
    checkpoint_steps: int = Field(10, ge=1)
    """A checkpoint every so many steps, in all arms."""
    silent_s: float = Field(4, ge=1)
    """`engine.elastic.silent_s`."""
    notices: int = Field(2, ge=0)
    """Ranks that are killed, stopped and cut off, one after the other, to time the answer."""
    apart_s: float = Field(12, gt=0)
    """Between two of these."""
    out: Path = Path("runs/elastic")


def write_dataset(folder: Path, settings: Config) -> Path:
    """Paint the images once, and deal them out to the splits."""
    if not (folder / MANIFEST).exists():
        write_painted(folder, settings.images, settings.size)
        records = read_manifest(folder)
        write_manifest(
            folder,
            [
                replace(record, split=_SPLITS.get(number // len(CLASSES) % 10, "train"))
                for number, record in enumerate(records)
            ],
        )
        classes = tuple(SkinClass(key=key, name=key, urgency="routine") for key in CLASSES)
        Taxonomy(name="painted", title="Painted", classes=classes).save(folder / TAXONOMY)
    return folder


def training(settings: Config, *, elastic: bool) -> dict[str, Any]:
    """Return the settings of the training of an arm."""
    kept_on = {"elastic": {"min_ranks": 1, "silent_s": settings.silent_s}} if elastic else {}
    return {
        "engine": {"accelerator": "cpu", "ranks": settings.ranks, **kept_on},
        # It never ends within a benchmark.
        "recipe": {"epochs": 100_000, "batch": settings.batch, "ema": {"decay": 0.99}},
        "members": [
            {
                "name": "bench",
                "model": settings.model,
                "pretrained": False,
                "preprocess": {"size": settings.size},
            }
        ],
        "loader": {"threads": 1},
        "checkpoint": {"every_steps": settings.checkpoint_steps, "every_minutes": None},
    }


class Arms:
    """Runs the parts that are missing, each a training of its own, and reads the others."""

    def __init__(self, settings: Config, lab: NetLab) -> None:
        self._settings, self._lab = settings, lab
        self._dataset = write_dataset(
            settings.out / f"painted-{settings.images}-{settings.size}", settings
        )

    def outcome(self, arm: str, name: str, schedule: Sequence[Accident], every_s: float) -> Outcome:
        """Return what came of a schedule, one accident in each `every_s`."""
        file = self._settings.out / "parts" / f"{name}.json"
        if not file.exists():
            raw = training(self._settings, elastic=arm == ELASTIC)
            folder = self._settings.out / "runs" / name
            with ElasticRun(folder, self._dataset, raw, self._lab, again=arm == RESTARTED) as run:
                result = run.measure(schedule, every_s)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, result.to_dict())
        return Outcome.of(read_yaml(file))


def run(settings: Config) -> Result:
    """Measure the arms in turn, round by round; then time the answers to single accidents."""
    require()
    end_on_sigterm()
    settings.out.mkdir(parents=True, exist_ok=True)
    plain: list[Outcome] = []
    lost: dict[tuple[str, float], list[Outcome]] = {}
    single: list[Outcome] = []
    with (
        NetLab(settings.ranks + 1, Link(settings.rate_mbit)) as lab,
        kept_when_stopped("lost ranks were counted") as stopped,
    ):
        arms = Arms(settings, lab)

        def undisturbed(number: int) -> None:
            name = f"{UNDISTURBED}-{number}"
            plain.append(arms.outcome(UNDISTURBED, name, [], settings.undisturbed_s))

        undisturbed(0)
        for number in range(settings.rounds):
            for every_s, kills in zip(settings.every_s, settings.kills, strict=True):
                schedule = every(every_s, kills, settings.ranks, seed=number)
                for arm in (ELASTIC, RESTARTED):
                    name = f"{arm}-{every_s:g}-{number}"
                    lost.setdefault((arm, every_s), []).append(
                        arms.outcome(arm, name, schedule, every_s)
                    )
        undisturbed(1)
        if settings.notices:
            single.append(arms.outcome(ELASTIC, "notices", _singles(settings), settings.apart_s))
    return Result(
        "elastic",
        {**goodputs(plain, lost), **answers(single)},
        notes=_notes(settings),
        headings=("mean, or median of answers", "least .. most"),
        partial=stopped.partial,
    )


def _singles(settings: Config) -> list[Accident]:
    """Return accidents of each kind in turn, of one rank after the other."""
    kinds: tuple[Kind, ...] = ("kill", "stop", "cut") * settings.notices
    return [
        Accident(number * settings.apart_s, kind, number % settings.ranks, settings.apart_s / 2)
        for number, kind in enumerate(kinds)
    ]


def goodputs(
    plain: Sequence[Outcome], lost: Mapping[tuple[str, float], Sequence[Outcome]]
) -> dict[str, Figure]:
    """Return the figures: steps that count in a second, over those of the undisturbed training.

    The spread is the least and the most of single periods between two kills.
    """
    if not plain or not lost:
        return {}
    rate = statistics.fmean(outcome.rate for outcome in plain)
    first = next(iter(lost))[1]
    figures = {}
    for (arm, every_s), outcomes in lost.items():
        name = f"{arm}_goodput" + ("" if every_s == first else f"_{every_s:g}")
        periods = [steps / every_s / rate for outcome in outcomes for steps in outcome.steps]
        figures[name] = Figure(
            statistics.fmean(periods), "of undisturbed", len(periods), (min(periods), max(periods))
        )
        pauses = [pause_s for outcome in outcomes for pause_s in outcome.pauses_s]
        if pauses:
            key = name.replace("goodput", "pause")
            figures[f"{key}_s"] = Figure(
                statistics.fmean(pauses), "s", len(pauses), (min(pauses), max(pauses))
            )
    return figures


def answers(single: Sequence[Outcome]) -> dict[str, Figure]:
    """Return how long the others took to notice, and to go on, by kind of accident."""
    figures = {}
    for outcome in single:
        for key, seconds in sorted(outcome.answers_s.items()):
            figures[f"{key}_s"] = Figure(
                statistics.median(seconds), "s", len(seconds), (min(seconds), max(seconds))
            )
    return figures


def _notes(settings: Config) -> tuple[str, ...]:
    kills = ", ".join(
        f"{settings.rounds * count} with {every_s:g} s each"
        for every_s, count in zip(settings.every_s, settings.kills, strict=True)
    )
    return (
        f"{settings.model} at {settings.size} px from random weights, {settings.images} painted "
        f"images, batch {settings.batch}, AdamW and EMA, dense exchange; {settings.ranks} ranks of "
        f"one thread, a network namespace each, links of {settings.rate_mbit:g} Mbit/s; a "
        f"checkpoint every {settings.checkpoint_steps} steps. SIGKILL to one rank at the beginning "
        f"of each period: {kills}.",
        "X_goodput: steps in a second at the end of a period that were not lost again, over the "
        "same of trainings that are neither disturbed nor elastic, before and after. "
        "Mean of all periods; the spread is from the worst to the best one. restarted: the same "
        "command again as soon as it has ended, from the last checkpoint. X_pause_s: from the kill "
        "to the next step that counts.",
        "X_noticed_s: from an accident (closed: SIGKILL; hang: SIGSTOP; cut: the link goes down) "
        "until the others left their step; regroup_s: from there until they had state and went on. "
        f"By the run's history, one accident every {settings.apart_s:g} s; a hang and a cut are "
        f"noticed after engine.elastic.silent_s = {settings.silent_s:g} s.",
        "All ranks share this machine's cores: those of a lost rank are the others' meanwhile, and "
        "a rank that starts takes time from them. On machines of their own it is the other way.",
    )
